"""A tiny random Llama as a folder on disk: config, weights, tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.fakes.models import random_weights, tiny_config
from tests.targets.tiny_tokenizers import byte_level_tokenizer

#: Enough layers for the five taps of a drafter, and a context for the prompts of the demo.
CONFIG = tiny_config(vocab_size=272, num_layers=8, max_context_len=640)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config_json(**changes: Any) -> dict[str, Any]:
    """The folder's `config.json`, with some keys changed."""
    tokenizer = byte_level_tokenizer()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": CONFIG.model_type,
        "vocab_size": CONFIG.vocab_size,
        "hidden_size": CONFIG.hidden_size,
        "intermediate_size": CONFIG.intermediate_size,
        "num_hidden_layers": CONFIG.num_layers,
        "num_attention_heads": CONFIG.num_heads,
        "num_key_value_heads": CONFIG.num_kv_heads,
        "head_dim": CONFIG.head_dim,
        "rms_norm_eps": CONFIG.norm_eps,
        "max_position_embeddings": CONFIG.max_context_len,
        "rope_theta": CONFIG.rope.theta,
        "tie_word_embeddings": CONFIG.tie_embeddings,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    } | changes


def write_target(folder: Path, **changes: Any) -> Path:
    """Write the model; `changes` go to its config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json(**changes)))
    save_file(random_weights(CONFIG), folder / "model.safetensors")
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
