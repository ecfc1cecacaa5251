"""The test of the law on tiny models: right engines pass, each mistake is found and named."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from blockdraft.decoding import choose_tokens
from blockdraft.drafters.base import Drafter
from blockdraft.errors import ConfigError
from blockdraft.evaluation.lossless.contexts import find_contexts
from blockdraft.evaluation.lossless.distribution import Distribution, check_distribution
from blockdraft.evaluation.lossless.joint import joint_law
from blockdraft.evaluation.lossless.law import LawAfter, is_clear, reference_law
from blockdraft.evaluation.lossless.sample import Coverage, draw_sample
from blockdraft.evaluation.lossless.settings import LosslessSettings
from blockdraft.sampling.warp import probabilities
from blockdraft.types import SamplingParams
from tests.evaluation.lossless.faulty import (
    NUM_DRAFT,
    VISIBLE,
    VOCAB,
    llm_of,
    point,
    sparse,
    table,
    unwarped,
)
from tests.fakes.laws import table_law, warped

PROMPTS = [("a", [3, 1, 1]), ("b", [2, 5]), ("c", [7, 0, 4])]
SMALL: dict[str, Any] = {"num_contexts": 2, "num_samples": 800, "depth": 4}


def check(drafter: Drafter | None, **changes: Any) -> Distribution:
    settings = LosslessSettings(**{**SMALL, **changes})
    return check_distribution(llm_of(drafter), PROMPTS, settings)


@cache
def right() -> Distribution:
    return check(sparse())


def test_a_right_engine_passes_and_every_branch_was_tested() -> None:
    found = right()
    assert found.num_faults(1e-3) == 0
    assert not found.is_vacuous
    assert not found.notes
    cover = found.coverage
    assert min(cover.accepted, cover.rejected, cover.completed) > 50
    assert {test.kind for test in found.tests} == {"next", "joint", "all"}
    assert found.num_requests == 2400


def test_it_says_what_it_would_have_seen() -> None:
    found = right()
    one, every = found.detectable("next"), found.detectable("all")
    assert one is not None
    assert every is not None
    assert 0.0 < every < one < 0.5


@pytest.mark.parametrize(
    "warp", [{"top_k": 5, "top_p": 0.9, "temperature": 0.8}, {"min_p": 0.2, "temperature": 1.3}]
)
def test_other_samplings_pass(warp: dict[str, float]) -> None:
    found = check(point(), **warp)
    assert found.num_faults(1e-3) == 0
    assert found.coverage.rejected > 50


@pytest.mark.parametrize("rule", VISIBLE, ids=lambda rule: rule.__name__)
def test_a_wrong_rule_is_found(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_tokens, "accept_sampled", rule)
    found = check(sparse())
    assert found.num_faults(1e-3) > 0
    assert min(test.adjusted_p for test in found.tests) < 1e-6


def test_a_q_told_before_warping_is_found() -> None:
    found = check(unwarped())
    assert min(test.adjusted_p for test in found.tests) < 1e-6


def test_a_drafter_that_never_drafts_is_no_proof() -> None:
    found = check(None, num_samples=200)
    assert found.num_faults(1e-3) == 0
    assert found.is_vacuous
    assert "drafted nothing" in found.notes[0]


def test_long_prompts_are_left_out_and_said() -> None:
    long = ("long", [1] * 400)
    said: list[str] = []
    llm, params = llm_of(sparse()), SamplingParams(temperature=1.0)
    found = find_contexts(llm, [*PROMPTS, long], params, 4, said.append)
    assert said == ["1 long prompts are left out of the test of the law"]
    assert {context.prompt_id for context in found} <= {"a", "b", "c"}
    assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)
    with pytest.raises(ConfigError, match="give one"):
        find_contexts(llm, [long], params, 4)


def test_a_context_ends_where_a_sure_token_comes_before_an_open_one() -> None:
    llm, params = llm_of(sparse()), SamplingParams(temperature=1.0)
    [best] = find_contexts(llm, PROMPTS, params, 1)
    logits = LawAfter(llm.target, best.ids, 1).logits()
    assert float(reference_law(logits, params).max()) > 0.3
    generated = len(best.ids) - len(dict(PROMPTS)[best.prompt_id])
    assert generated == best.num_generated


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
    ],
)
def test_the_reference_law_is_that_of_the_plain_formulas(changes: dict[str, Any]) -> None:
    params, logits = SamplingParams(**changes), table()[1]
    for row, drawn in zip(logits, probabilities(logits, [params] * VOCAB), strict=True):
        law = reference_law(row, params)
        torch.testing.assert_close(law, torch.from_numpy(warped(row.numpy(), params)))
        torch.testing.assert_close(law, drawn.double(), atol=1e-6, rtol=0.0)


def test_unclear_edges_are_seen() -> None:
    logits = torch.tensor([4.0, 3.0, 2.99, 1.0])
    assert is_clear(logits, SamplingParams(temperature=1.0), 0.1)
    assert is_clear(logits, SamplingParams(temperature=1.0, top_k=1), 1e-2)
    assert not is_clear(logits, SamplingParams(temperature=1.0, top_k=2), 1e-2)
    mass = float(reference_law(logits, SamplingParams(temperature=1.0))[0])
    near = SamplingParams(temperature=1.0, top_p=mass + 1e-4)
    assert not is_clear(logits, near, 1e-3)
    assert is_clear(logits, near, 1e-6)


def test_the_joint_law_is_that_written_out_by_hand() -> None:
    params = SamplingParams(temperature=1.0, top_k=2)
    found = joint_law(llm_of(None).target, [2, 5], params, 3, 0.0)
    by_hand = table_law(table(), [2, 5], 3, params)
    assert found.is_clear
    assert len(found.texts) == 8
    assert sum(found.probs) == pytest.approx(1.0)
    for text, mass in zip(found.texts, found.probs, strict=True):
        assert mass == pytest.approx(float(by_hand[text]))


def test_the_joint_law_stops_at_the_end_token() -> None:
    params = SamplingParams(temperature=1.0, top_k=3)
    end = int(table()[2, 5].argmax())
    found = joint_law(llm_of(None, end_ids=(end,)).target, [2, 5], params, 3, 0.0)
    assert (end,) in found.texts
    assert all(end not in text[:-1] for text in found.texts)
    assert sum(found.probs) == pytest.approx(1.0)


def test_samples_are_cut_at_their_depth_and_blocks_are_whole() -> None:
    llm, params = llm_of(sparse()), SamplingParams(temperature=1.0)
    done: list[int] = []
    found = draw_sample(llm, [2, 5], params, seeds=range(50), depth=3, advance=done.append)
    assert {len(text) for text in found.sequences} == {3}
    assert sum(done) == 50
    again = draw_sample(llm, [2, 5], params, seeds=range(50), depth=3)
    assert again.sequences == found.sequences
    plain = draw_sample(llm_of(None), [2, 5], params, seeds=range(50), depth=3)
    assert plain.coverage.drafted_cycles == 0
    assert [text[0] for text in plain.sequences] == [text[0] for text in found.sequences]
    # Half of the requests end here: the last cycle of those has no room for a draft.
    assert found.coverage.drafted_cycles < found.coverage.cycles
    assert found.coverage.completed > 0


def test_coverage_adds_up() -> None:
    one = Coverage(cycles=2, drafted_cycles=1, accepted=NUM_DRAFT, rejected=0, completed=1)
    assert one + one == Coverage(cycles=4, drafted_cycles=2, accepted=6, rejected=0, completed=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_samples", 199), ("depth", 1), ("alpha", 0.0), ("temperature", 0.0), ("joint_len", 7)],
)
def test_sizes_that_prove_nothing_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        LosslessSettings(**{field: value})


def test_no_two_tests_share_a_seed() -> None:
    settings = LosslessSettings(seed=5)
    assert settings.seeds(0)[-1] < settings.seeds(1)[0]
