"""Weights of a DFlash-family backbone, packed for serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.kernels.base import GatedPair, Kernels, Linear
from blockdraft.layers.conv import BlockConv

#: Gives a tensor by its z-lab name, in the run dtype.
Take = Callable[[str], Tensor]


@dataclass(frozen=True)
class Layer:
    """One drafter layer. `qk_scale` [h + g, d] is the norm weight of each query and key head."""

    input_norm: Tensor
    qkv: Linear
    qk_scale: Tensor
    out: Linear
    mlp_norm: Tensor
    gate_up: GatedPair
    down: Linear
    attention_conv: BlockConv | None
    mlp_conv: BlockConv | None
    window: int | None
    is_causal: bool


@dataclass(frozen=True)
class ContextWeights:
    """What turns features into keys and values: all layers in one product.

    `keys_values` gives all layers' keys, then all layers' values; `k_scale` [l, 1, d] is the norm
    weight of each layer's keys.
    """

    fc: Linear
    norm: Tensor
    keys_values: Linear
    k_scale: Tensor


def pack_layer(config: DFlashConfig, take: Take, kernels: Kernels, index: int) -> Layer:
    """Pack layer `index`."""
    name = f"layers.{index}."
    heads = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads}
    scales = [take(f"{name}self_attn.{k}.weight").expand(n, -1) for k, n in heads.items()]
    return Layer(
        input_norm=take(f"{name}input_layernorm.weight"),
        qkv=kernels.linear(*_stacked(config, take, [f"{name}self_attn.{p}_proj" for p in "qkv"])),
        qk_scale=torch.cat(scales),
        out=kernels.linear(*_stacked(config, take, [f"{name}self_attn.o_proj"])),
        mlp_norm=take(f"{name}post_attention_layernorm.weight"),
        gate_up=kernels.gated_pair(
            take(f"{name}mlp.gate_proj.weight"), take(f"{name}mlp.up_proj.weight")
        ),
        down=kernels.linear(take(f"{name}mlp.down_proj.weight")),
        attention_conv=_conv(config, take, kernels, f"{name}attention_conv"),
        mlp_conv=_conv(config, take, kernels, f"{name}mlp_conv"),
        window=config.windows[index],
        is_causal=config.causal[index],
    )


def pack_context(config: DFlashConfig, take: Take, kernels: Kernels) -> ContextWeights:
    """Pack the feature projection and every layer's key and value weights."""
    layers = range(config.num_layers)
    names = [f"layers.{i}.self_attn.{part}_proj" for part in "kv" for i in layers]
    return ContextWeights(
        fc=kernels.linear(take("fc.weight")),
        norm=take("hidden_norm.weight"),
        keys_values=kernels.linear(*_stacked(config, take, names)),
        k_scale=torch.stack([take(f"layers.{i}.self_attn.k_norm.weight") for i in layers])[:, None],
    )


def _stacked(config: DFlashConfig, take: Take, names: list[str]) -> tuple[Tensor, Tensor | None]:
    weight = torch.cat([take(f"{name}.weight") for name in names])
    if not config.attention_bias:
        return weight, None
    return weight, torch.cat([take(f"{name}.bias") for name in names])


def _conv(config: DFlashConfig, take: Take, kernels: Kernels, name: str) -> BlockConv | None:
    if not config.has_selector:
        return None
    projection = kernels.linear(take(f"{name}.kernel_projection.weight"))
    return BlockConv(projection, take(f"{name}.base_kernel"), config.conv_group_size)
