"""Times of the passes that a cycle is made of, at several widths and loads, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from blockdraft.cache.base import DraftContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import RowBatch, Target
from blockdraft.types import SamplingParams

_CHUNK = 512  # tokens read in one pass

Pass = Callable[[], object]


Key = TypeVar("Key")


def alternate(passes: Mapping[Key, Pass], repeats: int) -> dict[Key, float]:
    """Median time of each, in ms, in turns, so that noise hits all alike; one round warms up."""
    times: dict[Key, list[float]] = {key: [] for key in passes}
    for turn in range(repeats + 1):
        for key, run in passes.items():
            start = time.perf_counter()
            run()
            if turn:
                times[key].append((time.perf_counter() - start) * 1e3)
    return {key: statistics.median(found) for key, found in times.items()}


class Bench:
    """Models with `ids` read into each of `concurrency` sequences, ready to be timed.

    Args:
        max_rows: most rows of a pass.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        ids: Sequence[int],
        concurrency: int,
        max_rows: int,
    ) -> None:
        # What is looked up costs nothing: a pass of the drafter behind it is what is measured.
        drafter = None if drafter is None else drafter.innermost
        self.target, self.drafter, self.ids = target, drafter, list(ids)
        self.concurrency = concurrency
        self.cache = target.new_cache(concurrency, len(ids) + max_rows)
        self.context: DraftContext | None = None
        if drafter is not None:
            self.context = drafter.new_context(concurrency, len(ids) + max_rows)
        for slot in range(concurrency):
            self._read(slot)

    def verify(self, num_rows: int) -> Pass:
        """A pass over new rows of every sequence."""
        new = [self.ids[i % len(self.ids)] for i in range(num_rows)]
        ids = torch.tensor([new] * self.concurrency, device=self.target.device)
        batch = RowBatch(ids, (num_rows,) * self.concurrency, wants_best=True)

        @torch.inference_mode()
        def run() -> None:
            with _threads(self.target):
                self.target.forward(self.cache, batch)
                _wait(self.target.device)
            for slot in range(self.concurrency):
                self.cache.crop(slot, len(self.ids) - 1)

        return run

    def draft(self) -> Pass:
        """Drafting and selecting for every sequence, greedily, as many tokens as the drafter does.

        Raises: ValueError if there is no drafter.
        """
        drafter, context = self.drafter, self.context
        if drafter is None or context is None:
            raise ValueError("no drafter to time")
        batch = DraftBatch(
            anchor_ids=torch.tensor([self.ids[-1]] * self.concurrency, device=self.target.device),
            positions=(len(self.ids) - 1,) * self.concurrency,
            token_ids=[self.ids] * self.concurrency,
            max_lens=(drafter.num_draft_tokens,) * self.concurrency,
            temperatures=(0.0,) * self.concurrency,
        )

        @torch.inference_mode()
        def run() -> None:
            with _threads(self.target):
                drafter.select(drafter.draft(context, batch), batch)
                _wait(self.target.device)

        return run

    @torch.inference_mode()
    def _read(self, slot: int) -> None:
        """All tokens but the last, which is the anchor."""
        layers = () if self.drafter is None else self.drafter.target_layer_ids
        for start in range(0, len(self.ids) - 1, _CHUNK):
            part = self.ids[:-1][start : start + _CHUNK]
            ids = torch.tensor([part], device=self.target.device)
            with _threads(self.target):
                batch = RowBatch(ids, (len(part),), slot, "none", layers)
                features = self.target.forward(self.cache, batch).features
            if self.context is not None:
                self.context.append(features, slot, [start], [len(part)])


def other_ms(llm: LLM, ids: Sequence[int], concurrency: int, num_tokens: int = 16) -> float:
    """What a cycle of plain decoding takes beside its pass: choosing, text, bookkeeping."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    rows = llm.rows([list(ids)] * concurrency, params)
    limits = RunnerLimits(max_batch_size=concurrency)
    runner = Runner(llm.target, None, rows, limits)
    for _ in runner.run():
        pass
    timing = rows[-1].timing
    assert timing is not None
    return timing.other_s / max(1, len(rows[-1].cycles)) * 1e3


def _threads(target: Target) -> AbstractContextManager[None]:
    return torch_on_one_thread(target.has_own_threads)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
