"""JSON files of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError
from blockdraft.json_text import parse_json


def read_json(path: Path) -> dict[str, Any]:
    """A JSON table.

    Raises: CheckpointError naming the file if it is missing, broken, or no table.
    """
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; a model folder must have it") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: it must hold a JSON table")
    return value
