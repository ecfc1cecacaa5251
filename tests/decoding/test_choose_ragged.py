"""Logits without padding give the tokens that padded ones give."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from blockdraft.decoding import step
from blockdraft.decoding.choose_ragged import padded
from blockdraft.engine.outputs import Output
from blockdraft.kernels import native
from blockdraft.targets.base import PassOutput, RowBatch
from blockdraft.types import SamplingParams
from tests.fakes.bfloat16 import native_target
from tests.fakes.codec import make_llm
from tests.fakes.drafting import random_drafter
from tests.fakes.load import RandomBudget
from tests.fakes.models import random_weights, tiny_config

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 1, 2], [3, 3, 3, 3, 3]]


def answers(params: SamplingParams, target: Any = None) -> tuple[list[Output], int]:
    """Of prompts whose drafts have lengths thrown with dice; and passes that came ragged."""
    target = target or native_target(vocab_size=8, end_ids=())
    forward, num_ragged = target.forward, 0

    def counted(cache: Any, batch: RowBatch) -> PassOutput:
        nonlocal num_ragged
        output: PassOutput = forward(cache, batch)
        num_ragged += output.ragged is not None
        return output

    target.forward = counted
    llm = make_llm(target, random_drafter(target, "dflash2"), max_batch_size=4)
    llm.budget = RandomBudget(3)
    each = [SamplingParams(**{**vars(params), "seed": i}) for i in range(len(PROMPTS))]
    return llm.generate(PROMPTS, each), num_ragged


def test_texts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.0)
    ragged, num = answers(params)
    assert num > 10
    monkeypatch.setattr(step, "can_be_ragged", lambda *_: False)
    filled, num = answers(params)
    assert num == 0
    assert [o.token_ids for o in ragged] == [o.token_ids for o in filled]
    assert [o.speculation for o in ragged] == [o.speculation for o in filled]


@pytest.mark.parametrize("more", [{"top_k": 3}, {"presence_penalty": 1.0}, {"logprobs": 1}])
def test_requests_that_need_more_are_padded(more: dict[str, Any]) -> None:
    outputs, num = answers(SamplingParams(max_tokens=12, temperature=1.0, **more))
    assert num == 0
    assert all(output.error is None for output in outputs)


def test_a_target_that_breaks_ends_with_the_error_of_padded_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = dict(random_weights(tiny_config(vocab_size=8)))
    weights["model.norm.weight"] = weights["model.norm.weight"] * math.inf
    params = SamplingParams(max_tokens=12, temperature=1.0)
    ragged, _ = answers(params, native_target(weights, vocab_size=8, end_ids=()))
    monkeypatch.setattr(step, "can_be_ragged", lambda *_: False)
    filled, _ = answers(params, native_target(weights, vocab_size=8, end_ids=()))
    assert [(o.error, o.token_ids) for o in ragged] == [(o.error, o.token_ids) for o in filled]


def test_padding_puts_each_row_in_its_place() -> None:
    logits = torch.arange(10.0).view(5, 2)
    assert padded(logits, [0, 2, 0])[:, 0, 0].tolist() == [0.0, 2.0, 8.0]
    assert padded(logits, [0, 2, 0])[0, 1:].eq(0).all()
