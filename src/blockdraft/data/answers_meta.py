"""What answers came from, written beside them; a run that would mix two origins is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from blockdraft.config import as_plain
from blockdraft.data.answer_sources import SourceInfo
from blockdraft.data.answers import META_NAME, AnswerFile, iter_answers, read_meta, write_whole
from blockdraft.data.prompts import Plan, Sample
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.errors import CheckpointError

#: Prompts of answers in the file that are compared with the recipe's.
_NUM_COMPARED = 64

_PACKAGES = ("blockdraft", "torch", "tokenizers")


def settle_meta(recipe: AnswersRecipe, info: SourceInfo, *, has_answers: bool) -> None:
    """Check a folder's meta file against this run, and write what the run adds.

    Raises: CheckpointError if the answers there are of another target, template or length limit.
    """
    path = recipe.out / META_NAME
    found = read_meta(recipe.out)
    meta = _meta(recipe, info)
    if found is not None and has_answers:
        for name in ("fingerprint", "template_sha256", "max_tokens"):
            if found.get(name) != meta[name]:
                raise CheckpointError(
                    f"{path} says {name} {found.get(name)}, this run has {meta[name]}; "
                    "answers of two origins do not mix: choose another folder (out)"
                )
    write_whole(path, json.dumps(meta, indent=1) + "\n")


def check_prompts(
    recipe: AnswersRecipe,
    plan: Plan,
    answers: AnswerFile,
    encode: Callable[[Sample], Sequence[int]],
) -> None:
    """Compare some answered prompts with what the recipe gives under their ids.

    Raises: CheckpointError naming the answer whose prompt is another one.
    """
    answered = [sample for sample in plan.samples if sample.id in answers.ids]
    step = max(1, len(answered) // _NUM_COMPARED)
    compared = {sample.id: sample for sample in answered[::step]}
    if not compared:
        return
    for answer in iter_answers(answers.path):
        sample = compared.get(answer.id)
        if sample is not None and tuple(encode(sample)) != answer.prompt_ids:
            raise CheckpointError(
                f"{answers.path}: {answer.id} has another prompt than the recipe gives; "
                "a source or template has changed: choose another folder (out)"
            )


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
