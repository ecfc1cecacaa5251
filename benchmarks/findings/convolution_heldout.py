"""Drafters on answers that they never saw, one answer at a time, so that differences have ranges.

Lengths on fixed blocks are what training itself reports (`training/heldout.py`): the tokens that a
cycle beginning there would commit. Every drafter of one seed sees blocks at the same places. The
selector is given the true token before each slot, which its walk has for as long as it is right.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from benchmarks.findings.asked import open_drafter
from blockdraft import LLM, SamplingParams
from blockdraft.data.answers import Answer
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.errors import ConfigError
from blockdraft.evaluation.bootstrap import ratio_interval, ratio_of_ratios_interval
from blockdraft.interop.zlab import read_zlab
from blockdraft.targets.sources import SourceFiles, resolve
from blockdraft.training.assemble import Data, read_data
from blockdraft.training.evaluations import fixed_batches
from blockdraft.training.make_objective import TargetTables, make_objective, target_tables
from blockdraft.training.module import DrafterModule
from blockdraft.training.recipe import BatchRecipe, TrainRecipe

#: How the drafts of a block are taken: each slot's best, the selector's, the right one if it is
#: among the candidates.
CHOICES = ("unary", "selector", "oracle")

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Heldout:
    """Held-out answers with their features, and the target's tables that objectives look at."""

    source: SourceFiles
    data: Data
    tables: TargetTables
    dtype: torch.dtype

    @classmethod
    def open(cls, recipe: TrainRecipe) -> Heldout:
        """The answers that a recipe holds out. Raises: ConfigError if there are none."""
        source = resolve(recipe.target)
        data = read_data(recipe, source, _no_target)
        if not data.split.heldout:
            raise ConfigError("no answer is held out; set data.heldout_share and data.num_heldout")
        dtype = torch.bfloat16 if recipe.run.precision == "bfloat16" else torch.float32
        return cls(source, data, target_tables(source, dtype, torch.device("cpu")), dtype)

    @property
    def answers(self) -> list[Answer]:
        """The answers, in the order of all figures."""
        return [self.data.features.answers[i] for i in self.data.split.heldout]

    @torch.no_grad()
    def sums(self, recipe: TrainRecipe, folder: Path) -> list[Sums]:
        """Of each answer: loss, weight, and the metric sums of the objective.

        Args:
            recipe: of the drafter; its seed says where the blocks begin.
            folder: of the drafter.
        """
        config, tensors = read_zlab(folder)
        ids = tensors.get(DRAFT_VOCAB_IDS)
        objective = make_objective(recipe.objective, config, self.tables, self.source, ids)
        module = DrafterModule.from_tensors(config, tensors, self.tables.embedding, self.dtype)
        one = BatchRecipe(sequences_per_step=1, sequences_per_pass=1)
        batches = fixed_batches(
            dataclasses.replace(recipe, batch=one),
            self.data.samples,
            self.data.split.heldout,
            self.data.teacher_width,
        )
        found = []
        for batch in batches:
            out = objective(module.eval(), batch)
            found.append({"loss": out.loss, "weight": out.weight, **out.metrics})
        return found


def block_figures(answers: Sequence[Sums], base: Sequence[Sums] | None) -> dict[str, Any]:
    """Acceptance lengths with intervals by answer, and what is right by position.

    Args:
        base: of the drafter that is compared with, on the same answers; None leaves that out.
    """
    return {
        "num_answers": len(answers),
        "num_blocks": int(sum(_numbers(answers, "unary_length_count"))),
        "loss": sum(_numbers(answers, "loss")) / sum(_numbers(answers, "weight")),
        **{name: _choice_figures(answers, base, name) for name in CHOICES},
    }


def _choice_figures(
    answers: Sequence[Sums], base: Sequence[Sums] | None, name: str
) -> dict[str, Any]:
    own = _length(answers, name)
    position = f"{name}_by_position"
    right = torch.stack([each[position] for each in answers]).sum(0)
    slots = torch.stack([each[f"{position}_count"] for each in answers]).sum(0)
    return {
        "length": sum(own[0]) / sum(own[1]),
        "length_ci95": ratio_interval(*own),
        **_against(own, None if base is None else _length(base, name)),
        "right_by_position": (right / slots.clamp_min(1)).tolist(),
        "slots_by_position": slots.tolist(),
    }


def _length(answers: Sequence[Sums], name: str) -> tuple[list[float], list[float]]:
    """Tokens and blocks of each answer."""
    return _numbers(answers, f"{name}_length"), _numbers(answers, f"{name}_length_count")


def _numbers(answers: Sequence[Sums], name: str) -> list[float]:
    return [float(each[name]) for each in answers]


def _against(
    own: tuple[Sequence[float], Sequence[float]],
    base: tuple[Sequence[float], Sequence[float]] | None,
) -> dict[str, Any]:
    """A mean over the base's, answers resampled together."""
    if base is None:
        return {"over_base": None, "over_base_ci95": None}
    ratio = sum(own[0]) * sum(base[1]) / (sum(own[1]) * sum(base[0]))
    return {"over_base": ratio, "over_base_ci95": ratio_of_ratios_interval(own, base)}


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Greedy decoding of some prompts: tokens and cycles of each, and what drafted."""

    committed: tuple[int, ...]
    cycles: tuple[int, ...]
    texts_sha256: str
    drafter: dict[str, Any]


def decode(
    llm: LLM, folder: Path, answers: Sequence[Answer], num_tokens: int, name: str
) -> Decoded:
    """Answer the prompts of held-out answers anew, with a drafter."""
    drafter = open_drafter(str(folder), llm.target)
    engine = LLM.from_parts(llm.loaded, drafter, llm.limits)
    outputs = engine.generate(
        [list(each.prompt_ids) for each in answers], SamplingParams(max_tokens=num_tokens)
    )
    texts = str([output.token_ids for output in outputs])
    return Decoded(
        committed=tuple(output.speculation.committed for output in outputs),
        cycles=tuple(output.speculation.cycles for output in outputs),
        texts_sha256=hashlib.sha256(texts.encode()).hexdigest()[:16],
        drafter=drafter.describe() | {"source": name},
    )


def decoded_figures(own: Decoded, base: Decoded | None) -> dict[str, Any]:
    """Acceptance length of decoding, with intervals by answer."""
    pair = (own.committed, own.cycles)
    return {
        "num_answers": len(own.committed),
        "committed": sum(own.committed),
        "cycles": sum(own.cycles),
        "tau_pooled": sum(own.committed) / sum(own.cycles),
        "tau_pooled_ci95": ratio_interval(*pair),
        **_against(pair, None if base is None else (base.committed, base.cycles)),
        "texts_sha256": own.texts_sha256,
    }


def _no_target() -> NoReturn:
    raise AssertionError("features are read from shards")
