"""What answers came from, written beside them; a run that would mix two origins is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blockdraft.config import as_plain
from blockdraft.data.answer_sources import SourceInfo
from blockdraft.data.answers import (
    META_NAME,
    Answer,
    AnswerFile,
    iter_answers,
    read_meta,
    write_whole,
)
from blockdraft.data.prompts import Plan, Sample
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.errors import CheckpointError

#: Prompts of answers in the file that are compared with the recipe's.
_NUM_COMPARED = 64

#: What answers of one folder share.
_SHARED = ("fingerprint", "template_sha256", "max_tokens")

_PACKAGES = ("blockdraft", "torch", "tokenizers")


def check_meta(recipe: AnswersRecipe, info: SourceInfo) -> None:
    """Compare a folder's meta file with this run.

    Raises: CheckpointError if the answers there are of another target, template, length limit or
        number format, or if a server gave them and the engine would now, or the other way round.
    """
    found = read_meta(recipe.out)
    if found is None:
        return
    before, now = _origin(found), _origin(_meta(recipe, info))
    for name, mine in now.items():
        if before[name] != mine:
            raise CheckpointError(
                f"{recipe.out / META_NAME} says {name} {before[name]}, this run has {mine}; "
                "answers of two origins do not mix: choose another folder (out)"
            )


def write_meta(recipe: AnswersRecipe, info: SourceInfo) -> None:
    """Write down what the answers come from; to be called when every check has passed."""
    write_whole(recipe.out / META_NAME, json.dumps(_meta(recipe, info), indent=1) + "\n")


def check_answers(
    plan: Plan, answers: AnswerFile, encode: Callable[[Sample], Sequence[int]]
) -> None:
    """Compare answers with what the recipe asks under their ids, the prompts of some alone.

    Raises: CheckpointError naming the answer that was drawn otherwise or whose prompt is another.
    """
    answered = {sample.id: sample for sample in plan.samples if sample.id in answers.ids}
    step = max(1, len(answered) // _NUM_COMPARED)
    compared = set(list(answered)[::step])
    for answer in iter_answers(answers.path) if answered else ():
        sample = answered.get(answer.id)
        if sample is None:
            continue
        _check_draw(answers.path, answer, sample)
        if answer.id in compared and tuple(encode(sample)) != answer.prompt_ids:
            raise CheckpointError(
                f"{answers.path}: {answer.id} has another prompt than the recipe gives; "
                "a source or template has changed: choose another folder (out)"
            )


def _check_draw(path: Path, answer: Answer, sample: Sample) -> None:
    """Ids number the variants: one put before another moves it to another id."""
    for name in ("temperature", "seed"):
        before, now = getattr(answer, name), getattr(sample, name)
        if before != now:
            raise CheckpointError(
                f"{path}: {answer.id} was drawn with {name} {before}, and the recipe gives {now}; "
                "a variant has changed or moved: add new ones last, or choose another folder (out)"
            )


def _origin(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for all answers of a folder, under names for a message."""
    engine = meta.get("engine")
    engine = engine if isinstance(engine, Mapping) else {}
    by = f"a server's model {engine.get('model')!r}" if "server" in engine else "our engine"
    dtype = engine.get("dtype")
    # Files from before there was a choice of weights do not name them.
    weights = engine.get("weights", dtype)
    found = {name: meta.get(name) for name in _SHARED}
    return {**found, "answers by": by, "dtype": dtype, "weights": weights}


def _meta(recipe: AnswersRecipe, info: SourceInfo) -> dict[str, Any]:
    return {
        "target": info.name,
        "fingerprint": info.fingerprint,
        "template_sha256": info.codec.template_sha256,
        "max_tokens": recipe.max_tokens,
        "engine": info.describe,
        "versions": {name: version(name) for name in _PACKAGES},
        "recipe": as_plain(recipe),
    }
