"""BC-45, every family on our own decoders: taps are raw layer outputs, the last layer's too."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.kernels import native
from blockdraft.kernels.choose import choose_kernels
from blockdraft.targets.base import RowBatch, Target
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.targets.native import NativeTarget
from blockdraft.types import TargetInfo
from tests.fakes.models import tiny_target
from tests.targets.tiny_models import state, tiny_model

CPU = torch.device("cpu")
ORIGINAL = {"original_max_position_embeddings": 32, "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama llama3": ("Llama", {"rope_parameters": {**LLAMA3, **ORIGINAL}}),
    "llama yarn": (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **ORIGINAL}},
    ),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", SLIDING),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3 sliding": ("Qwen3", SLIDING),
}
LAYERS = (2, 0, 1)
IDS = torch.randint(0, 160, (1, 40), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def expected(model: Any) -> Tensor:
    """Logits, and what each of LAYERS gives on, before the final norm."""
    seen: dict[int, Tensor] = {}
    for i, layer in enumerate(model.model.layers):

        def note(_: Any, __: Any, output: Any, i: int = i) -> None:
            seen[i] = (output[0] if isinstance(output, tuple) else output).float()

        layer.register_forward_hook(note)
    logits = model(IDS).logits.float()
    return torch.cat([logits, *(seen[i] for i in LAYERS)], -1)[0]


def ours(target: Target) -> Tensor:
    """The same from a prompt and two blocks."""
    cache, parts = target.new_cache(1, 64), []
    for start, end in ((0, 25), (25, 32), (32, 40)):
        batch = RowBatch(IDS[:, start:end], (end - start,), layer_ids=LAYERS)
        out = target.forward(cache, batch)
        assert out.logits is not None
        assert out.features is not None
        parts.append(torch.cat([out.logits.float(), out.features.float()], -1)[0])
    return torch.cat(parts)


def info_for(config: DecoderConfig, dtype: torch.dtype) -> TargetInfo:
    sizes = {name: getattr(config, name) for name in ("vocab_size", "hidden_size", "num_layers")}
    return dataclasses.replace(tiny_target().info, dtype=dtype, **sizes)


def error(got: Tensor, want: Tensor) -> list[float]:
    """Relative to the size of the logits, and of each tap."""
    sizes = (160, 64, 64, 64)
    pairs = zip(got.split(sizes, -1), want.split(sizes, -1), strict=True)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_equals_transformers(family: str) -> None:
    name, keys = FAMILIES[family]
    model = tiny_model(name, **keys)
    config = DecoderConfig.from_dict(model.config.to_dict())
    kernels = choose_kernels(torch.float32, CPU)
    target = DecoderTarget(config, state(model), kernels, info_for(config, torch.float32), CPU)
    want = expected(model)
    difference = (ours(target) - want).abs()
    assert float(difference[:, :160].max()) < 1e-4 * float(want[:, :160].abs().max())
    assert float(difference[:, 160:].max()) < 1e-4 * float(want[:, 160:].abs().max())


@pytest.mark.skipif(not native.available(), reason="native kernels cannot be built here")
@pytest.mark.parametrize("family", FAMILIES)
def test_native_kernels_are_as_near_as_bfloat16_can_be(family: str) -> None:
    """A norm, bias, window or rotary table that is left out is far off."""
    name, keys = FAMILIES[family]
    model = tiny_model(name, **keys)
    weights = {key: w.bfloat16() for key, w in state(model).items()}
    model.load_state_dict({key: w.float() for key, w in weights.items()}, strict=False)
    config = DecoderConfig.from_dict(model.config.to_dict())
    target = NativeTarget(config, weights, info_for(config, torch.bfloat16))
    want = expected(model)
    rounded = error(expected(model.bfloat16()), want)
    for mine, theirs in zip(error(ours(target), want), rounded, strict=True):
        assert mine < 1.2 * theirs + 0.002
        assert theirs < 0.1
