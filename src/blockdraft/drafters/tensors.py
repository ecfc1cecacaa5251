"""The tensors of a DFlash-family drafter, by their z-lab names: which there must be, and checks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS, draft_vocab_fault
from blockdraft.errors import CheckpointError

#: Faults listed in one message; the rest is counted.
_MAX_LISTED = 8


def tensor_shapes(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the drafter and its shape. Embedding and head are the target's.

    With a draft vocabulary of d tokens there is `draft_vocab_ids` (int64, ascending), and codebooks
    have a row for each of them; predecessors have one more, for every other token.
    """
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, config.feature_size),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(config).items()}
    if config.draft_vocab_size:
        shapes[DRAFT_VOCAB_IDS] = (config.draft_vocab_size,)
    if config.has_selector:
        rows, rank = config.num_draftable_tokens, config.selector_rank
        num_others = 1 if config.draft_vocab_size else 0
        shapes |= {
            "candidate_selector.predecessor_codebook": (rows + num_others, rank),
            "candidate_selector.successor_codebook": (rows, rank),
            "candidate_selector.hidden_projection.weight": (config.selector_rank, width),
        }
    return shapes


def _layer_shapes(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    width, mlp = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    products = {"q": (q, width), "k": (kv, width), "v": (kv, width), "o": (width, q)}
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_norm.weight": (config.head_dim,),
        "self_attn.k_norm.weight": (config.head_dim,),
        "mlp.gate_proj.weight": (mlp, width),
        "mlp.up_proj.weight": (mlp, width),
        "mlp.down_proj.weight": (width, mlp),
    }
    for name, shape in products.items():
        shapes[f"self_attn.{name}_proj.weight"] = shape
        if config.attention_bias:
            shapes[f"self_attn.{name}_proj.bias"] = shape[:1]
    if config.has_selector:
        taps, groups = config.conv_kernel_size, width // config.conv_group_size
        for conv in ("attention_conv", "mlp_conv"):
            shapes[f"{conv}.base_kernel"] = (2, taps, width)
            shapes[f"{conv}.kernel_projection.weight"] = (2 * taps * groups, width)
    return shapes


def check_tensors(config: DFlashConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless these are exactly the tensors that the config asks for."""
    shapes = tensor_shapes(config)
    faults = [f"missing {name}" for name in sorted(shapes.keys() - tensors.keys())]
    faults += [f"unexpected {name}" for name in sorted(tensors.keys() - shapes.keys())]
    for name in sorted(shapes.keys() & tensors.keys()):
        fault = _fault(config, name, tensors[name], shapes[name])
        faults += [] if fault is None else [fault]
    if faults:
        more = f" (and {len(faults) - _MAX_LISTED} more)" if len(faults) > _MAX_LISTED else ""
        raise CheckpointError(
            f"the tensors do not fit the {config.method} config:"
            f" {'; '.join(faults[:_MAX_LISTED])}{more}"
        )


def _fault(config: DFlashConfig, name: str, tensor: Tensor, shape: tuple[int, ...]) -> str | None:
    if tuple(tensor.shape) != shape:
        return f"{name} is {tuple(tensor.shape)}, not {shape}"
    if name == DRAFT_VOCAB_IDS:
        if tensor.dtype != torch.int64:
            return f"{name} holds {tensor.dtype}, not token ids (torch.int64)"
        return draft_vocab_fault(tensor, config.vocab_size, config.mask_token_id)
    if not tensor.is_floating_point():
        return f"{name} holds {tensor.dtype}, not floating-point numbers"
    if not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        return f"{name} holds non-finite numbers"
    return None
