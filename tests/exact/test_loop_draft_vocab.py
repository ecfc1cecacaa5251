"""Drafters with a draft vocabulary in the loop: the text is the target's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockdraft.drafters.native_backbone import NativeBackbone
from blockdraft.kernels import native
from blockdraft.types import SamplingParams
from tests.drafters.vocab import subset_drafter
from tests.fakes.bfloat16 import native_target
from tests.fakes.codec import make_llm
from tests.fakes.drafting import random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, solo

METHODS = pytest.mark.parametrize("method", ["dflash", "dflash2"])
LENGTHS = (1, 9, 40, 2, 16, 7)
LIMITS = (12, 3, 16, 1, 20, 8)
#: Of few tokens, a random drafter is right every other time.
VOCAB, SUBSET_SIZE = 4, 2


def few_tokens(method: str, target: Any) -> Any:
    """Drafts tokens 1 and 2 of 0..3; 3 is the mask."""
    few = {"selector_top_k": SUBSET_SIZE} if method == "dflash2" else {}
    return random_drafter(target, method, draft_vocab_size=SUBSET_SIZE, **few)


@METHODS
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_greedy_text_is_that_of_plain_decoding(method: str, batch_size: int) -> None:
    target = tiny_target(vocab_size=VOCAB, end_ids=())
    prompts = [[token % VOCAB for token in p] for p in random_prompts(LENGTHS)]
    params = [SamplingParams(max_tokens=n) for n in LIMITS]
    drafter = few_tokens(method, target)
    outputs = make_llm(target, drafter, max_batch_size=batch_size).generate(prompts, params)
    assert ids_of(outputs) == ids_of(solo(target, prompts, params))
    assert sum(output.speculation.accepted for output in outputs) > 3


@METHODS
def test_mixed_temperatures_do_not_see_their_neighbours(method: str) -> None:
    target = tiny_target(vocab_size=VOCAB, end_ids=())
    prompts = [[token % VOCAB for token in p] for p in random_prompts(LENGTHS)]
    params = [
        SamplingParams(max_tokens=n, temperature=t, seed=7)
        for n, t in zip(LIMITS, (0.0, 1.0, 0.7, 2.0, 1.3, 0.0), strict=True)
    ]
    drafter = few_tokens(method, target)
    together = make_llm(target, drafter, max_batch_size=4).generate(prompts, params)
    alone = [
        make_llm(target, few_tokens(method, target)).generate([p], one)[0]
        for p, one in zip(prompts, params, strict=True)
    ]
    assert ids_of(together) == ids_of(alone)


@pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
@METHODS
@pytest.mark.parametrize("is_tied", [False, True])
def test_bfloat16_text_on_native_kernels(method: str, is_tied: bool) -> None:
    target = native_target(end_ids=(), tie_embeddings=is_tied)
    prompts, params = random_prompts(LENGTHS), [SamplingParams(max_tokens=n) for n in LIMITS]
    drafter = subset_drafter(method, target, dtype=torch.bfloat16)
    assert isinstance(drafter.model.backbone, NativeBackbone)
    outputs = make_llm(target, drafter, max_batch_size=3).generate(prompts, params)
    assert ids_of(outputs) == ids_of(solo(target, prompts, params))


@METHODS
def test_all_that_is_drafted_is_of_the_subset(method: str) -> None:
    """So no token outside it is ever accepted, at any temperature."""
    target = tiny_target(vocab_size=VOCAB, end_ids=())
    drafter = few_tokens(method, target)
    seen: set[int] = set()
    select = drafter.select

    def watched(drafted: Any, batch: Any) -> Any:
        proposal = select(drafted, batch)
        seen.update(proposal.ids.flatten().tolist())
        return proposal

    drafter.select = watched
    for temperature in (0.0, 1.5):
        params = SamplingParams(max_tokens=20, temperature=temperature, seed=1)
        make_llm(target, drafter).generate([[0, 3, 1]], params)
    assert seen == {1, 2}
