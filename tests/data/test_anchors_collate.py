"""Anchors and packed blocks: where blocks may start, and what their slots must say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.data.anchors import anchor_range, draw_anchors
from blockdraft.data.collate import collate
from blockdraft.data.feature_shards import FeatureSample


def _sample(num_tokens: int, prompt_len: int, name: str = "a") -> FeatureSample:
    tokens = torch.arange(100, 100 + num_tokens)
    return FeatureSample(tokens, prompt_len, torch.zeros(max(num_tokens - 1, 0), 2), name)


def test_the_first_answer_token_is_an_anchor_and_the_last_token_is_none() -> None:
    """Prefill emits the first answer token; nothing follows the last one."""
    assert list(anchor_range(4, 8)) == [4, 5, 6]
    assert list(anchor_range(4, 6)) == [4]


@pytest.mark.parametrize("num_tokens", [4, 5])
def test_answers_of_one_token_or_none_have_no_anchor(num_tokens: int) -> None:
    assert len(anchor_range(4, num_tokens)) == 0
    assert len(draw_anchors(np.random.default_rng(0), 4, num_tokens, 9)) == 0


@given(st.integers(1, 30), st.integers(0, 60), st.integers(1, 20), st.integers(0, 5))
def test_drawn_anchors_are_different_ascending_and_in_range(
    prompt_len: int, answer_len: int, most: int, seed: int
) -> None:
    num = prompt_len + answer_len
    anchors = draw_anchors(np.random.default_rng(seed), prompt_len, num, most).tolist()
    assert len(anchors) == min(most, max(answer_len - 1, 0))
    assert anchors == sorted(set(anchors))
    assert all(a in anchor_range(prompt_len, num) for a in anchors)


def test_every_anchor_is_drawn_at_some_time() -> None:
    rng = np.random.default_rng(0)
    seen = {a for _ in range(200) for a in draw_anchors(rng, 3, 12, 2).tolist()}
    assert seen == set(range(3, 11))


@given(st.integers(1, 12), st.integers(2, 25), st.integers(2, 9), st.data())
def test_slots_hold_the_tokens_at_their_positions(
    prompt_len: int, answer_len: int, block_size: int, data: st.DataObject
) -> None:
    """Against a loop: slot k predicts token a + k, slot 0 nothing, and nothing past the end."""
    num = prompt_len + answer_len
    places = list(anchor_range(prompt_len, num))
    anchors = sorted(data.draw(st.sets(st.sampled_from(places), min_size=1)))
    batch = collate([_sample(num, prompt_len)], [torch.tensor(anchors)], block_size)
    for i, a in enumerate(anchors):
        for k in range(block_size):
            inside = a + k < num
            assert batch.token_ids[i, k] == (100 + a + k if inside else -1)
            assert bool(batch.is_valid[i, k]) == (inside and k > 0)
    assert batch.context_lens == (anchors[-1],)
    assert batch.num_slots == int(batch.is_valid.sum())


def test_samples_without_room_are_left_out() -> None:
    """BC-52: a sample shorter than a block trains what it has; one without an anchor, nothing."""
    samples = [_sample(5, 4, "short"), _sample(6, 4, "two"), _sample(20, 4, "long")]
    rng = np.random.default_rng(0)
    anchors = [draw_anchors(rng, 4, len(s.token_ids), 8) for s in samples]
    batch = collate(samples, anchors, 8)
    assert batch.sample_ids == ("two", "long")
    assert batch.block_counts == (1, 8)
    assert int(batch.is_valid[0].sum()) == 1


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(ValueError, match="no sample"):
        collate([_sample(5, 4)], [torch.empty(0, dtype=torch.long)], 8)


def test_missing_features_are_an_error() -> None:
    sample = FeatureSample(torch.arange(20), 4, torch.zeros(7, 2), "cut")
    with pytest.raises(ValueError, match="cut has 7 feature rows of 9"):
        collate([sample], [torch.tensor([5, 9])], 8)
