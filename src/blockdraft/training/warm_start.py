"""Start a drafter from its target's last layers (the idea is ours; evidence in docs/log.md).

The drafter's layer j becomes target layer L - n + j. A target layer normalises its input with gains
of its own, but context rows reach a drafter's layer with one shared norm: so the gains go into the
columns of q, k and v, and the drafter's input norm becomes 1. `fc` passes the latest tap through,
so that a layer's context keys and values begin as the target's own, made from that tap. Targets
without query and key norms get gains that restore the size their queries and keys have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from blockdraft.drafters.config import DFlashConfig

#: Size of queries and keys where no features are at hand to measure it.
_USUAL_RMS = 2.0

#: Of the taps that do not start as the context: enough to break ties, too little to disturb.
_NOISE = 0.01


def warm_start(
    config: DFlashConfig,
    tensors: Mapping[str, Tensor],
    features: Float[Tensor, "n f"] | None = None,
    *,
    has_qk_norm: bool = False,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Tensors to start from, out of copied layers (see `init_drafter(copy_layers_from=...)`).

    Args:
        tensors: with the target's layers copied as they are.
        features: some of the target's hidden states, to measure queries and keys on.
        has_qk_norm: the target has query and key norms of its own, which are kept.
    """
    out = {name: tensor.clone() for name, tensor in tensors.items()}
    rows = _last_tap(config, features)
    for j in range(config.num_layers):
        name = f"layers.{j}."
        gain = out[f"{name}input_layernorm.weight"].clone()
        for part in "qkv":
            out[f"{name}self_attn.{part}_proj.weight"] *= gain
        out[f"{name}input_layernorm.weight"].fill_(1)
        if not has_qk_norm:
            for part in "qk":
                weight = out[f"{name}self_attn.{part}_proj.weight"]
                out[f"{name}self_attn.{part}_norm.weight"].fill_(_rms(config, rows, weight))
    generator = torch.Generator().manual_seed(seed)
    width = config.hidden_size
    fc = torch.randn(out["fc.weight"].shape, generator=generator) * _NOISE * width**-0.5
    start = _latest(config) * width
    fc[:, start : start + width] += torch.eye(width)
    out["fc.weight"], out["hidden_norm.weight"] = fc, torch.ones(width)
    return out


def _last_tap(config: DFlashConfig, features: Tensor | None) -> Tensor | None:
    if features is None:
        return None
    start = _latest(config) * config.hidden_size
    rows = features[:, start : start + config.hidden_size].float()
    return F.rms_norm(rows, rows.shape[-1:], eps=config.norm_eps)


def _latest(config: DFlashConfig) -> int:
    """Place of the deepest tap among the features."""
    return config.target_layer_ids.index(max(config.target_layer_ids))


def _rms(config: DFlashConfig, rows: Tensor | None, weight: Tensor) -> float:
    if rows is None:
        return _USUAL_RMS
    heads = F.linear(rows, weight).view(len(rows), -1, config.head_dim)
    return float(heads.square().mean(-1).sqrt().mean())
