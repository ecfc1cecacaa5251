"""One sequence of the batch: what is committed, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from blockdraft.decoding.clock import Timing
from blockdraft.decoding.text import TextTracker
from blockdraft.sampling.logprobs import TokenLogprob
from blockdraft.types import Cycle, FinishReason, Request, SamplingParams
from blockdraft.verification.acceptance import RowAcceptance


@dataclass
class Row:
    """A request being answered. Mutable: the loop commits tokens to it.

    Attributes:
        limit_len: most tokens, prompt included, that this row may hold.
        target_end_ids: the target's own end ids.
        is_doubted: the last pass chose no token behind its accepted drafts; the next drafts none.
        features: recorded hidden states of the committed positions, in pieces [t, f].
        acceptance: what was learnt of its drafts, where lengths are fitted to the load.
        tracker: follows the text while stop strings or a stream need it; else None.
    """

    request: Request
    limit_len: int
    target_end_ids: frozenset[int]
    tracker: TextTracker | None = None
    token_ids: list[int] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    is_doubted: bool = False
    acceptance: RowAcceptance = field(default_factory=RowAcceptance)
    mark: tuple[float, dict[str, float]] | None = None
    timing: Timing | None = None

    def __post_init__(self) -> None:
        params = self.params
        own = frozenset() if params.ignore_eos else self.target_end_ids
        self.stop_ids = own | frozenset(params.stop_token_ids)
        self.token_ids = list(self.request.prompt_ids)

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def remaining_len(self) -> int:
        """Tokens that may still be committed."""
        return self.limit_len - len(self.token_ids)

    @property
    def has_fixed_drafts(self) -> bool:
        """Whether its drafts must not be fitted to the load: a seed of its own promises one text.

        Which text a seed gives depends on the lengths of drafts, and they on what else runs.
        """
        return self.params.seed is not None and not self.params.is_greedy

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def commit(self, ids: Sequence[int]) -> list[int]:
        """Append tokens up to the first end (token, text or limit); returns those committed."""
        kept = list(ids[: self.remaining_len])
        for i, token_id in enumerate(kept):
            if token_id in self.stop_ids:
                kept = kept[: i + 1]
                self.finish_reason = "stop"
                break
        kept = self._follow_text(kept)
        self.token_ids.extend(kept)
        if self.finish_reason is None and self.remaining_len == 0:
            self.finish_reason = "length"
        if self.is_finished and self.tracker is not None and self.tracker.finish():
            self.finish_reason = "stop"
        return kept

    def _follow_text(self, kept: list[int]) -> list[int]:
        if self.tracker is None:
            return kept
        # The end token is not text, so the tracker does not see it.
        shown = kept[:-1] if self.finish_reason == "stop" else kept
        hit = self.tracker.feed(shown)
        if hit is None:
            return kept
        self.finish_reason = "stop"
        return kept[: hit + 1]

    def fail(self, message: str) -> None:
        """End this row with an error; the others go on."""
        self.finish_reason, self.error = "error", message
        if self.tracker is not None:
            self.tracker.finish()
