"""Streams: the same answer piece by piece; a stream or request that is given up leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from blockdraft.decoding.row import Row
from blockdraft.engine import llm as llm_module
from blockdraft.engine.llm import StreamPiece
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.types import Request, SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.drafting import VariedDrafter, random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, script_for, solo
from tests.fakes.scripted import accept_all

PROMPTS = random_prompts([6, 13, 2, 21])
PARAMS = SamplingParams(max_tokens=20)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[Runner]:
    """The runners that an engine makes, in order."""
    made: list[Runner] = []

    class Noted(Runner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(llm_module, "Runner", Noted)
    return made


def is_idle(runner: Runner) -> bool:
    """No row, and nothing in any slot."""
    context: Any = runner.state.context
    lens = [*runner.state.cache.lens, *getattr(context, "lens", ())]
    return not runner.state.rows and not any(lens)


@pytest.mark.parametrize(
    "params",
    [
        PARAMS,
        SamplingParams(max_tokens=20, temperature=1.0, seed=3, stop=" 46,"),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=0),
    ],
)
@pytest.mark.parametrize("method", [None, "dflash2", "varied"])
def test_a_stream_is_the_answer_in_pieces(method: str | None, params: SamplingParams) -> None:
    target = tiny_target(end_ids=())
    varied = VariedDrafter(script_for(target, PROMPTS, PARAMS, accept_all))
    drafter = {None: None, "varied": varied, "dflash2": random_drafter(target)}[method]
    llm = make_llm(target, drafter)
    for prompt in PROMPTS[:2]:
        pieces, [output] = list(llm.stream(prompt, params)), llm.generate([prompt], params)
        assert "".join(piece.text for piece in pieces) == output.text
        assert sum((piece.token_ids for piece in pieces), ()) == output.token_ids
        assert [piece.output is None for piece in pieces[:-1]] == [True] * (len(pieces) - 1)
        last = pieces[-1].output
        assert last is not None
        assert (last.text, last.token_ids) == (output.text, output.token_ids)
        assert last.finish_reason == output.finish_reason
        assert (last.usage, last.speculation) == (output.usage, output.speculation)


def test_tokens_arrive_cycle_by_cycle() -> None:
    target = tiny_target(end_ids=())
    llm = make_llm(target, script_for(target, PROMPTS, PARAMS, accept_all))
    lens = [len(piece.token_ids) for piece in llm.stream(PROMPTS[0], PARAMS)]
    assert lens == [1, 8, 8, 3]


def closed_after(stream: Iterator[StreamPiece], num_pieces: int) -> None:
    for _ in range(num_pieces):
        next(stream)
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_pieces", [0, 1, 2])
def test_bc31_a_closed_stream_frees_its_slot(num_pieces: int, runners: list[Runner]) -> None:
    llm = make_llm(tiny_target(end_ids=()), random_drafter(tiny_target()))
    [expected] = llm.generate([PROMPTS[1]], PARAMS)
    runners.clear()
    closed_after(llm.stream(PROMPTS[0], PARAMS), num_pieces)
    assert len(runners) == min(num_pieces, 1)  # before the first piece, nothing was begun
    assert all(is_idle(runner) for runner in runners)
    assert llm.generate([PROMPTS[1]], PARAMS)[0].token_ids == expected.token_ids


def test_bc31_a_stream_closed_during_the_prompt(
    runners: list[Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader goes away while the second chunk of its prompt is read."""
    target = tiny_target(end_ids=())
    llm, forward = make_llm(target, prefill_chunk_len=8), target.forward
    stream = llm.stream(PROMPTS[3], PARAMS)

    def interrupted(cache: Any, batch: Any) -> Any:
        if cache.lens[0]:
            raise KeyboardInterrupt
        return forward(cache, batch)

    monkeypatch.setattr(target, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert is_idle(runners[0])


def rows_of(prompts: list[list[int]]) -> list[Row]:
    return [
        Row(
            request=Request(prompt_ids=tuple(p), params=PARAMS),
            limit_len=len(p) + 20,
            target_end_ids=frozenset(),
        )
        for p in prompts
    ]


@pytest.mark.parametrize(("method", "at_step"), [(None, 0), (None, 5), ("dflash2", 1)])
@pytest.mark.parametrize("cancelled", range(4))
def test_bc31_a_cancelled_row_leaves_the_others_alone(
    at_step: int, cancelled: int, method: str | None
) -> None:
    """Two slots and four requests: the cancelled one runs, or waits, or has just begun."""
    target = tiny_target(end_ids=())
    expected = ids_of(solo(target, PROMPTS, PARAMS))
    rows = rows_of(PROMPTS)
    drafter = None if method is None else random_drafter(target)
    runner = Runner(target, drafter, rows, RunnerLimits(max_batch_size=2))
    for step, _ in enumerate(runner.run()):
        if step == at_step:
            written = len(rows[cancelled].output_ids)
            runner.cancel(cancelled)
            assert not any(row is rows[cancelled] for row in runner.state.rows)
    assert is_idle(runner)
    for i, row in enumerate(rows):
        assert row.timing is not None
        if i == cancelled:
            assert row.finish_reason == "cancelled"
            assert row.output_ids == list(expected[i][:written])
        else:
            assert (row.finish_reason, tuple(row.output_ids)) == ("length", expected[i])


def test_bc31_cancelling_twice_or_too_late_changes_nothing() -> None:
    target = tiny_target(end_ids=())
    rows = rows_of(PROMPTS[:2])
    runner = Runner(target, None, rows, RunnerLimits())
    for step, _ in enumerate(runner.run()):
        if step == 3:
            runner.cancel(0)
            runner.cancel(0)
    runner.cancel(1)
    assert [row.finish_reason for row in rows] == ["cancelled", "length"]
    assert is_idle(runner)
