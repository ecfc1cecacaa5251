"""JSON that no reader of ours can take is always a ValueError."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockdraft.json_text import parse_json

SOURCES = Path(__file__).parents[1] / "src" / "blockdraft"


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, '{"a":' * 100_000, "1 2"])
def test_what_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_what_can_be_read_is() -> None:
    assert parse_json('{"a": [1, "é", null]}') == parse_json('{"a": [1, "é", null]}'.encode())
    assert parse_json("[" * 50 + "]" * 50)


def test_files_are_read_by_it_alone() -> None:
    """Whoever calls `json.loads` on a file gives a traceback where the file is nested too deep."""
    callers = [
        path.relative_to(SOURCES).as_posix()
        for path in sorted(SOURCES.rglob("*.py"))
        if "json.load" in path.read_text("utf-8")
    ]
    assert callers == ["json_text.py", "targets/tokenizer.py"]  # the latter: a state in memory
