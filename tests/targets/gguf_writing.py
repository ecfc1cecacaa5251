"""GGUF files of tiny models, written with the `gguf` package as converters write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def tokenizer_metadata(size: int = 300, **changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary: special tokens, 256 bytes, a few merges, unused entries."""
    alphabet = sorted(ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("1", "2"), ("\u0120", "a")]
    merges += [("\u0120", "\u0120"), ("\u0120", "1"), ("\u010a", "\u010a")]
    tokens = [*SPECIALS, *alphabet, *(a + b for a, b in merges), "<tool>"]
    kinds = [3] * len(SPECIALS) + [1] * (len(alphabet) + len(merges)) + [4]
    kinds += [5] * (size - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(size - len(tokens))]
    written = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": kinds,
        "merges": [f"{a} {b}" for a, b in merges],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    written |= {"chat_template": CHATML, **changes}
    return {key: value for key, value in written.items() if value is not None}


def write_gguf(
    path: Path,
    arch: str,
    tensors: Mapping[str, Tensor],
    config: Any,
    *,
    quants: Mapping[str, Quant] | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a model: `quants` by transformers name, `settings` under the architecture's name."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (settings or {}).items():
        _add(writer, f"{arch}.{key}", value)
    for key, value in (tokenizer_metadata() if tokenizer is None else tokenizer).items():
        name = "tokenizer.chat_template" if key == "chat_template" else f"tokenizer.ggml.{key}"
        _add(writer, name, value)
    for name, tensor in tensors.items():
        data = tensor.numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            is_query = "q_proj" in name
            heads = config.num_attention_heads if is_query else config.num_key_value_heads
            data = interleave(data, heads)
        quant = (quants or {}).get(name, Quant.F32)
        writer.add_tensor(gguf_name(name), gguf.quantize(data, quant), raw_dtype=quant)
    for name, data in (extra or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def interleave(data: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head: from halves to pairs side by side, as converters of Llama files do."""
    half = data.shape[0] // num_heads // 2
    rows = np.arange(data.shape[0]).reshape(num_heads, 2, half)
    return np.ascontiguousarray(data[rows.swapaxes(1, 2).reshape(-1)])


def gguf_name(name: str) -> str:
    """A transformers name in GGUF's words."""
    module, kind = name.rsplit(".", 1)
    if module in _OUTER:
        return f"{_OUTER[module]}.{kind}"
    _, _, index, part = module.split(".", 3)
    return f"blk.{index}.{_PARTS[part]}.{kind}"
