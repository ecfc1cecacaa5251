"""Answers on disk: one JSON object a line, appended as they come, and what they came from."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockdraft.data.looping import is_looping
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.json_text import parse_json

ANSWERS_NAME = "answers.jsonl"
META_NAME = "answers.meta.json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer of the target. `token_ids` end with the end token where it stopped by itself."""

    id: str
    source: str
    temperature: float
    seed: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    is_looping: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Answer:
        """An answer of a row of the file; a row without `is_looping` is looked at now.

        Raises: KeyError, TypeError, ValueError or OverflowError (infinity) if it is no such row.
        """
        token_ids = tuple(map(int, row["token_ids"]))
        looping = row.get("is_looping")
        return cls(
            id=str(row["id"]),
            source=str(row["source"]),
            temperature=float(row["temperature"]),
            seed=int(row["seed"]),
            prompt_ids=tuple(map(int, row["prompt_ids"])),
            token_ids=token_ids,
            finish_reason=str(row["finish_reason"]),
            is_looping=is_looping(token_ids) if looping is None else bool(looping),
        )

    @property
    def all_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt_ids + self.token_ids

    def line(self) -> str:
        """The row as the file holds it, with the line's end."""
        return json.dumps(asdict(self)) + "\n"


def read_answers(path: Path) -> list[Answer]:
    """All rows of an answers file; as `iter_answers`."""
    return list(iter_answers(path))


def iter_answers(path: Path) -> Iterator[Answer]:
    """The whole rows of an answers file, in order.

    A last line cut off (the writer was killed, or is at work) is left out.

    Raises: ConfigError if there is no such file; CheckpointError naming the file and line of a row
        that is damaged or there twice.
    """
    ids: set[str] = set()
    for number, line in _whole_lines(path):
        try:
            answer = Answer.of(parse_json(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}:{number} is not UTF-8 ({error})") from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{path}:{number} is no answer: {error!r}") from error
        if answer.id in ids:
            raise CheckpointError(f"{path}:{number} has the answer {answer.id} a second time")
        ids.add(answer.id)
        yield answer


class AnswerFile:
    """An answers file that rows are added to; opening it takes a cut-off last line away.

    Attributes:
        ids: of the rows it holds.
        counts: rows by finish reason; "looping" and "tokens" count beside them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: set[str] = set()
        self.counts: Counter[str] = Counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        _cut_torn_line(path)
        for answer in iter_answers(path):
            self._count(answer)

    def append(self, answers: Sequence[Answer]) -> None:
        """Add rows; they outlive the process from here on."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(answer.line() for answer in answers))
        for answer in answers:
            self._count(answer)

    def _count(self, answer: Answer) -> None:
        self.ids.add(answer.id)
        looping = int(answer.is_looping)
        self.counts.update({answer.finish_reason: 1, "looping": looping})
        self.counts["tokens"] += len(answer.token_ids)


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What the answers of a folder came from; None where that was never written.

    Raises: CheckpointError if the file is damaged.
    """
    path = folder / META_NAME
    try:
        meta = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} is damaged: it must hold a JSON table")
    return meta


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file = path.open("rb")  # decoded line by line, so that a wrong one is named
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ConfigError(f"{path} is not a file; make it with blockdraft regenerate") from error
    with file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield number, line


def _cut_torn_line(path: Path) -> None:
    """Take off what follows the last line's end: nothing is lost but what was never whole."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        size = end
        while size:
            start = max(0, size - 65536)
            file.seek(start)
            found = file.read(size - start).rfind(b"\n")
            if found >= 0:
                size = start + found + 1
                break
            size = start
        if size != end:
            file.truncate(size)
