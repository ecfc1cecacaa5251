"""Every second belongs to one phase, and the parts add up."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from blockdraft.decoding import clock as clock_module
from blockdraft.decoding.clock import Clock


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that shows what the test says."""
    shown = [100.0]
    monkeypatch.setattr(clock_module.time, "perf_counter", lambda: shown[0])
    return shown


def test_phases_and_the_rest(hands: list[float]) -> None:
    clock = Clock(torch.device("cpu"))
    mark = clock.mark()
    for name, seconds in (("prefill", 1.0), ("draft", 2.0), ("verify", 4.0), ("draft", 8.0)):
        with clock.phase(name):
            hands[0] += seconds
        hands[0] += 0.5  # between the phases
    timing = clock.since(mark)
    assert dataclasses.asdict(timing) == {
        "prefill_s": 1.0,
        "draft_s": 10.0,
        "select_s": 0.0,
        "verify_s": 4.0,
        "other_s": 2.0,
        "total_s": 17.0,
    }
    assert timing.decode_s == 16.0


def test_what_was_before_the_mark_is_not_counted(hands: list[float]) -> None:
    clock = Clock(torch.device("cpu"))
    with clock.phase("verify"):
        hands[0] += 5.0
    mark = clock.mark()
    with clock.phase("verify"):
        hands[0] += 1.0
    assert clock.since(mark).verify_s == clock.since(mark).total_s == 1.0


def test_a_phase_that_fails_is_counted_too(hands: list[float]) -> None:
    clock = Clock(torch.device("cpu"))
    mark = clock.mark()

    def failing() -> None:
        with clock.phase("draft"):
            hands[0] += 3.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert clock.since(mark).draft_s == 3.0
