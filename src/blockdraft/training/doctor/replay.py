"""Answers decoded in the loop, then the very same blocks on the training path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.data.answers import Answer
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.decoding.row import Row
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner
from blockdraft.targets.base import Target
from blockdraft.training.doctor.paths import Blocks
from blockdraft.types import Cycle, SamplingParams


@dataclass(frozen=True)
class Decoded:
    """Greedy answers, with what each cycle did.

    Attributes:
        answers: as samples.
        cycles: of each answer, all but the last, which its end cut short.
    """

    answers: Sequence[Answer]
    cycles: Sequence[Sequence[Cycle]]

    @property
    def mean_len(self) -> float:
        """Tokens that a whole cycle committed, the correction or bonus included."""
        lens = [1 + cycle.accepted_len for cycles in self.cycles for cycle in cycles]
        return sum(lens) / max(1, len(lens))

    def anchors(self) -> list[list[int]]:
        """Position of the anchor of each cycle: the first token after the prompt is prefill's."""
        found = []
        for answer, cycles in zip(self.answers, self.cycles, strict=True):
            place, places = len(answer.prompt_ids), list[int]()
            for cycle in cycles:
                places.append(place)
                place += len(cycle.committed_ids)
            found.append(places)
        return found

    def blocks(self, target: Target, layer_ids: tuple[int, ...]) -> Blocks:
        """The cycles as blocks, with states as training has them."""
        features = OnlineFeatures(self.answers, target, layer_ids)
        return Blocks(features.batch(range(len(self.answers))), self.anchors())


def decode(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> Decoded:
    """Greedy answers from the engine; those without a whole cycle are left out."""
    rows = llm.rows([list(prompt) for prompt in prompts], SamplingParams(max_tokens=max_tokens))
    for _ in Runner(llm.target, llm.drafter, rows, llm.limits).run():
        pass
    whole = [row for row in rows if len(row.cycles) > 1]
    return Decoded([_answer(i, row) for i, row in enumerate(whole)], [r.cycles[:-1] for r in whole])


def _answer(index: int, row: Row) -> Answer:
    return Answer(
        id=f"decoded/{index}",
        source="decoded",
        temperature=0.0,
        seed=0,
        prompt_ids=tuple(row.request.prompt_ids),
        token_ids=tuple(row.output_ids),
        finish_reason=str(row.finish_reason),
        is_looping=False,
    )
