"""BC-24: drafts that are finite and never accepted are said, once, whatever the requests."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest

from blockdraft.drafters.alarm import NUM_CYCLES, AcceptanceAlarm
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.types import Proposal, SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, scripted, solo
from tests.fakes.scripted import Pattern, ScriptedDrafter, accept_all, accept_none

TARGET, PROMPTS = tiny_target(end_ids=()), random_prompts([13, 5])
PARAMS = SamplingParams(max_tokens=NUM_CYCLES // 2 + 1)  # the first token is prefill's


def notices(drafter: Drafter, num_runs: int) -> list[str]:
    """What is said in some runs of an engine; its text is the target's in each."""
    expected = ids_of(solo(TARGET, PROMPTS, PARAMS))
    llm = make_llm(TARGET, drafter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(num_runs):
            assert ids_of(llm.generate(PROMPTS, PARAMS)) == expected
    return [str(notice.message) for notice in caught]


def drafter_of(pattern: Pattern, taps: tuple[int, ...] = (0, 1)) -> Any:
    drafter = scripted(TARGET, PROMPTS, pattern)
    drafter.target_layer_ids = taps
    return drafter


def test_never_accepted_is_said_once_over_all_requests() -> None:
    drafter = drafter_of(accept_none)
    assert notices(drafter, 1) == []  # the last token of each row drafts nothing
    [message] = notices(drafter, 3)
    for word in ("'scripted'", f"in {NUM_CYCLES} cycles", "taps", "template", "blockdraft doctor"):
        assert word in message


def test_one_accepted_draft_in_a_while_is_enough() -> None:
    rarely = drafter_of(lambda cycle, j: cycle % 25 == 0)
    assert notices(rarely, 4) == []


def test_a_drafter_without_features_may_have_nothing_to_draft() -> None:
    assert notices(drafter_of(accept_none, taps=()), 3) == []
    assert NgramDrafter().alarm is None


class NowAndThen(ScriptedDrafter):
    """Has something to look up at every eighth length of a text."""

    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        found = super().select(drafted, batch)
        lens = [
            0 if len(text) % 8 else n for text, n in zip(batch.token_ids, found.lens, strict=True)
        ]
        return dataclasses.replace(found, lens=tuple(lens))


def test_what_was_looked_up_does_not_speak_for_the_drafter_behind_it() -> None:
    right, wrong = drafter_of(accept_all, taps=()), drafter_of(accept_none)
    lookup = NowAndThen(right.oracles, accept_all, right.num_draft_tokens, right.vocab_size)
    [message] = notices(LookupFirst(lookup, wrong), 20)
    assert f"in {NUM_CYCLES} cycles" in message


def test_cycles_without_a_draft_do_not_count() -> None:
    alarm = AcceptanceAlarm("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(NUM_CYCLES - 1):
            alarm.note(7, 0)
            alarm.note(0, 0)
        with pytest.raises(UserWarning, match="none of the drafts of 'x'"):
            alarm.note(1, 0)
