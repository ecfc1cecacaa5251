"""How much disk hidden states will take, said before they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockdraft.data.answer_writer import NUM_BYTES, free_bytes
from blockdraft.data.feature_shards import FeatureIndex
from blockdraft.data.prompts import Sample
from blockdraft.data.recipe import AnswersRecipe

#: Prompts whose length is looked at for the estimate.
_NUM_PROBED = 256


def say_size(
    recipe: AnswersRecipe,
    index: FeatureIndex,
    todo: Sequence[Sample],
    prompt_len: Callable[[Sample], int],
    log: Callable[[str], None],
) -> None:
    """Say how large the shards of the samples to do will be, and whether that fits."""
    if not todo:
        return
    probed = [min(prompt_len(s), recipe.max_prompt_len) for s in todo[:_NUM_PROBED]]
    mean_prompt = sum(probed) / len(probed)
    row_bytes = index.width * NUM_BYTES
    most = len(todo) * (mean_prompt + recipe.max_tokens) * row_bytes
    free = free_bytes(recipe.out)
    message = (
        f"hidden states: {row_bytes:,} bytes a token, at most about {most / 2**30:.2f} GiB for "
        f"{len(todo):,} answers; {free / 2**30:.1f} GiB are free"
    )
    if most > free - recipe.features.reserve_gib * 2**30:
        message += (
            f"; should less than {recipe.features.reserve_gib:g} GiB be left "
            "(features.reserve_gib), the run stops and can be resumed"
        )
    log(message)
