"""What an interrupted run had finished: one JSON line a chunk, beside the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.json_text import parse_json


class Journal:
    """Finished chunks by key. A last line that was cut off by a crash is written anew.

    Args:
        path: the journal's file; it may be there from a run that was interrupted.
        settings: parts of what defines the run, by name. A journal in which one differs is not
            continued, and the message names it.
    Raises: ConfigError if the file belongs to another run; CheckpointError if it is damaged before
        its last line.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._done: dict[str, ChunkRun] = {}
        head = {name: _digest(part) for name, part in settings.items()}
        lines = self._whole_lines()
        if lines:
            self._read(lines, head)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"settings": head}) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._done)

    def get(self, key: str) -> ChunkRun | None:
        """A chunk that was finished before."""
        return self._done.get(key)

    def add(self, key: str, run: ChunkRun) -> None:
        """Write a finished chunk down; it survives a crash from here on."""
        self._done[key] = run
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "run": run.as_json()}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """The result is written: nothing is left to resume."""
        self.path.unlink(missing_ok=True)

    def _whole_lines(self) -> list[str]:
        if not self.path.is_file():
            return []
        text = self.path.read_text(encoding="utf-8", errors="replace")
        whole, _, rest = text.rpartition("\n")
        if rest:
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        return whole.split("\n") if whole else []

    def _read(self, lines: list[str], head: Mapping[str, str]) -> None:
        try:
            found, *rest = [parse_json(line) for line in lines]
            done = {entry["key"]: ChunkRun.from_json(entry["run"]) for entry in rest}
            had = found["settings"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path} is damaged; delete it to begin anew") from error
        if had != head:
            had = had if isinstance(had, dict) else {}  # one digest of everything, once
            others = [name for name in head if had.get(name) != head[name]] or ["settings"]
            raise ConfigError(
                f"{self.path} is from an interrupted run with other {', '.join(others)}; repeat "
                "that to resume it, delete it to begin anew, or give another --out"
            )
        self._done = done


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()
