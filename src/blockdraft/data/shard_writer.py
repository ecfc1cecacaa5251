"""Writes shards of hidden states, and takes up what a killed run left behind."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.data.answer_pack import pack_answers, unpack_answers
from blockdraft.data.answers import Answer, AnswerFile, iter_answers
from blockdraft.data.feature_shards import (
    INDEX_NAME,
    FeatureIndex,
    ShardEntry,
    map_shard,
    read_index,
    rows_name,
    write_index,
)
from blockdraft.errors import CheckpointError
from blockdraft.json_text import parse_json
from blockdraft.targets.sources.fingerprint import hash_file

Log = Callable[[str], None]


class ShardWriter:
    """Adds shards to a folder.

    A shard is written in this order, so that whatever is there after a kill can be told: its
    answers, its states, the answers' lines, the index. `recover` does the last two for shards
    that lack them.

    Args:
        folder: made if it does not exist.
        index: what the states are (its `shards` are not looked at).
        answers: the file that names every answer once.
    Raises: CheckpointError if the folder holds states of another target or of other layers.
    """

    def __init__(self, folder: Path, index: FeatureIndex, answers: AnswerFile) -> None:
        self.folder, self.answers = folder, answers
        folder.mkdir(parents=True, exist_ok=True)
        self.index = dataclasses.replace(index, shards=())
        if (folder / INDEX_NAME).exists():
            self.index = _matching(read_index(folder), self.index, folder)
        for path in folder.glob("*.*.tmp"):
            path.unlink()

    def recover(self, log: Log) -> None:
        """Take up shards that are not in the index, and answers that are only in shards."""
        known = {entry.file for entry in self.index.shards}
        new = [path for path in sorted(self.folder.glob("*.safetensors")) if path.name not in known]
        if new:
            log(f"{self.folder}: {len(new)} shards that are not in the index are taken up")
            self._write_rows_of(new)
            entries = tuple(self._entry(path, unpack_answers(_rows(path))) for path in new)
            self._add(entries)
        self._restore_lines(log)

    def write(self, answers: Sequence[Answer], features: Sequence[Tensor]) -> None:
        """Write one shard; its answers are in the answers file when this returns."""
        path = self.folder / f"{self._next_number():05d}.safetensors"
        pack_answers(_rows(path), answers, has_prompts=True)
        temporary = path.with_name(f"{path.name}.tmp")
        tensors = {
            "features": torch.cat([part.to(torch.bfloat16) for part in features]),
            "lens": torch.tensor([len(part) for part in features]),
        }
        save_file(tensors, temporary, {"ids": json.dumps([answer.id for answer in answers])})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        self.answers.append(answers)
        self._add((self._entry(path, answers),))

    def _next_number(self) -> int:
        numbers = [int(p.stem) for p in self.folder.glob("*.safetensors") if p.stem.isdecimal()]
        return max(numbers, default=-1) + 1

    def _add(self, entries: tuple[ShardEntry, ...]) -> None:
        seen: set[str] = set()
        for entry in (*self.index.shards, *entries):
            if twice := seen.intersection(entry.ids):
                raise CheckpointError(
                    f"{self.folder / entry.file} holds the sample {min(twice)}, which an earlier "
                    "shard holds too; remove that shard and its rows file"
                )
            seen.update(entry.ids)
        self.index = dataclasses.replace(self.index, shards=(*self.index.shards, *entries))
        write_index(self.folder, self.index)

    def _entry(self, path: Path, answers: Sequence[Answer]) -> ShardEntry:
        features, lens, _ = map_shard(path)
        if [len(answer.all_ids) - 1 for answer in answers] != lens:
            raise CheckpointError(f"{path}: its lens are not those of the answers it names")
        if features.shape[1] != self.index.width:
            raise CheckpointError(
                f"{path} has rows of {features.shape[1]} numbers; {len(self.index.layer_ids)} "
                f"layers of {self.index.hidden_size} give {self.index.width}"
            )
        ids = tuple(answer.id for answer in answers)
        return ShardEntry(file=path.name, ids=ids, lens=tuple(lens), sha256=hash_file(path))

    def _write_rows_of(self, paths: Sequence[Path]) -> None:
        """Make the rows file of shards that lack it, out of the answers file."""
        bare = {path: _ids(path) for path in paths if not _rows(path).exists()}
        wanted = {sample_id for ids in bare.values() for sample_id in ids}
        found = {a.id: a for a in iter_answers(self.answers.path) if a.id in wanted} if bare else {}
        for path, ids in bare.items():
            missing = next((sample_id for sample_id in ids if sample_id not in found), None)
            if missing is not None:
                raise CheckpointError(
                    f"{path} holds states of {missing}, which is neither in {_rows(path).name} nor "
                    f"in {self.answers.path.name}; remove the shard"
                )
            pack_answers(_rows(path), [found[sample_id] for sample_id in ids], has_prompts=True)

    def _restore_lines(self, log: Log) -> None:
        for entry in self.index.shards:
            if not self.answers.ids.issuperset(entry.ids):
                rows = unpack_answers(self.folder / entry.rows_file)
                lost = [answer for answer in rows if answer.id not in self.answers.ids]
                log(f"{self.answers.path.name}: {len(lost)} answers are taken from {entry.file}")
                self.answers.append(lost)


def _rows(path: Path) -> Path:
    return path.with_name(rows_name(path.name))


def _ids(path: Path) -> list[str]:
    _, _, metadata = map_shard(path)
    try:
        return [str(sample_id) for sample_id in parse_json(metadata["ids"])]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} does not say which samples it holds: {error!r}") from error


def _matching(found: FeatureIndex, wanted: FeatureIndex, folder: Path) -> FeatureIndex:
    for name in ("fingerprint", "layer_ids", "hidden_size", "dtype"):
        there, asked = getattr(found, name), getattr(wanted, name)
        if there != asked:
            raise CheckpointError(
                f"{folder} holds states with {name} {there}, but {asked} is asked for; "
                "choose another folder"
            )
    return found
