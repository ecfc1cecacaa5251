"""The whole check, its verdict and its JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.engine.llm import LLM
from blockdraft.engine.prompts import encode_prompt
from blockdraft.errors import ConfigError
from blockdraft.evaluation.lossless.distribution import Distribution, check_distribution
from blockdraft.evaluation.lossless.greedy import GreedyResult, check_greedy
from blockdraft.evaluation.lossless.power import POWER
from blockdraft.evaluation.lossless.rule import RuleResult, check_rule
from blockdraft.evaluation.lossless.settings import LosslessSettings
from blockdraft.evaluation.progress import Progress
from blockdraft.evaluation.provenance import provenance
from blockdraft.evaluation.tasks import Task

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Lossless:
    """Everything that was found. `about` describes the engine of the distribution test."""

    settings: LosslessSettings
    task: str
    greedy: tuple[GreedyResult, ...]
    rule: RuleResult
    distribution: Distribution
    about: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """`fail` if anything is wrong, `inconclusive` if nothing could have been found wrong."""
        num_faults = sum(result.num_faults for result in self.greedy) + len(self.rule.faults)
        if num_faults + self.distribution.num_faults(self.settings.alpha):
            return FAIL
        return INCONCLUSIVE if self.distribution.is_vacuous else PASS

    def as_dict(self) -> dict[str, Any]:
        """The JSON object; numbers that are infinite are null."""
        found: dict[str, Any] = _plain(
            {
                "provenance": provenance(self.about, seed=self.settings.seed),
                "settings": {**vars(self.settings), "task": self.task},
                "verdict": self.verdict,
                "greedy": [
                    {**dataclasses.asdict(result), "num_faults": result.num_faults}
                    for result in self.greedy
                ],
                "rule": dataclasses.asdict(self.rule),
                "distribution": {
                    **dataclasses.asdict(self.distribution),
                    "power": POWER,
                    "num_faults": self.distribution.num_faults(self.settings.alpha),
                    "detectable_after_all": self.distribution.detectable("all"),
                    "detectable_after_one": self.distribution.detectable("next"),
                    "detectable_joint": self.distribution.detectable("joint"),
                },
            }
        )
        return found


def check_lossless(
    make: Callable[[str], LLM],
    dtypes: Sequence[str],
    task: Task,
    settings: LosslessSettings,
    log: Callable[[str], None] = lambda _: None,
) -> Lossless:
    """Greedy texts in each dtype, the rule, and the law of sampled tokens in the last dtype.

    Args:
        make: an engine with its drafter, for a dtype; one is held in memory at a time.
        task: prompts; first turns are used.
    Raises: ConfigError if the engine has no drafter; UserError if a sampled request fails.
    """
    if not dtypes:
        raise ConfigError("no dtype to check; give at least one")
    rule, greedy, llm = check_rule(), list[GreedyResult](), None
    for dtype in dtypes:
        llm = None  # the models of the last dtype make room
        llm = make(dtype)
        if llm.drafter is None:
            raise ConfigError("there is no drafter to check; give one with --drafter")
        prompts = encoded(llm, task)
        chosen = prompts[: settings.num_prompts]
        progress = Progress(2 * len(chosen), log)
        advance = _advance(progress, dtype)
        greedy.append(check_greedy(llm, llm, chosen, settings.max_tokens, advance))
    assert llm is not None
    return Lossless(
        settings=settings,
        task=task.name,
        greedy=tuple(greedy),
        rule=rule,
        distribution=check_distribution(llm, prompts, settings, log),
        about=llm.describe(),
    )


def _advance(progress: Progress, dtype: str) -> Callable[[int], None]:
    return lambda num: progress.advance(num, f"greedy, {dtype}")


def encoded(llm: LLM, task: Task) -> list[tuple[str, list[int]]]:
    """Ids of the prompts and their tokens, as a user's text is read."""
    codec, vocab_size = llm.loaded.codec, llm.target.info.vocab_size
    return [
        (prompt.id, encode_prompt(prompt.turns[0], codec, vocab_size, i))
        for i, prompt in enumerate(task.prompts)
    ]


def write(result: Lossless, out: Path) -> None:
    """Write the JSON, whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, out)


def _plain(value: Any) -> Any:
    """What JSON knows."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
