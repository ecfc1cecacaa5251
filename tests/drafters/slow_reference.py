"""A slow drafter, written from the formulas: one sequence, no cache, masks by position.

Rows are recomputed from scratch at every call; nothing is shared with the fast drafter but the
tensors, the rotary tables and the target.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockdraft.drafters.config import DFlashConfig
from blockdraft.layers.rope import inverse_frequencies


def is_visible(config: DFlashConfig, layer: int, q_pos: int, k_pos: int, anchor: int) -> bool:
    """Whether the block row at q_pos sees the row (context or block) at k_pos."""
    window, is_causal = config.windows[layer], config.causal[layer]
    if k_pos >= anchor and is_causal and k_pos > q_pos:
        return False
    if window is None:
        return True
    return q_pos - k_pos < window and (is_causal or k_pos - q_pos < window)


def slow_hidden(
    config: DFlashConfig, tensors: dict[str, Tensor], features: Tensor, rows: Tensor
) -> Tensor:
    """Final-normed block rows [t, m] after `features` [a, f]; block rows stand at a, a+1, .."""
    anchor = len(features)
    context = _norm(features @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], config)
    for layer in range(config.num_layers):
        t = {
            name.removeprefix(f"layers.{layer}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"layers.{layer}.")
        }
        u = _norm(rows, t["input_layernorm.weight"], config)
        mixed, after = _enter(config, t, "attention_conv", u)
        rows = rows + _leave(after, _attend(config, t, layer, context, mixed, anchor))
        u = _norm(rows, t["post_attention_layernorm.weight"], config)
        mixed, after = _enter(config, t, "mlp_conv", u)
        gate = F.silu(mixed @ t["mlp.gate_proj.weight"].T) * (mixed @ t["mlp.up_proj.weight"].T)
        rows = rows + _leave(after, gate @ t["mlp.down_proj.weight"].T)
    return _norm(rows, tensors["norm.weight"], config)


def slow_edge(tensors: dict[str, Tensor], hidden: Tensor, before: int, token: int) -> float:
    """What the selector adds to `token` after `before` at a slot with this hidden row."""
    gate = tensors["candidate_selector.hidden_projection.weight"] @ hidden
    predecessor = tensors["candidate_selector.predecessor_codebook"][before]
    successor = tensors["candidate_selector.successor_codebook"][token]
    return float((predecessor * gate * successor).sum())


def _norm(x: Tensor, weight: Tensor, config: DFlashConfig) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight


def _kernel(config: DFlashConfig, t: dict[str, Tensor], name: str, side: int, u: Tensor) -> Tensor:
    """Kernels [rows, taps, m] of one side, channel by channel."""
    taps, width, group = config.conv_kernel_size, config.hidden_size, config.conv_group_size
    delta = (u @ t[f"{name}.kernel_projection.weight"].T).view(len(u), 2, taps, width // group)
    base = t[f"{name}.base_kernel"][side]
    return torch.stack([base[:, m] + delta[:, side, :, m // group] for m in range(width)], -1)


def _convolve(kernel: Tensor, z: Tensor) -> Tensor:
    out = torch.zeros_like(z)
    for k in range(len(z)):
        for tap in range(kernel.shape[1]):
            if tap <= k:
                out[k] += kernel[k, tap] * z[k - tap]
    return out


def _enter(
    config: DFlashConfig, t: dict[str, Tensor], name: str, u: Tensor
) -> tuple[Tensor, Tensor | None]:
    if not config.has_selector:
        return u, None
    return _convolve(_kernel(config, t, name, 0, u), u), _kernel(config, t, name, 1, u)


def _leave(kernel: Tensor | None, z: Tensor) -> Tensor:
    return z if kernel is None else _convolve(kernel, z)


def _project(
    config: DFlashConfig, t: dict[str, Tensor], part: str, rows: Tensor, first: int
) -> Tensor:
    """Heads [rows, h, d] of q, k or v; q and k normed and turned by position."""
    heads = F.linear(
        rows, t[f"self_attn.{part}_proj.weight"], t.get(f"self_attn.{part}_proj.bias")
    ).unflatten(-1, (-1, config.head_dim))
    if part == "v":
        return heads
    heads = _norm(heads, t[f"self_attn.{part}_norm.weight"], config)
    positions = torch.arange(first, first + len(rows))[:, None, None]
    angles = positions * inverse_frequencies(config.rope, config.head_dim)
    a, b = heads.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def _attend(
    config: DFlashConfig, t: dict[str, Tensor], layer: int, context: Tensor, u: Tensor, anchor: int
) -> Tensor:
    q = _project(config, t, "q", u, anchor)
    k = torch.cat([_project(config, t, "k", context, 0), _project(config, t, "k", u, anchor)])
    v = torch.cat([_project(config, t, "v", context, 0), _project(config, t, "v", u, anchor)])
    out = torch.zeros_like(q)
    share = config.num_heads // config.num_kv_heads
    for row in range(len(u)):
        seen = [s for s in range(len(k)) if is_visible(config, layer, anchor + row, s, anchor)]
        for head in range(config.num_heads):
            scores = k[seen, head // share] @ q[row, head] / config.head_dim**0.5
            out[row, head] = scores.softmax(0) @ v[seen, head // share]
    return F.linear(out.flatten(1), t["self_attn.o_proj.weight"], t.get("self_attn.o_proj.bias"))
