"""What drafting gains, from costs and acceptance. The speed-up itself: `predicted_speedup`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blockdraft.errors import ConfigError
from blockdraft.evaluation.acceptance import predicted_speedup


def ms_per_token(*, tau: float, draft_ms: float, verify_ms: float, other_ms: float) -> float:
    """Cost of a committed token: (draft_ms + verify_ms + other_ms) / tau.

    Args:
        tau: committed tokens a cycle, above 0.
        draft_ms, verify_ms, other_ms: parts of a cycle, as in `predicted_speedup`.
    Raises: ConfigError for values that no run can have.
    """
    if not tau > 0.0:
        raise ConfigError(f"tau is {tau}; it must be above 0")
    gain = predicted_speedup(
        tau=tau, plain_ms=1.0, draft_ms=draft_ms, verify_ms=verify_ms, other_ms=other_ms
    )
    return 1.0 / gain


def break_even_tau(*, plain_ms: float, draft_ms: float, verify_ms: float, other_ms: float) -> float:
    """The tau at which a cycle costs as much as the plain tokens it stands for.

    Raises: ConfigError for values that no run can have.
    """
    return 1.0 / predicted_speedup(
        tau=1.0, plain_ms=plain_ms, draft_ms=draft_ms, verify_ms=verify_ms, other_ms=other_ms
    )


class Acceptance(Protocol):
    """How well drafts do."""

    @property
    def label(self) -> str:
        """Its name in tables."""
        ...

    def tau(self, num_draft_tokens: int) -> float | None:
        """Committed tokens a cycle with so many drafts; None where that is not known."""
        ...


@dataclass(frozen=True)
class EvenAcceptance:
    """Each draft stands with one probability, given that those before it stand.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), eq. 1.
    Raises: ConfigError unless the probability is 0 to 1.
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ConfigError(f"acceptance is {self.rate}; it must be 0 to 1")

    @property
    def label(self) -> str:
        """As a table says it."""
        return f"acceptance {self.rate:.2f}"

    def tau(self, num_draft_tokens: int) -> float:
        """1 + rate + rate^2 + .. + rate^k."""
        return math.fsum(self.rate**j for j in range(num_draft_tokens + 1))


@dataclass(frozen=True)
class MeasuredAcceptance:
    """Shares of all cycles in which a draft at each position stood, by what `evaluate` counted.

    A cycle without a draft counts as one in which none stood, so that tau is the measured one.
    Shorter blocks are read off the longer one that was measured, as if what stands at a position
    did not depend on how many are drafted behind it. Longer ones are not known.
    """

    label: str
    by_position: tuple[float, ...]

    def tau(self, num_draft_tokens: int) -> float | None:
        """1 + the shares of the first k positions."""
        if num_draft_tokens > len(self.by_position):
            return None
        return 1.0 + math.fsum(self.by_position[:num_draft_tokens])


def rate_of_tau(tau: float, num_draft_tokens: int) -> float:
    """The even acceptance that gives a tau with so many drafts.

    Raises: ConfigError if no acceptance does: tau lies between 1 and num_draft_tokens + 1.
    """
    if not 1.0 <= tau <= num_draft_tokens + 1:
        raise ConfigError(
            f"tau is {tau}; with {num_draft_tokens} drafted tokens it is 1 to "
            f"{num_draft_tokens + 1}: give another, or --num-draft-tokens"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        is_less = EvenAcceptance(middle).tau(num_draft_tokens) < tau
        low, high = (middle, high) if is_less else (low, middle)
    return high


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Times of one cycle, in ms, of `concurrency` requests together.

    Attributes:
        plain_ms: a cycle of plain decoding, everything included.
        draft_ms: drafting and selecting; None without a drafter.
    """

    concurrency: int
    num_draft_tokens: int
    plain_ms: float
    draft_ms: float | None
    verify_ms: float
    other_ms: float


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a block size gives at a load, for one acceptance."""

    costs: Costs
    acceptance: str
    tau: float
    break_even_tau: float
    speedup: float
    ms_per_token: float
    tokens_per_s: float


def gains(costs: Sequence[Costs], acceptance: Acceptance) -> list[Gain]:
    """Gains at every cost whose tau is known; without a drafter, as if drafting were free."""
    found = []
    for cost in costs:
        tau = acceptance.tau(cost.num_draft_tokens)
        if tau is None:
            continue
        parts = {
            "draft_ms": cost.draft_ms or 0.0,
            "verify_ms": cost.verify_ms,
            "other_ms": cost.other_ms,
        }
        token_ms = ms_per_token(tau=tau, **parts)
        found.append(
            Gain(
                costs=cost,
                acceptance=acceptance.label,
                tau=tau,
                break_even_tau=break_even_tau(plain_ms=cost.plain_ms, **parts),
                speedup=predicted_speedup(tau=tau, plain_ms=cost.plain_ms, **parts),
                ms_per_token=token_ms / cost.concurrency,
                tokens_per_s=1e3 * cost.concurrency / token_ms,
            )
        )
    return found


def best_of(found: Sequence[Gain], concurrency: int) -> Gain | None:
    """The block size with the greatest speed-up at a load."""
    at = [gain for gain in found if gain.costs.concurrency == concurrency]
    return max(at, key=lambda gain: gain.speedup, default=None)
