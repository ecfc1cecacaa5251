"""SHA-256 of weight files, remembered beside them as long as size and time stay the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockdraft.json_text import parse_json

#: Name of the memory beside the files.
MEMORY_NAME = ".blockdraft-sha256.json"


def fingerprint(paths: Sequence[Path]) -> str:
    """SHA-256 of one file; of several, of the sorted lines `name sha256`."""
    digests = {path.name: file_sha256(path) for path in paths}
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, from the memory beside it if size and modification time still agree."""
    stat = path.stat()
    memory = _recall(path.parent)
    entry = memory.get(path.name)
    if isinstance(entry, dict) and entry.get("size") == stat.st_size:
        digest = entry.get("sha256")
        if entry.get("mtime_ns") == stat.st_mtime_ns and isinstance(digest, str):
            return digest
    digest = hash_file(path)
    entry = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": digest}
    _remember(path.parent, {**memory, path.name: entry})
    return digest


def hash_file(path: Path) -> str:
    """SHA-256 of a file, read from the first byte to the last."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recall(folder: Path) -> dict[str, Any]:
    try:
        memory = parse_json((folder / MEMORY_NAME).read_text())
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(folder: Path, memory: dict[str, Any]) -> None:
    # A folder that cannot be written costs a hash at each start, nothing else.
    with contextlib.suppress(OSError):
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=MEMORY_NAME)
        with os.fdopen(descriptor, "w") as file:
            json.dump(memory, file)
        os.replace(name, folder / MEMORY_NAME)
