"""`config.json` of a z-lab drafter, written in full.

Readers of this format look for the same key in different places and fill in different defaults, so
nothing is left out: `block_size` stands in both places, `is_causal` is explicit.
"""

from __future__ import annotations

from typing import Any

import torch

from blockdraft.drafters.config import SELECTOR_FIELDS, DFlashConfig
from blockdraft.errors import ConfigError
from blockdraft.interop.zlab_config import ARCHITECTURES, DRAFT_VOCAB_SIZE
from blockdraft.layers.rope import RopeConfig


def zlab_config_dict(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The dict to write as `config.json`.

    Raises: ConfigError for what the format cannot say: several windows, or causality that is
        neither the same in all layers nor "sliding layers only".
    """
    windows = {window for window in config.windows if window is not None}
    if len(windows) > 1:
        raise ConfigError(f"windows are {config.windows}; the z-lab format knows one width")
    return {
        "architectures": [name for name, m in ARCHITECTURES.items() if m == config.method],
        "model_type": "qwen3",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_context_len,
        "rope_theta": config.rope.theta,
        "rope_parameters": _rope_dict(config.rope),
        "layer_types": [
            "full_attention" if window is None else "sliding_attention" for window in config.windows
        ],
        "use_sliding_window": bool(windows),
        "sliding_window": next(iter(windows), None),
        "max_window_layers": 0 if windows else config.num_layers,
        "is_causal": _is_causal_value(config),
        "tie_word_embeddings": False,
        "use_cache": True,
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": _draft_table(config),
    }


def _draft_table(config: DFlashConfig) -> dict[str, Any]:
    draft: dict[str, Any] = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "input_embedding_scale": config.input_embedding_scale,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.final_logit_softcapping,
    }
    if config.has_selector:
        draft |= {name: getattr(config, name) for name in SELECTOR_FIELDS}
    if config.draft_vocab_size:
        draft[DRAFT_VOCAB_SIZE] = config.draft_vocab_size
    return draft


def _is_causal_value(config: DFlashConfig) -> bool | None:
    """The file's `is_causal`: None where the default rule is the only way to say it."""
    if len(set(config.causal)) == 1:
        return config.causal[0]
    if config.causal == tuple(window is not None for window in config.windows):
        return None
    raise ConfigError(f"causal is {config.causal}; the z-lab format cannot mix it so")


def _rope_dict(rope: RopeConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"rope_type": rope.rope_type, "rope_theta": rope.theta}
    if rope.rope_type != "default":
        values["factor"] = rope.factor
    if rope.rope_type in ("llama3", "yarn"):
        values["original_max_position_embeddings"] = rope.original_max_len
    if rope.rope_type == "llama3":
        values |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
        }
    if rope.rope_type == "yarn":
        values |= {
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "attention_factor": rope.attention_factor,
            "truncate": rope.truncate,
        }
    return values
