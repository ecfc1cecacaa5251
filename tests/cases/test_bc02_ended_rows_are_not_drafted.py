"""BC-02: a row that has ended costs no draft, beside rows that go on."""

from __future__ import annotations

from typing import Any

import pytest

from blockdraft.drafters.base import DraftBatch
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import greedy_oracle, ids_of, random_prompts, with_end_ids
from tests.fakes.scripted import ScriptedDrafter, accept_all

PROMPTS = [random_prompts([n], seed=seed)[0] for n, seed in ((6, 8), (13, 5), (21, 9))]
LIMITED = SamplingParams(max_tokens=30, ignore_eos=True)


class Counting(ScriptedDrafter):
    """Notes the prompts of the rows that it drafts for."""

    def draft(self, context: Any, batch: DraftBatch) -> Any:
        self.seen = [*getattr(self, "seen", []), *(ids[0] for ids in batch.token_ids)]
        return super().draft(context, batch)


@pytest.mark.parametrize(("place", "num_drafts"), [(0, 0), (4, 1), (8, 1)])
def test_the_row_in_the_middle_ends(place: int, num_drafts: int) -> None:
    """At its first token, inside its first block, and with that block's bonus token."""
    target = tiny_target(end_ids=())
    free = [greedy_oracle(target, prompt, 30) for prompt in PROMPTS]
    end_id = free[1][place]
    assert free[1].index(end_id) == place
    params = [LIMITED, SamplingParams(max_tokens=30), LIMITED]
    script = Counting(
        {tuple(p): ids for p, ids in zip(PROMPTS, free, strict=True)}, accept_all, 7, 160
    )
    outputs = make_llm(with_end_ids(target, end_id), script).generate(PROMPTS, params)
    assert ids_of(outputs) == [free[0], free[1][: place + 1], free[2]]
    assert [script.seen.count(prompt[0]) for prompt in PROMPTS] == [4, num_drafts, 4]
    assert [output.finish_reason for output in outputs] == ["length", "stop", "length"]
