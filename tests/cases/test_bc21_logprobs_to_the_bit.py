"""BC-21 where rows have the same bits in every pass: log-probabilities have them too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockdraft.kernels import native
from blockdraft.types import SamplingParams
from tests.fakes.bfloat16 import exact_target, native_target
from tests.fakes.codec import make_llm
from tests.fakes.oracle import ids_of, random_prompts, script_for, solo
from tests.fakes.scripted import Pattern, TableTarget, accept_all, accept_first, accept_none

PATTERNS = {"all": accept_all, "none": accept_none, "first 3": accept_first(3)}


def table() -> TableTarget:
    gen = torch.Generator().manual_seed(4)
    return TableTarget(torch.randn(40, 1, 40, generator=gen) + torch.randn(40, 40, generator=gen))


MAKERS: dict[str, Any] = {
    "table": table,
    "exact": lambda: exact_target(end_ids=()),
    "native": lambda: native_target(end_ids=()),
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("kind", MAKERS)
def test_every_value_is_the_oracles(kind: str, pattern: Pattern) -> None:
    """In a batch with a row that does not ask, and one that ends inside a block."""
    if kind == "native" and not native.available():
        pytest.skip("native kernels cannot be built here")
    target = MAKERS[kind]()
    v = target.info.vocab_size
    prompts = random_prompts([5, 1, 23], vocab_size=min(150, v))
    free = ids_of(solo(target, prompts, SamplingParams(max_tokens=20)))
    params = [
        SamplingParams(max_tokens=20, logprobs=5),
        SamplingParams(max_tokens=20),
        SamplingParams(max_tokens=20, logprobs=5, stop_token_ids=(free[2][4],)),
    ]
    expected = solo(target, prompts, params)
    script = script_for(target, prompts, SamplingParams(max_tokens=20), pattern)
    outputs = make_llm(target, script).generate(prompts, params)
    assert ids_of(outputs) == ids_of(expected)
    assert outputs[1].logprobs is None
    for i in (0, 2):
        assert outputs[i].logprobs is not None
        assert outputs[i].logprobs == expected[i].logprobs
        assert len(outputs[i].logprobs or ()) == len(outputs[i].token_ids)
