"""The fast batched pass equals the slow one: any lengths, windows, batch, and appends."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.drafters.block_model import BlockModel
from tests.drafters.slow_reference import slow_hidden
from tests.drafters.tiny import batch_of, features_for, random_tensors, tiny_drafter


def block_rows(model: BlockModel, anchor: int, width: int) -> Tensor:
    ids = torch.tensor([anchor] + [model.config.mask_token_id] * (width - 1))
    return model.target.embed(ids) * model.config.input_embedding_scale


def check(model: BlockModel, lens: list[int], splits: list[list[int]]) -> None:
    """Append each row's features in its own pieces, draft for all rows at once, compare each."""
    config, width = model.config, 1 + model.num_draft_tokens
    tensors = random_tensors(config)
    features = [features_for(config, n, seed=i) for i, n in enumerate(lens)]
    context = model.new_context(len(lens), 64)
    for slot, (n, cuts) in enumerate(zip(lens, splits, strict=True)):
        edges = [0, *sorted(c for c in cuts if c < n), n]
        for start, end in itertools.pairwise(edges):
            context.append(features[slot][None, start:end], slot, [start], [end - start])
    anchors = [3 + i for i in range(len(lens))]
    drafted = model.draft(context, batch_of(anchors, lens))
    for i, anchor in enumerate(anchors):
        expected = slow_hidden(config, tensors, features[i], block_rows(model, anchor, width))
        torch.testing.assert_close(drafted.hidden[i], expected[1:], rtol=1e-4, atol=2e-5)
        logits = model.target.head(expected[1:])
        torch.testing.assert_close(drafted.logits[i], logits, rtol=1e-4, atol=1e-4)


windows = st.sampled_from([None, 1, 2, 3, 8, 16, 17])


@settings(max_examples=20, deadline=None)
@given(
    lens=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    window=st.tuples(windows, windows),
    causal=st.tuples(st.booleans(), st.booleans()),
    num_draft_tokens=st.integers(1, 7),
    cuts=st.lists(st.integers(1, 39), max_size=3),
    method=st.sampled_from(["dflash", "dflash2"]),
)
def test_fast_equals_slow(
    lens: list[int],
    window: tuple[int | None, int | None],
    causal: tuple[bool, bool],
    num_draft_tokens: int,
    cuts: list[int],
    method: str,
) -> None:
    drafter = tiny_drafter(method, num_draft_tokens=num_draft_tokens, windows=window, causal=causal)
    check(drafter.model, lens, [cuts] * len(lens))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_window_edges_bc35(length: int, causal: bool) -> None:
    """BC-35, BC-34: contexts around the window, a full layer mixed in, a prompt of one token."""
    drafter = tiny_drafter(windows=(16, None), causal=(causal, False))
    check(drafter.model, [length], [[]])


def test_options_of_the_config() -> None:
    """Biases, an embedding scale, three taps of convolution, groups of eight."""
    drafter = tiny_drafter(
        attention_bias=True,
        input_embedding_scale=3.0,
        conv_kernel_size=3,
        conv_group_size=8,
    )
    check(drafter.model, [5, 9], [[], [4]])


@pytest.mark.parametrize("chunk", [7, 16, 64])
def test_prefill_chunks_give_the_same_context_bc29(chunk: int) -> None:
    """BC-29: a prompt of 50 in chunks of any size."""
    model = tiny_drafter(windows=16).model
    features = features_for(model.config, 50)
    whole, parts = model.new_context(1, 64), model.new_context(1, 64)
    whole.append(features[None], 0, [0], [50])
    for start in range(0, 50, chunk):
        piece = features[None, start : start + chunk]
        parts.append(piece, 0, [start], [piece.shape[1]])
    torch.testing.assert_close(parts.k, whole.k, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.v, whole.v, rtol=1e-5, atol=1e-6)
    batch = batch_of([5], [50])
    drafts = [model.draft(context, batch).logits.argmax(-1) for context in (whole, parts)]
    assert torch.equal(*drafts)


def test_rows_of_a_batch_do_not_touch_each_other_bc32() -> None:
    """BC-32: a row's hidden states do not move when its neighbours change, bit for bit."""
    model = tiny_drafter().model
    lens = [1, 9, 40]
    features = [features_for(model.config, n, seed=i) for i, n in enumerate(lens)]

    def hidden(seed: int) -> Tensor:
        context = model.new_context(3, 64)
        for slot, rows in enumerate(features):
            noise = 0 if slot == 1 else seed
            context.append(rows[None] + noise, slot, [0], [lens[slot]])
        return model.draft(context, batch_of([3 + seed, 4, 5 + seed], lens)).hidden

    before, after = hidden(0), hidden(1)
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0], after[0])
    assert not torch.allclose(before[2], after[2])


def test_rejected_features_never_enter() -> None:
    """Only the rows that lens names are stored; what stands behind them in the pass is ignored."""
    model = tiny_drafter().model
    features = features_for(model.config, 12)
    clean, padded = model.new_context(2, 64), model.new_context(2, 64)
    for slot in (0, 1):
        clean.append(features[None, :6], slot, [0], [6])
    garbage = torch.full((2, 4, model.config.feature_size), torch.nan)
    rows = torch.stack([torch.cat([features[:4], garbage[0, :2]]), features[:6]])
    padded.append(rows, 0, [0, 0], [4, 6])
    rows = torch.stack([torch.cat([features[4:6], garbage[0, :2]]), garbage[0]])
    padded.append(rows, 0, [4, 6], [2, 0])
    assert padded.lens == [6, 6]
    torch.testing.assert_close(padded.k[:, :, :6], clean.k[:, :, :6])
    assert bool(torch.isfinite(padded.k).all())


def test_a_context_that_lags_is_our_own_bug() -> None:
    model = tiny_drafter().model
    context = model.new_context(1, 64)
    context.append(features_for(model.config, 4)[None], 0, [0], [4])
    with pytest.raises(ValueError, match="blocks start at"):
        model.draft(context, batch_of([5], [5]))
