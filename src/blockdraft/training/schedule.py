"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math

from blockdraft.training.recipe import ScheduleRecipe


def rate_share(step: int, recipe: ScheduleRecipe) -> float:
    """Share of the peak rate for an update, 0 < share <= 1 (0 at the end if the recipe asks).

    Args:
        step: 0 for the first update. The last, `max_steps - 1`, has exactly `final_share`.
    """
    num_warmup = round(recipe.warmup * recipe.max_steps)
    if step < num_warmup:
        return (step + 1) / (num_warmup + 1)
    if recipe.name == "constant":
        return 1.0
    # The first update after the warm-up has the peak rate; a later one than the last has its rate.
    progress = min(1.0, (step - num_warmup) / max(1, recipe.max_steps - 1 - num_warmup))
    fall = progress if recipe.name == "linear" else (1 - math.cos(math.pi * progress)) / 2
    return 1.0 - (1.0 - recipe.final_share) * fall
