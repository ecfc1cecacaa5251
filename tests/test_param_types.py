"""Sampling parameters that are lists: every kind of list counts, and what is none is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from blockdraft.errors import ConfigError
from blockdraft.types import SamplingParams

LISTS: tuple[Callable[[Iterable[Any]], Any], ...] = (
    list,
    tuple,
    iter,
    lambda items: (item for item in items),
    lambda items: map(type(next(iter(items))), items),
    lambda items: dict.fromkeys(items).keys(),
)


@pytest.mark.parametrize("kind", LISTS)
def test_ends_of_any_list_are_kept(kind: Callable[[Iterable[Any]], Any]) -> None:
    """An iterator too, which the check of its items must not use up."""
    params = SamplingParams(stop=kind(["x", "yz"]), stop_token_ids=kind([5, 6]))
    assert (params.stop, params.stop_token_ids) == (("x", "yz"), (5, 6))


def test_a_text_is_one_stop_string_and_arrays_hold_ids() -> None:
    params = SamplingParams(stop="xy", stop_token_ids=np.array([5, 6]))  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("xy",), (5, 6))


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("stop", lambda: iter([1]), r"stop is \(1,\); it must be a text or a list of texts"),
        ("stop", lambda: iter([""]), "a stop string is empty"),
        ("stop", lambda: b"x", "stop is b'x'; it must be a text or a list of texts"),
        ("stop_token_ids", lambda: iter(["5"]), r"stop_token_ids is \('5',\); it must be a list"),
        ("stop_token_ids", lambda: "56", "stop_token_ids is '56'; it must be a list of token ids"),
        ("stop_token_ids", lambda: {5: 1}, r"stop_token_ids is \{5: 1\}; it must be a list"),
        ("stop_token_ids", lambda: 5, "stop_token_ids is 5; it must be a list of token ids"),
    ],
)
def test_what_is_in_a_list_is_checked(name: str, value: Callable[[], Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        SamplingParams(**{name: value()})
