"""Rotary position embedding (RoFormer, arXiv 2104.09864) and the scalings in use.

`default`, `linear` (position interpolation, arXiv 2306.15595), `llama3` (Llama 3.1 model card) and
`yarn` (arXiv 2309.00071). Half-split layout: feature i turns with feature i + d/2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.errors import UnsupportedError

_FIELDS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "original_max_position_embeddings",
        "truncate",
    },
}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary settings, as a transformers config writes them. Frequencies are per position."""

    rope_type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Read `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

        Raises: UnsupportedError for a scaling or a parameter that is not implemented.
        """
        raw = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        rope_type = raw.get("rope_type", raw.get("type", "default"))
        if not isinstance(rope_type, str) or rope_type not in _FIELDS:
            raise UnsupportedError(
                f"rope type {rope_type!r} is not implemented; known: {', '.join(_FIELDS)}"
            )
        unknown = {k for k, v in raw.items() if v is not None} - _FIELDS[rope_type] - _COMMON
        unknown -= {"original_max_position_embeddings"}
        if unknown:
            raise UnsupportedError(f"rope parameters not implemented: {', '.join(sorted(unknown))}")
        partial = raw.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise UnsupportedError(f"partial_rotary_factor is {partial}; only 1 is implemented")
        original = raw.get("original_max_position_embeddings")
        return cls(
            rope_type=rope_type,
            theta=float(raw.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            factor=float(raw.get("factor") or 1.0),
            low_freq_factor=float(raw.get("low_freq_factor") or 1.0),
            high_freq_factor=float(raw.get("high_freq_factor") or 4.0),
            original_max_len=int(original or config.get("max_position_embeddings") or 0),
            beta_fast=float(raw.get("beta_fast") or 32.0),
            beta_slow=float(raw.get("beta_slow") or 1.0),
            attention_factor=_attention_factor(rope_type, raw),
            truncate=bool(raw.get("truncate", True)),
        )


def _attention_factor(rope_type: str, raw: Mapping[str, Any]) -> float:
    if rope_type != "yarn":
        return 1.0
    if raw.get("attention_factor") is not None:
        return float(raw["attention_factor"])
    factor = float(raw.get("factor") or 1.0)

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if raw.get("mscale") and raw.get("mscale_all_dim"):
        return scale(float(raw["mscale"])) / scale(float(raw["mscale_all_dim"]))
    return scale(1.0)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Float[Tensor, "half_d"]:
    """Angle per position of each feature pair, float32 radians."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / config.theta**exponents
    if config.rope_type == "linear":
        return base / config.factor
    if config.rope_type == "llama3":
        return _llama3(config, base)
    if config.rope_type == "yarn":
        return _yarn(config, head_dim)
    return base


def _llama3(config: RopeConfig, base: Tensor) -> Tensor:
    wavelen = 2 * math.pi / base
    low_wavelen = config.original_max_len / config.low_freq_factor
    high_wavelen = config.original_max_len / config.high_freq_factor
    span = config.high_freq_factor - config.low_freq_factor
    smooth = (config.original_max_len / wavelen - config.low_freq_factor) / span
    slow = base / config.factor
    mixed = (1 - smooth) * slow + smooth * base
    return torch.where(
        wavelen > low_wavelen, slow, torch.where(wavelen < high_wavelen, base, mixed)
    )


def _yarn(config: RopeConfig, head_dim: int) -> Tensor:
    def dim_of(rotations: float) -> float:
        length = config.original_max_len / (rotations * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(config.theta))

    low, high = dim_of(config.beta_fast), dim_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    steps = torch.arange(head_dim // 2, dtype=torch.float32)
    keep = 1 - torch.clamp((steps - low) / (high - low), 0, 1)
    freqs = config.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return (1.0 / (config.factor * freqs)) * (1 - keep) + (1.0 / freqs) * keep


def rope_tables(
    config: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "t d"], Float[Tensor, "t d"]]:
    """cos and signed sin for positions 0..num_positions-1.

    The sign of the half-split rotation sits in the sine's first half, so that a rotation is
    `x * cos + roll(x, d/2) * sin`: two operations.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(config, head_dim)[None]
    cos, sin = angles.cos() * config.attention_factor, angles.sin() * config.attention_factor
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)
