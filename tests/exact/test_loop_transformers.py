"""The loop on transformers models: the same tokens with and without drafts, in any batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.targets.transformers import TransformersTarget
from blockdraft.types import SamplingParams, TargetInfo
from tests.fakes.codec import make_llm
from tests.fakes.drafting import VariedDrafter, random_drafter
from tests.fakes.oracle import ids_of, random_prompts, solo
from tests.fakes.scripted import ScriptedDrafter, accept_all
from tests.targets.tiny_models import tiny_model

SLIDING = {
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "Gemma3Text": SLIDING,
    "GPT2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
}
PROMPTS = random_prompts([1, 9, 20, 4])
PARAMS = [SamplingParams(max_tokens=n) for n in (10, 3, 14, 8)]


@cache
def plain(name: str) -> tuple[TransformersTarget, list[tuple[int, ...]]]:
    info = TargetInfo(
        name=name,
        source="tests",
        fingerprint=name,
        model_type=name.lower(),
        vocab_size=160,
        hidden_size=64,
        num_layers=3,
        max_context_len=128,
        end_ids=(),
        dtype=torch.float32,
        num_parameters=0,
    )
    target = TransformersTarget(tiny_model(name, **MODELS[name]), info)
    return target, ids_of(solo(target, PROMPTS, PARAMS))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_and_batches_change_nothing(name: str, batch_size: int) -> None:
    target, expected = plain(name)
    oracles = {tuple(p): ids for p, ids in zip(PROMPTS, expected, strict=True)}
    right = ScriptedDrafter(oracles, accept_all, 7, 160)
    trained = random_drafter(target, num_target_layers=3, target_layer_ids=(0, 2))
    for drafter in (None, right, VariedDrafter(right, ragged=True), NgramDrafter(3, 1), trained):
        llm = make_llm(target, drafter, max_batch_size=batch_size, prefill_chunk_len=8)
        assert ids_of(llm.generate(PROMPTS, PARAMS)) == expected
