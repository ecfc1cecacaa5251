"""What a user gets back for one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.decoding.clock import Timing
from blockdraft.decoding.row import Row
from blockdraft.sampling.logprobs import TokenLogprob
from blockdraft.types import Cycle, FinishReason


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """What drafting did. Every number derives from the committed cycles (`docs/metrics.md`).

    The first token comes from the prefill, so `committed` is completion_tokens - 1.
    """

    cycles: int
    drafted: int
    accepted: int
    committed: int
    accepted_by_position: tuple[int, ...]
    drafted_by_position: tuple[int, ...]

    @property
    def mean_acceptance_length(self) -> float | None:
        """Committed tokens per target pass, the correction or bonus included; None if no cycle."""
        return self.committed / self.cycles if self.cycles else None

    @classmethod
    def of(cls, cycles: Sequence[Cycle]) -> Speculation:
        """Count the cycles of one request."""
        width = max((cycle.drafted_len for cycle in cycles), default=0)
        return cls(
            cycles=len(cycles),
            drafted=sum(cycle.drafted_len for cycle in cycles),
            accepted=sum(cycle.accepted_len for cycle in cycles),
            committed=sum(len(cycle.committed_ids) for cycle in cycles),
            accepted_by_position=tuple(
                sum(cycle.accepted_len > j for cycle in cycles) for j in range(width)
            ),
            drafted_by_position=tuple(
                sum(cycle.drafted_len > j for cycle in cycles) for j in range(width)
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Output:
    """One answer. `error` says in one line why a request failed; its text is what there was.

    `features`: where they were recorded, the hidden states [n-1, f] of every token but the last,
    prompt included.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: Speculation
    timing: Timing
    seed: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    features: Float[Tensor, "t f"] | None = None


def build_output(row: Row, text: str) -> Output:
    """The answer of a finished row."""
    assert row.finish_reason is not None
    assert row.timing is not None
    return Output(
        text=text,
        token_ids=tuple(row.output_ids),
        finish_reason=row.finish_reason,
        usage=Usage(prompt_tokens=row.prompt_len, completion_tokens=len(row.output_ids)),
        speculation=Speculation.of(row.cycles),
        timing=row.timing,
        seed=row.request.seed,
        logprobs=None if row.params.logprobs is None else tuple(row.logprobs),
        error=row.error,
        features=_take_features(row),
    )


def _take_features(row: Row) -> Tensor | None:
    """Its states in one piece; the row lets go of them, else a long queue fills the memory."""
    pieces, row.features = row.features, []
    return torch.cat(pieces) if pieces else None
