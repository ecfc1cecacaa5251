"""A target that breaks behind some token: drafting changes neither when nor after what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from blockdraft.decoding import choose_tokens, step
from blockdraft.decoding.row import Row
from blockdraft.types import SamplingParams
from tests.exact.test_loop_law import (
    FAULTY,
    LENGTH,
    MAKERS,
    PLAIN,
    PROMPT,
    SURE,
    counts,
    run,
    table,
)
from tests.fakes.laws import Law, p_value, table_law
from tests.fakes.poison import PoisonedTarget
from tests.fakes.scripted import TableTarget

BROKEN = 3


def outputs(maker: str, num_requests: int, params: SamplingParams = PLAIN) -> list[Row]:
    rows = run(
        PoisonedTarget(TableTarget(table()), BROKEN, lambda row: row.fill_(float("nan"))),
        MAKERS[maker](),
        params,
        num_requests,
    )
    for row in rows:
        ends = row.output_ids.index(BROKEN) + 1 if BROKEN in row.output_ids else LENGTH
        assert len(row.output_ids) == ends
        assert (row.finish_reason == "error") == (ends < LENGTH)
    return rows


def ended(tokens: Sequence[int]) -> list[int]:
    """The output, filled up with the token behind which nothing could be said."""
    return [*tokens, *[BROKEN] * (LENGTH - len(tokens))]


def ended_law() -> Law:
    law = table_law(table(), PROMPT, LENGTH, PLAIN)
    places = np.indices(law.shape).reshape(LENGTH, -1)
    was = np.cumsum(places == BROKEN, axis=0) > 0
    out: Law = np.zeros_like(law)
    np.add.at(out, tuple(np.where(was, BROKEN, places)), law.ravel())
    return out


def worst(rows: Sequence[Row]) -> float:
    law, seen = ended_law(), counts([ended(row.output_ids) for row in rows])
    pairs = [(i, j) for i in range(LENGTH) for j in range(i + 1, LENGTH)]
    others = [tuple(k for k in range(LENGTH) if k not in pair) for pair in pairs]
    return min(p_value(seen.sum(other), law.sum(other)) for other in others)


@pytest.mark.parametrize("maker", MAKERS)
def test_bc10_bc23_the_law_up_to_the_token_that_breaks_it(maker: str) -> None:
    rows = outputs(maker, 2500)
    assert worst(rows) > SURE
    if maker != "plain":
        assert any(cycle.accepted_len for row in rows for cycle in row.cycles)


@pytest.mark.parametrize("maker", MAKERS)
def test_bc23_greedy_texts_end_at_the_same_token(maker: str) -> None:
    greedy = SamplingParams(max_tokens=LENGTH)
    plain = [(row.output_ids, row.error) for row in outputs("plain", 1, greedy)]
    assert [(row.output_ids, row.error) for row in outputs(maker, 1, greedy)] == plain


def test_bc10_taking_the_whole_draft_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a draft is judged must not depend on what stands behind it."""
    true = choose_tokens.choose_tokens

    def faulty(rows, proposal, output):  # type: ignore[no-untyped-def]
        flags = choose_tokens._nonfinite(output.logits.flatten(0, 1), None)
        width, (verdict, faults) = output.logits.shape[1], true(rows, proposal, output)
        accepted = list(verdict.accepted_len)
        for i, length in enumerate(proposal.lens):
            if any(flags[i * width : i * width + length + 1]):
                faults[i] = choose_tokens.Fault(0, "all of it")
                accepted[i] = 0
        return choose_tokens.Verdict(tuple(accepted), verdict.next_ids), faults

    monkeypatch.setattr(step, "choose_tokens", faulty)
    assert worst(outputs("sparse", 2500)) < FAULTY
