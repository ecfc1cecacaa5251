"""Tiny random targets: real decoders, small enough for a millisecond a pass."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from blockdraft.kernels.choose import choose_kernels
from blockdraft.layers.rope import RopeConfig
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.targets.decoder_weights import expected_shapes
from blockdraft.types import TargetInfo

#: 150 real tokens and 10 padded rows, as large models have.
NUM_REAL_TOKENS = 150

TINY = DecoderConfig(
    model_type="llama",
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    max_context_len=256,
    tie_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    rope=RopeConfig(),
    windows=(None,) * 4,
    end_ids=(1,),
)


def tiny_config(**changes: object) -> DecoderConfig:
    """TINY with some fields changed; `windows` follows num_layers unless given."""
    if "num_layers" in changes and "windows" not in changes:
        changes["windows"] = (None,) * int(str(changes["num_layers"]))
    return dataclasses.replace(TINY, **changes)  # type: ignore[arg-type]


def random_weights(config: DecoderConfig, seed: int = 0) -> dict[str, Tensor]:
    """Weights lively enough that greedy text does not settle in a loop at once."""
    gen = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=gen)
        weights[name] = 1 + 0.1 * noise if len(shape) == 1 and "norm" in name else 0.25 * noise
    head = weights.get("lm_head.weight")
    if head is not None and config.vocab_size > NUM_REAL_TOKENS:
        head[NUM_REAL_TOKENS:] = 0.0
    return weights


def tiny_target(
    seed: int = 0, dtype: torch.dtype = torch.float32, kernels: str = "auto", **changes: object
) -> DecoderTarget:
    """The target T: 4 layers, width 64, vocabulary 160, deterministic for a seed."""
    config = tiny_config(**changes)
    device = torch.device("cpu")
    info = TargetInfo(
        name=f"tiny-{seed}",
        source="tests",
        fingerprint=f"tiny-{seed}",
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_context_len=config.max_context_len,
        end_ids=config.end_ids,
        dtype=dtype,
        num_parameters=sum(w.numel() for w in random_weights(config, seed).values()),
    )
    weights = random_weights(config, seed)
    return DecoderTarget(config, weights, choose_kernels(dtype, device, kernels), info, device)
