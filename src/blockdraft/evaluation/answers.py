"""What is kept of a measured answer and of a chunk of them; both go to the journal as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft.decoding.clock import Timing
from blockdraft.engine.outputs import Output
from blockdraft.evaluation.acceptance import CycleCounts
from blockdraft.evaluation.candidates import CandidateCounts
from blockdraft.evaluation.server_metrics import ServerCounts


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer of one turn.

    Attributes:
        ttft_s: from joining the batch to the first token; None where there was none.
        gaps_s: seconds between two arrivals of tokens; those that arrive together count once.
        cycles: of our own engine; None where a server does not say.
    """

    prompt_id: str
    turn: int
    token_ids: tuple[int, ...]
    num_tokens: int
    prompt_tokens: int
    text: str
    finish_reason: str
    error: str | None
    ttft_s: float | None
    decode_s: float
    gaps_s: tuple[float, ...]
    cycles: tuple[CycleCounts, ...] | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """What `vars` of an answer became in a JSON file."""
        cycles = data["cycles"]
        return cls(
            **{
                **data,
                "token_ids": tuple(data["token_ids"]),
                "gaps_s": tuple(data["gaps_s"]),
                "cycles": None if cycles is None else tuple(CycleCounts(*c) for c in cycles),
            }
        )


def answer_of(
    prompt_id: str, turn: int, output: Output, arrivals: list[float], cycles: Iterable[CycleCounts]
) -> Answer:
    """The record of an engine's output; `arrivals` are seconds since it joined the batch."""
    return Answer(
        prompt_id=prompt_id,
        turn=turn,
        token_ids=output.token_ids,
        num_tokens=output.usage.completion_tokens,
        prompt_tokens=output.usage.prompt_tokens,
        text=output.text,
        finish_reason=output.finish_reason,
        error=output.error,
        ttft_s=arrivals[0] if arrivals else None,
        decode_s=output.timing.decode_s,
        gaps_s=tuple(round(b - a, 7) for a, b in itertools.pairwise(arrivals)),
        cycles=tuple(cycles),
    )


@dataclass(frozen=True, kw_only=True)
class ChunkRun:
    """Prompts that one method answered in one go.

    Attributes:
        wall_s: from the first prompt's start to the last token.
        phase_s: the same seconds by phase; None where a server answered.
        num_passes: passes of the target over anchors and drafts (a batch shares one).
        left_out: ids of prompts with a turn that does not fit the target's context.
        peak_bytes, cache_bytes: most memory of the process meanwhile; caches of target and drafter.
        candidates: what the drafter had to choose from, in a run that was watched, not timed.
        server_counts: drafting as a server counts it.
    """

    answers: tuple[Answer, ...]
    wall_s: float
    phase_s: Mapping[str, float] | None
    num_passes: int | None
    left_out: tuple[str, ...] = ()
    peak_bytes: int | None = None
    cache_bytes: int | None = None
    candidates: CandidateCounts | None = None
    server_counts: ServerCounts | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values for the journal."""
        return {
            **vars(self),
            "answers": [vars(answer) for answer in self.answers],
            "candidates": None if self.candidates is None else vars(self.candidates),
            "server_counts": None if self.server_counts is None else vars(self.server_counts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChunkRun:
        """The chunk that `as_json` wrote."""
        candidates, counts = data["candidates"], data["server_counts"]
        own = {
            "answers": tuple(Answer.from_json(answer) for answer in data["answers"]),
            "left_out": tuple(data["left_out"]),
            "candidates": candidates and CandidateCounts.from_json(candidates),
            "server_counts": counts and ServerCounts.from_json(counts),
        }
        return cls(**{**data, **own})


PHASES = ("prefill", "draft", "select", "verify", "other")


def phases_of(timing: Timing) -> dict[str, float]:
    """Seconds by phase; they add up to the total."""
    return {name: getattr(timing, f"{name}_s") for name in PHASES}
