"""GGUF metadata to a transformers config. Strict: an unknown setting of the model is an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.layers.rope import RopeConfig, inverse_frequencies
from blockdraft.targets.sources.gguf_header import GgufHeader

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
#: Keys under the architecture's name that are read here, or that say nothing about the maths.
_KNOWN = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
#: Zero means: not a mixture of experts.
_KNOWN_IF_ZERO = {"expert_count", "expert_used_count"}

#: Constants of every Llama 3.1 - 3.3 model; the file holds only the factors they lead to.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def gguf_to_config(header: GgufHeader, rope_freqs: Tensor | None) -> dict[str, Any]:
    """The `config.json` this model would have in transformers.

    Args:
        header: of the GGUF file.
        rope_freqs: the tensor `rope_freqs.weight` (divisors of the rotary frequencies), if any.

    Raises:
        UnsupportedError: another architecture, or a setting that is not implemented.
        CheckpointError: a setting is missing or does not fit the tensors.
    """
    arch = header.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"{header.path}: architecture {arch!r} is not read from GGUF; "
            f"{', '.join(ARCHITECTURES)} are"
        )
    settings = _Settings(header, arch)
    settings.check_known()
    num_heads, hidden_size = settings.int("attention.head_count"), settings.int("embedding_length")
    head_dim = settings.int("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if settings.int(key, head_dim) != head_dim:
            raise UnsupportedError(
                f"{header.path}: {arch}.{key} is {settings.int(key)}; only the head width "
                f"({head_dim}) is implemented"
            )
    max_len = settings.int("context_length")
    return {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": _embedding_shape(header, hidden_size)[0],
        "hidden_size": hidden_size,
        "intermediate_size": settings.int("feed_forward_length"),
        "num_hidden_layers": settings.int("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": settings.int("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": settings.float("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": max_len,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(settings, head_dim, max_len, rope_freqs),
        **_biases(header, arch),
        "dtype": "float32",
    }


class _Settings:
    """The metadata under the architecture's name."""

    def __init__(self, header: GgufHeader, arch: str) -> None:
        self.path, self.prefix = header.path, arch + "."
        start = len(self.prefix)
        self.values: Mapping[str, Any] = {
            key[start:]: value
            for key, value in header.metadata.items()
            if key.startswith(self.prefix)
        }

    def check_known(self) -> None:
        for key, value in self.values.items():
            if key not in _KNOWN and not (key in _KNOWN_IF_ZERO and value == 0):
                raise UnsupportedError(
                    f"{self.path}: {self.prefix}{key} is {value!r}, which is not implemented; it "
                    f"may change the maths, so it is not ignored"
                )

    def int(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if isinstance(value, list):
            raise UnsupportedError(f"{self.path}: {self.prefix}{key} differs from layer to layer")
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.path}: {self.prefix}{key} is {value!r}; need 1 or more")
        return value

    def float(self, key: str, default: float | None = None) -> float:
        """The shortest decimal for the file's float32: 1e-05, not 9.999999747378752e-06."""
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or value <= 0:
            raise CheckpointError(f"{self.path}: {self.prefix}{key} is {value!r}; need above 0")
        return float(str(np.float32(value)))


def _embedding_shape(header: GgufHeader, hidden_size: int) -> tuple[int, ...]:
    place = header.tensors.get("token_embd.weight")
    if place is None or len(place.shape) != 2 or place.shape[1] != hidden_size:
        shape = None if place is None else place.shape
        raise CheckpointError(
            f"{header.path}: token_embd.weight is {shape}; need [vocabulary, {hidden_size}]"
        )
    return place.shape


def _biases(header: GgufHeader, arch: str) -> dict[str, bool]:
    """Llama's biases are told by their tensors; all or none, as transformers has it."""
    if arch == "qwen2":
        return {}
    found = {
        part: f"blk.0.{part}.bias" in header.tensors
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    }
    attention, mlp = list(found.values())[:4], list(found.values())[4:]
    if len(set(attention)) > 1 or len(set(mlp)) > 1:
        having = [part for part, is_there in found.items() if is_there]
        raise UnsupportedError(f"{header.path}: biases only in {', '.join(having)}")
    if arch == "qwen3":
        return {"attention_bias": attention[0]}
    return {"attention_bias": attention[0], "mlp_bias": mlp[0]}


def _rope(
    settings: _Settings, head_dim: int, max_len: int, rope_freqs: Tensor | None
) -> dict[str, Any]:
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": settings.float("rope.freq_base", 10_000.0),
    }
    kind = settings.values.get("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedError(f"{settings.path}: rotary scaling {kind!r} is not implemented")
    if kind != "none":
        rope |= {"rope_type": kind, "factor": settings.float("rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = settings.int(
            "rope.scaling.original_context_length"
        )
    if rope_freqs is None:
        return rope
    if kind != "none":
        raise UnsupportedError(f"{settings.path}: rope_freqs.weight and {kind} scaling together")
    return _llama3(settings, rope, head_dim, max_len, rope_freqs)


def _llama3(
    settings: _Settings, rope: dict[str, Any], head_dim: int, max_len: int, rope_freqs: Tensor
) -> dict[str, Any]:
    """Find the Llama 3 parameters behind the stored factors, and prove that they give them."""
    factor = float(rope_freqs.max())
    if factor > 1 and math.isfinite(factor) and rope_freqs.shape == (head_dim // 2,):
        scaled = {**rope, **_LLAMA3, "factor": factor}
        base, found = (
            inverse_frequencies(
                RopeConfig.from_dict({"rope_parameters": p, "max_position_embeddings": max_len}),
                head_dim,
            )
            for p in (rope, scaled)
        )
        if torch.allclose(base / found, rope_freqs.float(), rtol=1e-4):
            return scaled
    raise UnsupportedError(
        f"{settings.path}: rope_freqs.weight is not the scaling of Llama 3; it is not implemented"
    )
