"""A model folder in the transformers layout."""

from __future__ import annotations

from pathlib import Path

from blockdraft.targets.sources.files import SourceFiles
from blockdraft.targets.sources.folder_tokenizer import read_tokenizer
from blockdraft.targets.sources.json_file import read_json
from blockdraft.targets.sources.safetensors_files import open_weights


def read_folder(folder: Path, *, name: str | None = None, source: str | None = None) -> SourceFiles:
    """Read config and tokenizer, and check the weights of a folder.

    Raises: CheckpointError naming what is missing or damaged.
    """
    folder = folder.resolve() if source is None else folder
    config = read_json(folder / "config.json")
    weights = open_weights(folder)
    generation_path = folder / "generation_config.json"
    tokenizer = read_tokenizer(folder)
    return SourceFiles(
        name=name or folder.name,
        source=source or f"folder:{folder}",
        config=config,
        generation_config=read_json(generation_path) if generation_path.is_file() else {},
        weights=weights,
        weight_paths=weights.paths,
        tokenizer=tokenizer.tokenizer,
        chat_template=tokenizer.chat_template,
        special_tokens=tokenizer.special_tokens,
    )
