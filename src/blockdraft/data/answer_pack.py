"""Answers in a few bytes: token ids compressed, prompts by id or with their tokens."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.data.answers import Answer
from blockdraft.errors import CheckpointError
from blockdraft.json_text import parse_json

Array = NDArray[Any]

_FIELDS = ("id", "source", "temperature", "seed", "finish_reason", "is_looping")


def pack_answers(
    path: Path,
    answers: Sequence[Answer],
    *,
    has_prompts: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write answers to one `.npz`; it is there whole or not at all.

    Args:
        has_prompts: keep the prompts' tokens too; else `unpack_answers` must be given them.
        meta: what the answers came from, for `pack_meta`.
    """
    arrays: dict[str, Any] = {"token_ids": _ids([a.token_ids for a in answers])}
    arrays["answer_lens"] = np.array([len(a.token_ids) for a in answers], np.int32)
    if has_prompts:
        arrays["prompt_ids"] = _ids([a.prompt_ids for a in answers])
        arrays["prompt_lens"] = np.array([len(a.prompt_ids) for a in answers], np.int32)
    columns = {name: [getattr(a, name) for a in answers] for name in _FIELDS}
    arrays["rows"] = np.frombuffer(json.dumps(columns).encode(), np.uint8)
    origin = {**(meta or {}), "prompts_sha256": _prompts_hash(a.prompt_ids for a in answers)}
    arrays["meta"] = np.frombuffer(json.dumps(origin).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def unpack_answers(
    path: Path, prompt_ids: Callable[[str], Sequence[int]] | None = None
) -> list[Answer]:
    """Read what `pack_answers` wrote.

    Args:
        prompt_ids: gives the tokens of a prompt by the answer's id, where the file lacks them.
    Raises: CheckpointError if the file is missing or damaged, or the prompts are wanting.
    """
    arrays = _load(path)
    try:
        columns = parse_json(arrays["rows"].tobytes())
        answers = _split(arrays["token_ids"], arrays["answer_lens"])
        prompts = _prompts(arrays, columns["id"], prompt_ids, path)
        rows = zip(*(columns[name] for name in _FIELDS), prompts, answers, strict=True)
        names = (*_FIELDS, "prompt_ids", "token_ids")
        unpacked = [Answer.of(dict(zip(names, row, strict=True))) for row in rows]
        recorded = parse_json(arrays["meta"].tobytes())["prompts_sha256"]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path} is no file of packed answers: {error!r}") from error
    if _prompts_hash(a.prompt_ids for a in unpacked) != recorded:
        raise CheckpointError(
            f"{path}: the prompts are not those its answers were given to; unpack it with the "
            "recipe, prompt files and target it came from"
        )
    return unpacked


def pack_meta(path: Path) -> dict[str, Any]:
    """What the packed answers came from.

    Raises: CheckpointError if the file is missing or damaged.
    """
    try:
        return dict(parse_json(_load(path)["meta"].tobytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no file of packed answers: {error!r}") from error


def _load(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{path} is no file of packed answers: {error!r}") from error


def _prompts_hash(prompts: Iterable[Sequence[int]]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(np.asarray([len(prompt), *prompt], "<i4").tobytes())
    return digest.hexdigest()


def _prompts(
    arrays: dict[str, Array],
    ids: Sequence[str],
    prompt_ids: Callable[[str], Sequence[int]] | None,
    path: Path,
) -> list[Sequence[int]]:
    if "prompt_ids" in arrays:
        return list(_split(arrays["prompt_ids"], arrays["prompt_lens"]))
    if prompt_ids is None:
        raise CheckpointError(f"{path} holds no prompts; unpack it with the recipe it came from")
    return [prompt_ids(sample_id) for sample_id in ids]


def _ids(rows: Sequence[Sequence[int]]) -> Array:
    """One after the other, in the narrowest type that holds them."""
    flat = np.array([i for row in rows for i in row], np.int64)
    is_narrow = flat.max(initial=0) < 2**16
    return flat.astype(np.uint16 if is_narrow else np.int32)


def _split(flat: Array, lens: Array) -> list[list[int]]:
    if lens.sum() != len(flat):
        raise ValueError(f"{len(flat)} tokens for rows of {lens.sum()}")
    return [part.tolist() for part in np.split(flat, np.cumsum(lens)[:-1])] if len(lens) else []
