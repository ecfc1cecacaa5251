"""`config.json` of a z-lab drafter, read strictly.

The backbone is described at the top level as a Qwen3 config, the drafting in the table
`dflash_config`. Readers of this format look for the same key in different places, so a key may
stand in both; then both must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockdraft.drafters.config import SELECTOR_FIELDS, DFlashConfig, Method
from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.config_keys import KNOWN, is_harmless

#: The file's name of each method.
ARCHITECTURES: dict[str, Method] = {
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
_OPTIONAL = ["input_embedding_scale", "output_multiplier", "final_logit_softcapping"]
#: Ours: other readers of the format know no draft vocabulary (`expand_vocab` makes it whole).
DRAFT_VOCAB_SIZE = "draft_vocab_size"
_DRAFT_KEYS = {*_DRAFT_NEEDS, *SELECTOR_FIELDS, *_OPTIONAL, DRAFT_VOCAB_SIZE}
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


def _method(raw: Mapping[str, Any]) -> Method:
    names = raw.get("architectures")
    if names not in [[known] for known in ARCHITECTURES]:
        raise CheckpointError(
            f"architectures is {names!r}; a drafter names one of {', '.join(ARCHITECTURES)}"
        )
    if raw.get("model_type", "qwen3") != "qwen3":
        raise CheckpointError(f"model_type is {raw['model_type']!r}; only 'qwen3' is implemented")
    return ARCHITECTURES[names[0]]


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
    needs = [*_DRAFT_NEEDS, *(SELECTOR_FIELDS if method == "dflash2" else ())]
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
    whole = [*_DRAFT_NEEDS, *SELECTOR_FIELDS, DRAFT_VOCAB_SIZE]
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
        draft_vocab_size=draft.get(DRAFT_VOCAB_SIZE, 0),
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
