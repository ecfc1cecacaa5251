"""Answers for keeping: one small file of a folder, and back with the prompts of its recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blockdraft.data.answer_pack import pack_answers, pack_meta, unpack_answers
from blockdraft.data.answers import (
    ANSWERS_NAME,
    META_NAME,
    AnswerFile,
    read_answers,
    read_meta,
    write_whole,
)
from blockdraft.data.prompts import make_plan
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.engine.prompts import encode_prompt
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.targets.load import source_info
from blockdraft.targets.sources import resolve


def pack_folder(recipe: AnswersRecipe, path: Path) -> dict[str, Any]:
    """Write a folder's answers to one file that names their prompts by id.

    Returns: what was written, for printing.
    Raises: CheckpointError if there are no answers, or nothing says what they came from.
    """
    meta = read_meta(recipe.out)
    if meta is None:
        raise CheckpointError(
            f"{recipe.out / META_NAME} does not exist; run regenerate on the folder once, which "
            "writes what its answers came from"
        )
    answers = read_answers(recipe.out / ANSWERS_NAME)
    pack_answers(path, answers, meta=meta)
    return {
        "packed": str(path),
        "num_answers": len(answers),
        "num_tokens": sum(len(answer.token_ids) for answer in answers),
        "num_bytes": path.stat().st_size,
    }


def unpack_folder(recipe: AnswersRecipe, path: Path, log: Callable[[str], None]) -> dict[str, Any]:
    """Write `answers.jsonl` and its meta file anew from a packed file.

    Returns: what was written, for printing.
    Raises: ConfigError if there is no such file; CheckpointError if the folder has answers already,
        the target is another one, or the recipe's prompts are not those that were answered.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; give one that regenerate --pack wrote")
    answers_path = recipe.out / ANSWERS_NAME
    if answers_path.exists():
        raise CheckpointError(f"{answers_path} exists; unpack into another folder (out)")
    meta = pack_meta(path)
    meta.pop("prompts_sha256")
    prompts = _prompt_ids(recipe, str(meta.get("fingerprint")), path, log)
    answers = unpack_answers(path, prompts)
    recipe.out.mkdir(parents=True, exist_ok=True)
    write_whole(recipe.out / META_NAME, json.dumps(meta, indent=1) + "\n")
    AnswerFile(answers_path).append(answers)
    return {"unpacked": str(answers_path), "num_answers": len(answers)}


def _prompt_ids(
    recipe: AnswersRecipe, fingerprint: str, path: Path, log: Callable[[str], None]
) -> Callable[[str], Sequence[int]]:
    """A prompt's tokens by sample id, out of the recipe and the target's tokenizer."""
    files = resolve(recipe.target, progress=log)
    info, codec = source_info(files), files.codec()
    if info.fingerprint != fingerprint:
        raise CheckpointError(
            f"{path} holds answers of a target with fingerprint {fingerprint}; {recipe.target} "
            f"has {info.fingerprint}"
        )
    samples = {sample.id: sample for sample in make_plan(recipe).samples}

    def prompt_ids(sample_id: str) -> Sequence[int]:
        if sample_id not in samples:
            raise CheckpointError(f"{path} has the answer {sample_id}, which the recipe lacks")
        return encode_prompt(samples[sample_id].prompt, codec, info.vocab_size, 0)

    return prompt_ids
