"""Tensors of a GGUF file by their transformers names, dequantised when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from blockdraft.errors import UnsupportedError
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.targets.sources.gguf_groups import is_grouped, read_grouped
from blockdraft.targets.sources.gguf_header import GgufHeader
from blockdraft.targets.sources.gguf_quants import read_tensor

ROPE_FREQS = "rope_freqs.weight"

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufWeights(Mapping[str, Tensor]):
    """Lazy tensors under transformers names.

    Files of architecture "llama" hold the rows of queries and keys in the order that interleaved
    rotation needs (feature pairs side by side); transformers, and we, rotate halves. The order is
    put back here. Qwen files are not reordered.

    Raises: UnsupportedError naming tensors that the supported architectures do not have.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._names = {
            _transformers_name(header, name): name for name in header.tensors if name != ROPE_FREQS
        }
        arch = header.metadata["general.architecture"]
        num_heads = header.metadata[f"{arch}.attention.head_count"]
        self._reordered = {}
        if arch == "llama":
            num_kv_heads = header.metadata.get(f"{arch}.attention.head_count_kv", num_heads)
            self._reordered = {"attn_q": num_heads, "attn_k": num_kv_heads}

    def __getitem__(self, name: str) -> Tensor:
        stored = self._names[name]
        tensor = read_tensor(self._header.path, stored, self._header.tensors[stored])
        num_heads = self._num_heads_to_reorder(stored)
        return tensor if num_heads is None else pairs_to_halves(tensor, num_heads)

    def grouped(self, name: str) -> GroupedWeight | None:
        """A matrix as the file holds it, without dequantising it, where its type allows that."""
        stored = self._names[name]
        place = self._header.tensors[stored]
        weight = read_grouped(self._header.path, place) if is_grouped(place) else None
        num_heads = self._num_heads_to_reorder(stored)
        if weight is None or num_heads is None:
            return weight
        return weight.rows(pairs_to_halves(torch.arange(weight.shape[0]), num_heads))

    def _num_heads_to_reorder(self, stored: str) -> int | None:
        match = _LAYER.fullmatch(stored)
        return self._reordered.get(match[2]) if match else None

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def pairs_to_halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from (pair, side) order to (side, pair) order."""
    rows = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return rows.transpose(1, 2).reshape(tensor.shape)


def _transformers_name(header: GgufHeader, name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _INNER:
        raise UnsupportedError(f"{header.path}: tensor {name} is not implemented")
    return f"model.layers.{match[1]}.{_INNER[match[2]]}.{match[3]}"
