"""`config.json` of a z-lab drafter, read strictly and written in full.

The backbone is described at the top level as a Qwen3 config, the drafting in the table
`dflash_config`. Readers of this format look for the same key in different places, so a key may
stand in both; then both must agree, and both are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from blockdraft.drafters.config import DFlashConfig, Method
from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.layers.rope import RopeConfig
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.config_keys import KNOWN, is_harmless

_ARCHITECTURES: dict[str, Method] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
}
_BACKBONE_NEEDS = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
]
_DRAFT_NEEDS = ["block_size", "mask_token_id", "target_layer_ids", "num_target_layers"]
_SELECTOR_NEEDS = ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"]
_OPTIONAL = ["input_embedding_scale", "output_multiplier", "final_logit_softcapping"]
_DRAFT_KEYS = {*_DRAFT_NEEDS, *_SELECTOR_NEEDS, *_OPTIONAL}
_TOP_ONLY = {"dflash_config", "is_causal"}


def parse_zlab_config(raw: Mapping[str, Any]) -> DFlashConfig:
    """A drafter's config from the dict of its `config.json`.

    Raises: CheckpointError that lists the keys that are missing, unknown or contradictory.
    """
    method = _method(raw)
    draft = _draft_values(raw)
    _check_keys(method, raw, draft)
    backbone_raw = {k: v for k, v in raw.items() if k not in _DRAFT_KEYS | _TOP_ONLY}
    try:
        backbone = DecoderConfig.from_dict({**backbone_raw, "model_type": "qwen3"})
        return _build(method, backbone, draft, _causal(raw, backbone))
    except (ConfigError, UnsupportedError) as error:
        raise CheckpointError(str(error)) from error


def zlab_config_dict(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The dict to write as `config.json`.

    Raises: ConfigError for what the format cannot say: several windows, or causality that is
        neither the same in all layers nor "sliding layers only".
    """
    windows = {window for window in config.windows if window is not None}
    if len(windows) > 1:
        raise ConfigError(f"windows are {config.windows}; the z-lab format knows one width")
    draft = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "input_embedding_scale": config.input_embedding_scale,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.final_logit_softcapping,
    }
    if config.has_selector:
        draft |= {name: getattr(config, name) for name in _SELECTOR_NEEDS}
    return {
        "architectures": [name for name, m in _ARCHITECTURES.items() if m == config.method],
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
        "dflash_config": draft,
    }


def _method(raw: Mapping[str, Any]) -> Method:
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in _ARCHITECTURES:
        raise CheckpointError(
            f"architectures is {names!r}; a drafter names one of {', '.join(_ARCHITECTURES)}"
        )
    if raw.get("model_type", "qwen3") != "qwen3":
        raise CheckpointError(f"model_type is {raw['model_type']!r}; only 'qwen3' is implemented")
    return _ARCHITECTURES[names[0]]


def _draft_values(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Drafting keys that are set, from the table or else from the top level."""
    table = raw.get("dflash_config", {})
    if not isinstance(table, Mapping):
        raise CheckpointError(f"dflash_config is {table!r}; it must be a table")
    unknown = sorted(table.keys() - _DRAFT_KEYS)
    if unknown:
        raise CheckpointError(f"unknown keys in dflash_config: {', '.join(unknown)}")
    values: dict[str, Any] = {}
    for key in sorted(_DRAFT_KEYS):
        found = [place[key] for place in (table, raw) if place.get(key) is not None]
        if found and found[0] != found[-1]:
            raise CheckpointError(f"{key} is {found[0]} in dflash_config, but {found[1]} beside it")
        if found:
            values[key] = found[0]
    return values


def _check_keys(method: Method, raw: Mapping[str, Any], draft: Mapping[str, Any]) -> None:
    needs = _DRAFT_NEEDS + (_SELECTOR_NEEDS if method == "dflash2" else [])
    missing = [key for key in needs if key not in draft]
    missing += [key for key in _BACKBONE_NEEDS if raw.get(key) is None]
    rope = raw.get("rope_parameters") or {}
    if raw.get("rope_theta") is None and rope.get("rope_theta") is None:
        missing.append("rope_theta")
    if missing:
        raise CheckpointError(f"missing keys: {', '.join(missing)}")
    known = KNOWN["qwen3"] | _DRAFT_KEYS | _TOP_ONLY
    unknown = sorted(k for k, v in raw.items() if k not in known and not is_harmless(k, v))
    if unknown:
        raise CheckpointError(f"unknown keys: {', '.join(unknown)}")
    whole = [*_DRAFT_NEEDS, *_SELECTOR_NEEDS]
    wrong = [k for k in whole if k in draft and not _is_whole(draft[k], k == "target_layer_ids")]
    wrong += [k for k in _OPTIONAL if k in draft and not _is_number(draft[k])]
    if wrong:
        raise CheckpointError("; ".join(f"{k} is {draft[k]!r}, not a number" for k in wrong))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any, is_list: bool) -> bool:
    if is_list:
        return isinstance(value, list) and all(_is_whole(item, False) for item in value)
    return isinstance(value, int) and not isinstance(value, bool)


def _causal(raw: Mapping[str, Any], backbone: DecoderConfig) -> tuple[bool, ...]:
    """Of each layer: what `is_causal` says, else sliding layers are and full ones are not."""
    kinds = raw.get("layer_types") or []
    sliding = tuple(window is not None for window in backbone.windows)
    if any(kind == "sliding_attention" for kind in kinds) and not any(sliding):
        raise CheckpointError("layer_types has sliding layers, but sliding_window is not set")
    value = raw.get("is_causal")
    if value is None:
        return sliding
    if not isinstance(value, bool):
        raise CheckpointError(f"is_causal is {value!r}; it must be true or false")
    return (value,) * backbone.num_layers


def _build(
    method: Method, backbone: DecoderConfig, draft: Mapping[str, Any], causal: tuple[bool, ...]
) -> DFlashConfig:
    softcap = float(draft.get("final_logit_softcapping", 0.0))
    return DFlashConfig(
        method=method,
        num_layers=backbone.num_layers,
        hidden_size=backbone.hidden_size,
        intermediate_size=backbone.intermediate_size,
        num_heads=backbone.num_heads,
        num_kv_heads=backbone.num_kv_heads,
        head_dim=backbone.head_dim,
        vocab_size=backbone.vocab_size,
        max_context_len=backbone.max_context_len,
        norm_eps=backbone.norm_eps,
        rope=backbone.rope,
        windows=backbone.windows,
        causal=causal,
        attention_bias=backbone.o_bias,
        block_size=draft["block_size"],
        mask_token_id=draft["mask_token_id"],
        target_layer_ids=tuple(draft["target_layer_ids"]),
        num_target_layers=draft["num_target_layers"],
        conv_kernel_size=draft.get("conv_kernel_size", 0),
        conv_group_size=draft.get("conv_group_size", 0),
        selector_rank=draft.get("selector_rank", 0),
        selector_top_k=draft.get("selector_top_k", 0),
        input_embedding_scale=float(draft.get("input_embedding_scale", 1.0)),
        output_multiplier=float(draft.get("output_multiplier", 1.0)),
        final_logit_softcapping=softcap or None,  # 0 says "none"
    )


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
