"""Tiny random drafters for the tiny targets of `tests.fakes`, no part at identity."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.tensors import tensor_shapes
from blockdraft.layers.rope import RopeConfig
from tests.fakes.models import TINY, tiny_target

#: Slots of DFlash 2 candidates in the tiny drafter.
TOP_K = 16

_BASE = DFlashConfig(
    method="dflash",
    num_layers=2,
    hidden_size=TINY.hidden_size,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=TINY.vocab_size,
    max_context_len=TINY.max_context_len,
    windows=(None, None),
    causal=(False, False),
    block_size=8,
    mask_token_id=155,
    target_layer_ids=(0, 2, 3),
    num_target_layers=TINY.num_layers,
    norm_eps=1e-5,
    rope=RopeConfig(theta=500.0, original_max_len=TINY.max_context_len),
)
_SELECTOR = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 12,
    "selector_top_k": TOP_K,
}


def tiny_drafter_config(method: str = "dflash2", **changes: Any) -> DFlashConfig:
    """The tiny drafter's config; a single window or causality stands for all layers."""
    for name in ("windows", "causal"):
        if name in changes and not isinstance(changes[name], tuple):
            changes[name] = (changes[name],) * changes.get("num_layers", _BASE.num_layers)
    selector = _SELECTOR if method == "dflash2" else {}
    return dataclasses.replace(_BASE, method=method, **{**selector, **changes})


def random_tensors(config: DFlashConfig, seed: int = 0) -> dict[str, Tensor]:
    """Float32 tensors: norms near 1, the rest noise strong enough that every part matters.

    A draft vocabulary is evenly spread from token 1 on.
    """
    gen = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        noise = torch.randn(shape, generator=gen)
        if name == DRAFT_VOCAB_IDS:
            step = max(1, (config.vocab_size - 1) // shape[0])
            tensors[name] = 1 + step * torch.arange(shape[0])
        elif name.endswith("norm.weight"):
            tensors[name] = 1 + 0.2 * noise
        elif name.endswith("base_kernel") or "codebook" in name:
            tensors[name] = 0.5 * noise
        else:
            tensors[name] = noise / shape[-1] ** 0.5
    return tensors


def tiny_drafter(
    method: str = "dflash2", seed: int = 0, num_draft_tokens: int | None = None, **changes: Any
) -> DFlashDrafter | DFlash2Drafter:
    """A random drafter bound to `tiny_target()`."""
    config = tiny_drafter_config(method, **changes)
    cls = DFlash2Drafter if method == "dflash2" else DFlashDrafter
    drafter = cls.from_tensors(
        config, random_tensors(config, seed), num_draft_tokens=num_draft_tokens
    )
    drafter.bind(tiny_target())
    return drafter


def features_for(config: DFlashConfig, length: int, seed: int = 0) -> Tensor:
    """Random target features [length, f]."""
    gen = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(length, config.feature_size, generator=gen)


def batch_of(
    anchors: list[int],
    positions: list[int],
    *,
    temperatures: list[float] | None = None,
    max_lens: list[int] | None = None,
    uniforms: Tensor | None = None,
    width: int = 7,
) -> DraftBatch:
    """A DraftBatch of rows that want whole blocks, greedy unless told otherwise."""
    return DraftBatch(
        anchor_ids=torch.tensor(anchors),
        positions=tuple(positions),
        token_ids=[[0] * p + [a] for a, p in zip(anchors, positions, strict=True)],
        max_lens=tuple(max_lens or [width] * len(anchors)),
        temperatures=tuple(temperatures or [0.0] * len(anchors)),
        uniforms=uniforms,
    )
