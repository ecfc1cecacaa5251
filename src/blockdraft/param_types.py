"""Types of sampling parameters: one line for a value of the wrong kind, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from blockdraft.errors import ConfigError

_WHOLE = ("max_tokens", "min_tokens", "top_k")
_WHOLE_OR_NONE = ("seed", "logprobs")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_FLAGS = ("include_stop", "ignore_eos")


def check_types(params: Any) -> None:
    """Raise ConfigError for the first parameter that is not of its kind."""
    for name in _WHOLE:
        _need(name, getattr(params, name), is_whole, "a whole number")
    for name in _WHOLE_OR_NONE:
        value = getattr(params, name)
        _need(name, value, lambda x: x is None or is_whole(x), "a whole number, or None")
    for name in _NUMBERS:
        _need(name, getattr(params, name), is_number, "a number")
    for name in _FLAGS:
        _need(name, getattr(params, name), lambda x: isinstance(x, bool), "True or False")
    _need("stop", params.stop, _is_texts, "a text or a list of texts")
    _need("stop_token_ids", params.stop_token_ids, _is_ids, "a list of token ids")
    _need("logit_bias", params.logit_bias, _is_bias, "a table of token ids and numbers")


def as_tuple(value: Any) -> Any:
    """What any kind of list holds; a text, a table or anything else stays as it is.

    To be taken before the checks: an iterator gives what it holds only once.
    """
    return tuple(value) if _is_list(value) else value


def is_whole(value: object) -> bool:
    """A whole number, numpy's too; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """A number, numpy's too; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _need(name: str, value: object, is_right: Any, what: str) -> None:
    if not is_right(value):
        raise ConfigError(f"{name} is {value!r}; it must be {what}")


def _is_texts(value: object) -> bool:
    if isinstance(value, str):
        return True
    return _is_list(value) and all(isinstance(item, str) for item in value)  # type: ignore[attr-defined]


def _is_ids(value: object) -> bool:
    return _is_list(value) and all(is_whole(item) for item in value)  # type: ignore[attr-defined]


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        is_whole(key) and is_number(item) for key, item in value.items()
    )
