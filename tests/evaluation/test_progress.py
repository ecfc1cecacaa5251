"""Progress is said now and then, with a rate of this run alone."""

from __future__ import annotations

import pytest

from blockdraft.evaluation.progress import Progress, duration


def test_rate_and_remaining_time() -> None:
    clock, lines = [100.0], []
    progress = Progress(100, lines.append, every_s=10, now=lambda: clock[0])
    progress.skip(40)
    for _ in range(12):
        clock[0] += 2
        progress.advance(1, "gsm8k, plain")
    assert lines == [
        "45/100 answers, 0.50/s, 1 min 50 s left (gsm8k, plain)",
        "50/100 answers, 0.50/s, 1 min 40 s left (gsm8k, plain)",
    ]


def test_before_the_first_answer_no_time_is_known() -> None:
    clock, lines = [0.0], []
    progress = Progress(8, lines.append, every_s=10, now=lambda: clock[0])
    clock[0] = 11.0
    progress.advance(0, "greedy")
    assert lines == ["0/8 answers, 0.00/s (greedy)"]


def test_the_end_is_always_said() -> None:
    lines: list[str] = []
    progress = Progress(2, lines.append, now=lambda: 1.0)
    progress.advance(2, "x")
    assert len(lines) == 1
    assert lines[0].startswith("2/2 answers")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (7322, "2 h 02 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
