"""Figures of scripted cycles against values worked out by hand."""

from __future__ import annotations

import pytest

from blockdraft.errors import ConfigError
from blockdraft.evaluation.acceptance import CycleCounts, acceptance, predicted_speedup
from blockdraft.types import Cycle


def counts(*cycles: tuple[int, int, int]) -> list[CycleCounts]:
    return [CycleCounts(*cycle) for cycle in cycles]


# Prompt 1: two turns. Prompt 2: one turn, which a stop cuts within its accepted drafts.
FIRST = counts((3, 3, 4), (3, 0, 1), (3, 1, 2))  # 7 tokens in 3 cycles
SECOND = counts((3, 2, 3), (1, 1, 1))  # 4 in 2; the limit cuts after the accepted draft
THIRD = counts((3, 0, 1), (3, 2, 2))  # 3 in 2; a stop among the drafts
PROMPTS = [[FIRST, SECOND], [THIRD]]


def test_both_means() -> None:
    figures = acceptance(PROMPTS)
    assert (figures.cycles, figures.drafted, figures.accepted, figures.committed) == (7, 19, 9, 14)
    assert figures.tau == pytest.approx((7 / 3 + 2 + 3 / 2) / 3)
    assert figures.tau_pooled == pytest.approx(14 / 7)


def test_positions() -> None:
    figures = acceptance(PROMPTS)
    assert figures.drafted_by_position == (7, 6, 6)
    assert figures.accepted_by_position == (5, 3, 1)
    assert figures.acceptance_by_position == pytest.approx((5 / 7, 3 / 6, 1 / 6))
    # Slot 0: every cycle. Slot 1: (3,3) (3,1) (3,2) (3,2 cut). Slot 2: (3,3) and (3,2); the cut one
    # was not judged there.
    assert figures.conditional_acceptance_by_position == pytest.approx((5 / 7, 3 / 4, 1 / 2))


def test_histogram() -> None:
    # 4, 1, 2, 3, 1, 1, 2 tokens.
    assert acceptance(PROMPTS).committed_histogram == (0, 3, 2, 1, 1)


def test_every_count_of_committed_tokens_is_in_the_histogram() -> None:
    figures = acceptance(PROMPTS)
    histogram = figures.committed_histogram
    assert sum(histogram) == figures.cycles
    assert sum(n * count for n, count in enumerate(histogram)) == figures.committed


def test_a_cycle_that_was_taken_back_judges_nothing() -> None:
    figures = acceptance([[counts((2, 0, 0), (0, 0, 1))]])
    assert figures.accepted_by_position == (0, 0)
    assert figures.conditional_acceptance_by_position == (None, None)
    assert figures.tau == 0.5


def test_plain_decoding_has_a_tau_of_one() -> None:
    figures = acceptance([[counts((0, 0, 1), (0, 0, 1))], [counts((0, 0, 1))]])
    assert (figures.tau, figures.tau_pooled) == (1.0, 1.0)
    assert figures.tau_ci95 == (1.0, 1.0)
    assert figures.accepted_by_position == ()


def test_answers_of_one_token_have_no_cycle() -> None:
    figures = acceptance([[[]], [[]]])
    assert (figures.tau, figures.tau_pooled, figures.tau_ci95) == (None, None, None)
    assert figures.committed_histogram == ()
    assert acceptance([[[]], [FIRST]]).tau == pytest.approx(7 / 3)


def test_counts_of_a_cycle() -> None:
    assert CycleCounts.of(Cycle(7, 2, (5, 6, 7))) == CycleCounts(7, 2, 3)
    assert not CycleCounts(7, 2, 3).is_cut
    assert CycleCounts(7, 2, 2).is_cut


def test_predicted_speedup() -> None:
    found = predicted_speedup(tau=3.0, plain_ms=10.0, draft_ms=2.0, verify_ms=12.0, other_ms=1.0)
    assert found == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tau", -1.0), ("plain_ms", 0.0), ("verify_ms", float("nan")), ("other_ms", float("inf"))],
)
def test_costs_that_no_run_has_are_refused(name: str, value: float) -> None:
    costs = {"tau": 2.0, "plain_ms": 1.0, "draft_ms": 0.0, "verify_ms": 1.0, "other_ms": 0.0}
    with pytest.raises(ConfigError, match=f"^{name} is "):
        predicted_speedup(**{**costs, name: value})
