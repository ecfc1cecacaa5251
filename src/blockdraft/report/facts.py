"""Provenance and settings as a list of names and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockdraft.report.document import escape


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables by dotted names; lists on one line."""
    return dict(_flat(value, prefix))


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{name}.")
        else:
            yield name, _shown(inner)


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(inner)}" for key, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def fact_list(facts: Mapping[str, str]) -> str:
    """A definition list."""
    items = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f'<dl class="facts num">{"".join(items)}</dl>'
