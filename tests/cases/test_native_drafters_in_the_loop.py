"""BC-24, BC-36, BC-49 with drafters on the native kernels: the text stays that of the target."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from blockdraft.drafters.native_backbone import NativeBackbone
from blockdraft.kernels import native
from blockdraft.types import SamplingParams
from tests.drafters.tiny import random_tensors, tiny_drafter, tiny_drafter_config
from tests.fakes.bfloat16 import native_target
from tests.fakes.codec import make_llm
from tests.fakes.oracle import ids_of, random_prompts, solo

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")

METHODS = pytest.mark.parametrize("method", ["dflash", "dflash2"])


def native_drafter(target: Any, method: str, scale: float = 1.0, **options: Any) -> Any:
    """Random weights bound to a native target; `scale` blows up the final norm."""
    config = tiny_drafter_config(method, max_context_len=target.info.max_context_len)
    tensors = random_tensors(config)
    tensors["norm.weight"] = tensors["norm.weight"] * scale
    cls = type(tiny_drafter(method))
    drafter = cls.from_tensors(config, tensors, dtype=torch.bfloat16, **options)
    drafter.bind(target)
    assert isinstance(drafter.model.backbone, NativeBackbone)
    return drafter


@METHODS
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_bc24_overflow_drafts_nothing_and_is_said_once(method: str, temperature: float) -> None:
    target, prompts = native_target(end_ids=()), random_prompts([13, 5, 21])
    params = SamplingParams(max_tokens=14, temperature=temperature, seed=3)
    drafter = native_drafter(target, method, scale=1e38)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = make_llm(target, drafter).generate(prompts, params)
    assert ["non-finite" in str(notice.message) for notice in caught] == [True]
    assert ids_of(outputs) == ids_of(solo(target, prompts, params))
    assert all(output.speculation.drafted == 0 for output in outputs)


@METHODS
@pytest.mark.parametrize("prompt_len", [50, 57, 60, 62, 63])
def test_bc36_the_context_ends_the_output(method: str, prompt_len: int) -> None:
    target = native_target(max_context_len=64, end_ids=())
    prompt, params = random_prompts([prompt_len], seed=prompt_len), SamplingParams(max_tokens=100)
    [output] = make_llm(target, native_drafter(target, method)).generate(prompt, params)
    [expected] = solo(target, prompt, params)
    assert (output.token_ids, output.finish_reason) == (expected.token_ids, "length")
    assert len(output.token_ids) == 64 - prompt_len


@METHODS
@pytest.mark.parametrize("asked", [1, 3, 7])
def test_bc49_drafts_as_many_as_asked_for(method: str, asked: int) -> None:
    target, prompts = native_target(end_ids=()), random_prompts([11])
    params = SamplingParams(max_tokens=20)
    llm = make_llm(target, native_drafter(target, method, num_draft_tokens=asked))
    [output] = llm.generate(prompts, params)
    assert output.token_ids == solo(target, prompts, params)[0].token_ids
    assert len(output.speculation.drafted_by_position) == asked
