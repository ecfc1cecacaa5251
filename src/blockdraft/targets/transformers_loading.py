"""From checked files to a transformers model, strictly."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.targets.rollback import check_can_roll_back
from blockdraft.targets.sources import SourceFiles, load_weights
from blockdraft.types import TargetInfo

#: Rotary scalings that depend on how long the longest row of a pass is.
_LENGTH_DEPENDENT = ("longrope",)


def build_model(source: SourceFiles, dtype: torch.dtype) -> nn.Module:
    """Build the model and fill in its weights.

    Raises: as `load_transformers_target`.
    """
    config = _build_config(source)
    model_class = _find_class(source, config)
    check_can_roll_back(source.name, model_class, config)
    weights = load_weights(source)
    try:
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
        )
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{source.name}: its weights do not fit its config: {_last_line(error)}"
        ) from error
    _check_report(source, report["missing_keys"], "missing")
    _check_report(source, report["unexpected_keys"], "unexpected")
    return model  # type: ignore[no-any-return]


def _build_config(source: SourceFiles) -> Any:
    settings = dict(source.config)
    model_type = settings.pop("model_type", None)
    if settings.get("quantization_config"):
        raise UnsupportedError(
            f"{source.name} is a quantised checkpoint; use the unquantised one, or a GGUF file"
        )
    if model_type not in transformers.CONFIG_MAPPING:
        raise UnsupportedError(
            f"{source.name}: transformers {transformers.__version__} has no model type "
            f"{model_type!r} (code that comes with a checkpoint is not run)"
        )
    try:
        return AutoConfig.for_model(model_type, **settings)
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{source.name}: its config is not that of a {model_type} model: {_last_line(error)}"
        ) from error


def _find_class(source: SourceFiles, config: Any) -> Any:
    try:
        found = AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError as error:
        raise UnsupportedError(
            f"{source.name} ({config.model_type}) is not a causal language model"
        ) from error
    return found[0] if isinstance(found, list | tuple) else found


def _check_report(source: SourceFiles, names: Collection[str], fault: str) -> None:
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise CheckpointError(
            f"{source.name}: {fault} weights: {', '.join(sorted(names)[:5])}{more}"
        )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def target_info(source: SourceFiles, model: Any, dtype: torch.dtype) -> TargetInfo:
    """What the loaded model is.

    Raises: UnsupportedError if its config does not say how long a context it was made for.
    """
    text = model.config.get_text_config(decoder=True)
    max_len, note = _max_context_len(text)
    if not isinstance(max_len, int):
        raise UnsupportedError(
            f"{source.name} ({text.model_type}) does not say how long its context may be"
        )
    return TargetInfo(
        name=source.name,
        source=source.source,
        fingerprint=source.fingerprint,
        model_type=text.model_type,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        max_context_len=max_len,
        end_ids=source.end_ids,
        dtype=dtype,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        extra={"context_note": note} if note else {},
    )


def _max_context_len(text: Any) -> tuple[int | None, str]:
    """Context length, and a note where it is less than the config says.

    LongRoPE turns every row by other angles once a pass reaches beyond the original length, so a
    row's logits would depend on how far the block it is checked in reaches.
    """
    max_len = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    # Models with two kinds of layer have one table for each.
    for table in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if table.get("rope_type") in _LENGTH_DEPENDENT:
            original = table["original_max_position_embeddings"]
            return original, f"{table['rope_type']} is exact up to {original} of {max_len} tokens"
    return max_len, ""
