"""Weights of a Llama-type decoder: which there must be, and how a layer is packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blockdraft.errors import CheckpointError
from blockdraft.kernels.base import GatedPair, Kernels, Linear
from blockdraft.targets.config import DecoderConfig

#: Buffers that older checkpoints carry and that the config already says.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class Layer:
    """One decoder layer: norms as they are, products packed."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: GatedPair
    down: Linear
    window: int | None


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the decoder needs, by its transformers name."""
    width, q, kv = config.hidden_size, config.num_heads, config.num_kv_heads
    q, kv, mlp = q * config.head_dim, kv * config.head_dim, config.intermediate_size
    products = {
        "self_attn.q_proj": (q, width, config.qkv_bias),
        "self_attn.k_proj": (kv, width, config.qkv_bias),
        "self_attn.v_proj": (kv, width, config.qkv_bias),
        "self_attn.o_proj": (width, q, config.o_bias),
        "mlp.gate_proj": (mlp, width, config.mlp_bias),
        "mlp.up_proj": (mlp, width, config.mlp_bias),
        "mlp.down_proj": (width, mlp, config.mlp_bias),
    }
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    for i in range(config.num_layers):
        prefix = f"model.layers.{i}."
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        for name, (rows, columns, has_bias) in products.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


class HasShape(Protocol):
    """A tensor, or what stands for one."""

    @property
    def shape(self) -> torch.Size: ...


def check_weights(config: DecoderConfig, weights: Mapping[str, HasShape]) -> None:
    """Raise CheckpointError unless the tensors are exactly those the config asks for.

    A tied model may carry a copy of its head: it is used, and must have the right shape.
    """
    expected = expected_shapes(config)
    allowed = expected | {"lm_head.weight": expected["model.embed_tokens.weight"]}
    names = {name for name in weights if not name.endswith(_IGNORED_SUFFIXES)}
    faults = [f"missing {name}" for name in sorted(expected.keys() - names)]
    faults += [f"unexpected {name}" for name in sorted(names - allowed.keys())]
    faults += [
        f"{name} is {tuple(weights[name].shape)}, not {allowed[name]}"
        for name in sorted(names & allowed.keys())
        if tuple(weights[name].shape) != allowed[name]
    ]
    if faults:
        more = f" (and {len(faults) - 8} more)" if len(faults) > 8 else ""
        raise CheckpointError(
            f"the weights do not fit the {config.model_type} config: {'; '.join(faults[:8])}{more}"
        )


def pack_layer(
    config: DecoderConfig, take: Callable[[str], Tensor], kernels: Kernels, i: int
) -> Layer:
    """Pack layer i; `take` gives a weight by its transformers name."""
    name = f"model.layers.{i}."

    def bias(parts: Sequence[str], present: bool) -> Tensor | None:
        return torch.cat([take(f"{name}{p}.bias") for p in parts]) if present else None

    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    mlp_bias = config.mlp_bias
    return Layer(
        input_norm=take(name + "input_layernorm.weight"),
        qkv=kernels.linear(
            torch.cat([take(f"{name}{part}.weight") for part in qkv]),
            bias(qkv, config.qkv_bias),
        ),
        q_norm=take(name + "self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=take(name + "self_attn.k_norm.weight") if config.qk_norm else None,
        out=kernels.linear(
            take(name + "self_attn.o_proj.weight"), bias(["self_attn.o_proj"], config.o_bias)
        ),
        mlp_norm=take(name + "post_attention_layernorm.weight"),
        gate_up=kernels.gated_pair(
            take(name + "mlp.gate_proj.weight"),
            take(name + "mlp.up_proj.weight"),
            bias(["mlp.gate_proj"], mlp_bias),
            bias(["mlp.up_proj"], mlp_bias),
        ),
        down=kernels.linear(take(name + "mlp.down_proj.weight"), bias(["mlp.down_proj"], mlp_bias)),
        window=config.windows[i],
    )
