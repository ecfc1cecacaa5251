"""Answers a few prompts with one engine and keeps the whole clock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from blockdraft.decoding.clock import PHASES as CLOCK_PHASES
from blockdraft.decoding.row import Row
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner
from blockdraft.errors import CapacityError
from blockdraft.evaluation.acceptance import CycleCounts
from blockdraft.evaluation.answers import PHASES, Answer, ChunkRun, answer_of, phases_of
from blockdraft.evaluation.memory import peak_bytes, reset_peak
from blockdraft.evaluation.tasks import EvalPrompt
from blockdraft.types import SamplingParams


def run_chunk(
    llm: LLM, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], concurrency: int
) -> ChunkRun:
    """Answer every turn of the prompts, up to `concurrency` of them at once.

    A later turn carries the method's own earlier answers. A turn that the target's context cannot
    hold is left out, and with it those behind it.
    """
    chats: list[list[dict[str, str]]] = [[] for _ in prompts]
    left_out: list[str] = []
    answers: list[Answer] = []
    seconds, num_passes, cache_bytes = dict.fromkeys(PHASES, 0.0), 0, 0
    reset_peak(llm.target.device)
    for turn in range(max(len(prompt.turns) for prompt in prompts)):
        asked = []
        for i, prompt in enumerate(prompts):
            if turn < len(prompt.turns) and prompt.id not in left_out:
                chats[i].append({"role": "user", "content": prompt.turns[turn]})
                row = _row(llm, chats[i], params[i])
                if row is None:
                    left_out.append(prompt.id)
                else:
                    asked.append((i, row))
        if not asked:
            continue
        runner = _Watch(llm, [row for _, row in asked], concurrency)
        runner.run()
        for (i, row), arrivals in zip(asked, runner.arrivals, strict=True):
            output = llm.output(row)
            cycles = map(CycleCounts.of, row.cycles)
            answers.append(answer_of(prompts[i].id, turn, output, arrivals, cycles))
            chats[i].append({"role": "assistant", "content": output.text})
        for name, value in runner.phase_s.items():
            seconds[name] += value
        num_passes += runner.num_passes
        cache_bytes = max(cache_bytes, runner.cache_bytes)
    return ChunkRun(
        answers=tuple(answers),
        wall_s=sum(seconds.values()),
        phase_s=seconds,
        num_passes=num_passes,
        left_out=tuple(left_out),
        peak_bytes=peak_bytes(llm.target.device),
        cache_bytes=cache_bytes,
    )


def sampling_of(params: SamplingParams, index: int) -> SamplingParams:
    """A prompt's own stream: seeded by its place in the task, whatever runs beside it."""
    return dataclasses.replace(params, seed=(params.seed or 0) + index)


def _row(llm: LLM, chat: list[dict[str, str]], params: SamplingParams) -> Row | None:
    """The request of a conversation; None if the context cannot hold it."""
    # A text alone also serves targets without a chat template.
    prompt: Any = chat[0]["content"] if len(chat) == 1 else chat
    try:
        [row] = llm.rows([prompt], params)
    except CapacityError:
        return None
    return row


class _Watch:
    """Runs rows to their end and notes when tokens arrive."""

    def __init__(self, llm: LLM, rows: Sequence[Row], concurrency: int) -> None:
        limits = dataclasses.replace(llm.limits, max_batch_size=concurrency)
        self._llm, self._rows, self._limits = llm, rows, limits
        self.arrivals: list[list[float]] = [[] for _ in rows]
        self.num_passes = 0
        self.cache_bytes = 0
        self.phase_s: dict[str, float] = {}

    def run(self) -> None:
        began = time.perf_counter(), dict.fromkeys(CLOCK_PHASES, 0.0)
        llm = self._llm
        runner = Runner(llm.target, llm.drafter, self._rows, self._limits, budget=llm.budget)
        state = runner.state
        for changed in self._steps(runner):
            now = state.clock.now()
            for i in changed:
                mark = self._rows[i].mark
                assert mark is not None
                self.arrivals[i].append(now - mark[0])
        self.phase_s = phases_of(state.clock.since(began))
        context = 0 if state.context is None else state.context.num_bytes()
        self.cache_bytes = state.cache.num_bytes() + context

    def _steps(self, runner: Runner) -> Iterator[list[int]]:
        """Indices of the rows that said something, after each pass."""
        said = [0] * len(self._rows)
        for changed in runner.run():
            news = [i for i in changed if len(self._rows[i].output_ids) > said[i]]
            self.num_passes += any(said[i] for i in changed)
            for i in news:
                said[i] = len(self._rows[i].output_ids)
            yield news
