"""A drafter to start training from, for any target.

Every part that is new starts without effect: convolutions at identity, the selector at zero. So a
fresh DFlash 2 drafter gives the same drafts as a DFlash drafter with the same layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.drafters.config import (
    SELECTOR_FIELDS,
    DFlashConfig,
    Method,
    spread_target_layers,
)
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS, draft_vocab_fault
from blockdraft.drafters.tensors import check_tensors, tensor_shapes
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.layers.rope import RopeConfig
from blockdraft.types import TargetInfo

_STD = 0.02

#: Tensors of a drafter's layer that a target's layer need not have.
_MAY_BE_ABSENT = ("q_norm.weight", "k_norm.weight", ".bias")


def init_drafter(
    target: TargetInfo,
    target_config: Mapping[str, Any],
    *,
    method: Method,
    mask_token_id: int,
    num_layers: int = 3,
    block_size: int = 8,
    window: int | None = None,
    is_causal: bool = False,
    target_layer_ids: tuple[int, ...] | None = None,
    num_taps: int = 5,
    conv_kernel_size: int = 2,
    conv_group_size: int = 16,
    selector_rank: int = 64,
    selector_top_k: int = 16,
    draft_vocab_ids: Sequence[int] | None = None,
    input_embedding_scale: float = 1.0,
    seed: int = 0,
    copy_layers_from: Mapping[str, Tensor] | None = None,
) -> tuple[DFlashConfig, dict[str, Tensor]]:
    """Config and float32 tensors of an untrained drafter with the target's shapes.

    Args:
        mask_token_id: a token that text never holds; its embedding marks the slots to fill. One
            that ends the target's texts is warned about.
        window: sliding window of every layer; None attends to the whole context.
        target_layer_ids: layers to tap; None spreads `num_taps` by z-lab's rule.
        draft_vocab_ids: the tokens that can be drafted, ascending; None for all.
        input_embedding_scale: what the target multiplies its embedding by, if it does.
        copy_layers_from: the target's tensors by their transformers names; its last layers and
            final norm become the drafter's. None draws them.
    Raises: ConfigError if the shapes do not go together, the mask could be drafted, or the target's
        layers cannot be copied.
    """
    _check_mask(target, mask_token_id, draft_vocab_ids)
    fields = _target_fields(target, target_config, copy_layers_from or {})
    if method == "dflash2":
        sizes = (conv_kernel_size, conv_group_size, selector_rank, selector_top_k)
        fields |= zip(SELECTOR_FIELDS, sizes, strict=True)
    ids = _draft_vocab(draft_vocab_ids, target.vocab_size, mask_token_id)
    config = DFlashConfig(
        **fields,
        method=method,
        num_layers=num_layers,
        windows=(window,) * num_layers,
        causal=(is_causal,) * num_layers,
        block_size=block_size,
        mask_token_id=mask_token_id,
        draft_vocab_size=len(ids),
        target_layer_ids=target_layer_ids or spread_target_layers(target.num_layers, num_taps),
        input_embedding_scale=input_embedding_scale,
    )
    tensors = _fresh_tensors(config, ids, seed)
    if copy_layers_from is not None:
        _copy_layers(config, tensors, target_config, copy_layers_from)
    return config, tensors


def _check_mask(
    target: TargetInfo, mask_token_id: int, draft_vocab_ids: Sequence[int] | None
) -> None:
    """A mask that is an end token is told now, not when the drafter is trained and drafts badly."""
    if mask_token_id not in target.end_ids:
        return
    what = f"mask_token_id is {mask_token_id}, an end token of {target.name}"
    cure = "name a token that text never holds, or none to have one found"
    if draft_vocab_ids is not None and mask_token_id in draft_vocab_ids:
        raise ConfigError(f"{what}, which the draft vocabulary holds too; {cure}")
    warnings.warn(f"{what}: the drafter will draft badly; {cure}", stacklevel=3)


def _draft_vocab(ids: Sequence[int] | None, vocab_size: int, mask_token_id: int) -> Tensor:
    """The tokens to draft from, checked; empty for the whole vocabulary."""
    if ids is None:
        return torch.empty(0, dtype=torch.int64)
    tensor = torch.tensor(list(ids), dtype=torch.int64)
    fault = draft_vocab_fault(tensor, vocab_size, mask_token_id)
    if fault is not None:
        raise ConfigError(fault)
    return tensor


def _target_fields(
    target: TargetInfo, target_config: Mapping[str, Any], source: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What a drafter's config takes over from its target."""
    num_heads = _need(target_config, "num_attention_heads")
    has_bias = any(name.endswith("self_attn.q_proj.bias") for name in source)
    return {
        "hidden_size": target.hidden_size,
        "intermediate_size": _need(target_config, "intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": target_config.get("num_key_value_heads") or num_heads,
        "head_dim": target_config.get("head_dim") or target.hidden_size // num_heads,
        "vocab_size": target.vocab_size,
        "max_context_len": target.max_context_len,
        "norm_eps": target_config.get("rms_norm_eps") or 1e-6,
        "rope": RopeConfig.from_dict(target_config),
        "num_target_layers": target.num_layers,
        "final_logit_softcapping": target_config.get("final_logit_softcapping"),
        "attention_bias": bool(target_config.get("attention_bias")) or has_bias,
    }


def _need(target_config: Mapping[str, Any], key: str) -> int:
    value = target_config.get(key)
    if not isinstance(value, int):
        raise ConfigError(f"{key} is {value!r} in the target's config; a drafter needs its number")
    return value


def _fresh_tensors(config: DFlashConfig, ids: Tensor, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: ids if name == DRAFT_VOCAB_IDS else _start(name)(torch.empty(shape), generator)
        for name, shape in tensor_shapes(config).items()
    }


def _start(name: str) -> Callable[[Tensor, torch.Generator], Tensor]:
    """How a tensor starts, by its name."""
    if name.endswith("norm.weight"):
        return lambda tensor, _: tensor.fill_(1)
    if name.endswith(".base_kernel"):
        return lambda tensor, _: tensor.zero_().index_fill_(1, torch.tensor(0), 1)
    if name.endswith((".bias", ".kernel_projection.weight", ".successor_codebook")):
        return lambda tensor, _: tensor.zero_()
    return lambda tensor, generator: tensor.normal_(0, _STD, generator=generator)


def _copy_layers(
    config: DFlashConfig,
    tensors: dict[str, Tensor],
    target_config: Mapping[str, Any],
    source: Mapping[str, Tensor],
) -> None:
    """Overwrite layers with the target's last ones. What the target lacks keeps its start."""
    if target_config.get("hidden_act", "silu") != "silu":
        raise ConfigError(
            f"hidden_act of the target is {target_config['hidden_act']!r}; only layers with 'silu'"
            " can be copied"
        )
    first = config.num_target_layers - config.num_layers
    if first < 0:
        raise ConfigError(
            f"cannot copy {config.num_layers} layers from a target of {config.num_target_layers}"
        )
    for name in tensors:
        origin = _origin(name, first)
        if origin is None:
            continue
        if origin in source:
            tensors[name] = source[origin].detach().to(torch.float32).clone()
        elif not origin.endswith(_MAY_BE_ABSENT):
            raise ConfigError(f"the target has no tensor {origin} to copy")
    try:
        check_tensors(config, tensors)
    except CheckpointError as error:
        raise ConfigError(f"the target's layers cannot be copied: {error}") from error


def _origin(name: str, first: int) -> str | None:
    """The target's tensor that a drafter's tensor is copied from."""
    if name == "norm.weight":
        return "model.norm.weight"
    if not name.startswith("layers.") or "_conv." in name:
        return None
    _, index, rest = name.split(".", 2)
    return f"model.layers.{first + int(index)}.{rest}"
