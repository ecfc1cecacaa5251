"""What answers prompts: the methods of this process, all on one target."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.engine.llm import LLM
from blockdraft.errors import ConfigError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.candidates import CandidateWatch, count_candidates
from blockdraft.evaluation.run_chunk import run_chunk
from blockdraft.evaluation.tasks import EvalPrompt
from blockdraft.registry import NONE, load_drafter
from blockdraft.types import SamplingParams

#: The method without a drafter, which the others are compared with.
PLAIN = "plain"

#: Prompts of a watched chunk; they run at once.
WATCHED_CHUNK = 8


class Engine(Protocol):
    """What answers prompts: a method in this process, or a server."""

    def run(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], concurrency: int
    ) -> ChunkRun:
        """Answer every turn of the prompts, up to `concurrency` at once."""
        ...

    def describe(self) -> dict[str, Any]:
        """What runs, for provenance."""
        ...


class LocalEngine:
    """A method in this process."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def run(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], concurrency: int
    ) -> ChunkRun:
        """See `Engine`.

        Where drafts are fitted to the load, sampled prompts that run beside others are drawn from
        fresh streams: one with a seed of its own would keep its whole blocks, which is not what a
        request of a busy server does.
        """
        if concurrency > 1 and self.llm.budget is not None and self.llm.drafter is not None:
            params = [p if p.is_greedy else dataclasses.replace(p, seed=None) for p in params]
        return run_chunk(self.llm, prompts, params, concurrency)

    def describe(self) -> dict[str, Any]:
        """See `Engine`."""
        return self.llm.describe()

    @property
    def why_no_candidates(self) -> str | None:
        """What keeps the drafter from having candidates to look at; None if it has some."""
        if self.llm.drafter is None:
            return "it drafts nothing"
        if isinstance(self.llm.drafter.innermost, BlockDrafter):
            return None
        return "its drafts are not chosen among candidates"

    def watch(self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams]) -> ChunkRun:
        """Answer prompts once more, untimed, and count what the drafter had to choose from."""
        drafter = self.llm.drafter
        assert drafter is not None
        assert isinstance(drafter.innermost, BlockDrafter)
        watch = CandidateWatch(drafter.innermost)
        llm = LLM.from_parts(self.llm.loaded, drafter.with_innermost(watch), self.llm.limits)
        run_chunk(llm, prompts, params, WATCHED_CHUNK)
        return ChunkRun(
            answers=(),
            wall_s=0.0,
            phase_s=None,
            num_passes=None,
            candidates=count_candidates(watch.seen),
        )


def local_engines(
    llm: LLM,
    methods: Sequence[str],
    num_draft_tokens: int | None = None,
    *,
    adaptive: bool = False,
) -> dict[str, Engine]:
    """An engine for each method, all on one target.

    Args:
        llm: an engine without a drafter.
        methods: `plain`, names of drafters, folders of checkpoints.
        adaptive: fit drafts to the load; each method learns its own.
    Raises: ConfigError for none, one named twice, or a drafter that is to draft nothing; what
        `load_drafter` raises.
    """
    if not methods or len(set(methods)) < len(methods):
        raise ConfigError(f"methods are {list(methods)}; give one or several different ones")
    drafters = [method for method in methods if method not in (PLAIN, NONE)]
    if num_draft_tokens == 0 and drafters:
        raise ConfigError(
            f"num_draft_tokens is 0, with which {', '.join(drafters)} would be plain decoding "
            f"under another name; give 1 or more, or {PLAIN!r} as the only method"
        )
    engines: dict[str, Engine] = {}
    for method in methods:
        if method == NONE:
            raise ConfigError(f"method {NONE!r} is called {PLAIN!r} here")
        drafter = None
        if method != PLAIN:
            drafter = load_drafter(method, llm.target, num_draft_tokens=num_draft_tokens)
        engines[method] = LocalEngine(
            LLM.from_parts(llm.loaded, drafter, llm.limits, adaptive=adaptive)
        )
    return engines
