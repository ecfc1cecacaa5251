"""Which answers are trained on: prompts are kept apart whole, and everything is counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from blockdraft.data.answers import Answer
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.errors import ConfigError
from blockdraft.training.recipe import DataRecipe
from blockdraft.training.samples import (
    TrainingSamples,
    draft_vocabulary,
    prompt_place,
    split_answers,
)


def answer(name: str, num: int = 5, is_looping: bool = False, first: int = 0) -> Answer:
    return Answer(
        id=name,
        source="s",
        temperature=0.0,
        seed=0,
        prompt_ids=(1, 2, 3),
        token_ids=tuple(range(first, first + num)),
        finish_reason="stop",
        is_looping=is_looping,
    )


def answers(num_prompts: int) -> list[Answer]:
    return [answer(f"p{i}@{v}#0") for i in range(num_prompts) for v in range(3)]


def test_all_answers_to_a_prompt_are_on_one_side() -> None:
    rows = answers(200)
    split = split_answers(rows, DataRecipe(heldout_share=0.2, num_heldout=40))
    sides = [{rows[i].id.split("@")[0] for i in part} for part in (split.training, split.heldout)]
    assert not sides[0] & sides[1]
    assert len(split.heldout) == 40
    assert len(split.training) + 40 + split.num_apart == 600
    assert 0.7 < len(split.training) / 600 < 0.9


def test_the_side_of_a_prompt_does_not_change_when_answers_are_added() -> None:
    recipe = DataRecipe(heldout_share=0.2, num_heldout=1000)
    few, many = answers(50), answers(400)
    small, large = split_answers(few, recipe), split_answers(many, recipe)
    kept = {many[i].id for i in large.training}
    assert {few[i].id for i in small.training} <= kept
    assert not {few[i].id for i in small.heldout} & kept
    assert prompt_place("p1@0#0") == prompt_place("p1@5#2") != prompt_place("p2@0#0")


def test_what_is_left_out_is_counted() -> None:
    rows = [
        answer("a"),
        answer("b", is_looping=True),
        answer("c", num=1),
        answer("d", num=40),
    ]
    split = split_answers(rows, DataRecipe(heldout_share=0.0, max_len=20))
    assert split.training == (0, 3)
    assert (split.num_looping, split.num_short, split.num_cut) == (1, 1, 1)
    split = split_answers(rows, DataRecipe(heldout_share=0.0, drop_looping=False))
    assert split.training == (0, 1, 3)
    with pytest.raises(ConfigError, match="no answer of 4 is left to train on"):
        split_answers(rows, DataRecipe(max_len=4))


def test_the_most_frequent_tokens_can_be_drafted() -> None:
    rows = [answer("a", num=3, first=10), answer("b", num=2, first=11), answer("c", 1, first=12)]
    ids, coverage = draft_vocabulary(rows, 3, always=(5,), never=(0,), total=20)
    assert (ids, coverage) == ([5, 11, 12], 5 / 6)  # 12 three times, 11 twice, 10 once
    ids, coverage = draft_vocabulary(rows, 6, always=(5,), never=(0,), total=20)
    assert (ids, coverage) == ([1, 2, 5, 10, 11, 12], 1.0)  # filled up from below, without 0
    for size in (0, 20):
        with pytest.raises(ConfigError, match=f"draft_vocab_size is {size}; it must be 1 to 19"):
            draft_vocabulary(rows, size, always=(5,), never=(0,), total=20)


class Recorded:
    """Features whose numbers tell layer and position."""

    layer_ids = (2, 5, 7)
    answers: Sequence[Answer] = ()

    def batch(self, indices: Sequence[int], /) -> list[FeatureSample]:
        rows = torch.arange(9)[:, None] + 100 * torch.tensor([2, 2, 5, 5, 7, 7])
        return [FeatureSample(torch.arange(10), 3, rows.bfloat16(), f"s{i}") for i in indices]


def test_samples_are_cut_and_have_the_columns_of_the_taps() -> None:
    [found] = TrainingSamples(Recorded(), (7, 2), 2, 6).batch([4])
    assert (found.id, found.prompt_len, found.token_ids.tolist()) == ("s4", 3, list(range(6)))
    expected = torch.tensor([[700.0, 700, 200, 200]]) + torch.arange(5)[:, None]
    assert torch.equal(found.features, expected.bfloat16())
    [whole] = TrainingSamples(Recorded(), (2, 5, 7), 2, 100).batch([0])
    assert whole.features.shape == (9, 6)
    with pytest.raises(ConfigError, match=r"layers \[3\], which the features lack"):
        TrainingSamples(Recorded(), (2, 3), 2, 6)
