"""The acceptance rule where sampling cannot look: at its exact thresholds, coin by coin.

A coin that equals p/q, or 0 for an impossible token, comes up once in 2**53 draws: a rule that
errs there passes every sample. So it is called directly, on small laws, at those coins.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blockdraft.types import Verdict
from blockdraft.verification import accept_sampled

_LARGEST = 1.0 - 2.0**-53
_MIDDLES = 64  # equal pieces of [0, 1) whose middles are drawn with


class Rule(Protocol):
    """The signature of `verification.accept_sampled`."""

    def __call__(
        self,
        draft_ids: Tensor,
        lens: tuple[int, ...],
        p: Tensor,
        q_ids: Tensor | None,
        q_probs: Tensor | None,
        u_accept: Tensor,
        u_residual: Tensor,
        u_bonus: Tensor,
        /,
    ) -> Verdict: ...


@dataclass(frozen=True)
class RuleResult:
    """How many decisions were looked at, and what was wrong, one line each."""

    num_decisions: int
    faults: tuple[str, ...]


#: Laws whose probabilities are exact in binary: pairs (p, q) of 4 tokens, zeros among them.
_LAWS = (
    ((0.5, 0.25, 0.25, 0.0), (0.25, 0.5, 0.0, 0.25)),
    ((0.0, 0.0, 0.75, 0.25), (0.25, 0.25, 0.25, 0.25)),
    ((0.125, 0.125, 0.25, 0.5), (0.5, 0.25, 0.125, 0.125)),
    ((1.0, 0.0, 0.0, 0.0), (0.0, 0.5, 0.5, 0.0)),
)


def check_rule(rule: Rule = accept_sampled) -> RuleResult:
    """Call a rule at every threshold of `_LAWS` and draw its residuals and bonuses evenly."""
    faults: list[str] = []
    num = 0
    for p, q in _LAWS:
        for token_id in (i for i in range(4) if q[i] > 0.0):
            for u in _coins(p[token_id], q[token_id]):
                num += 1
                accepted = _judge(rule, p, q, token_id, u, 0.5).accepted_len[0]
                if accepted != int(u * q[token_id] < p[token_id]):
                    word = "accepts" if accepted else "refuses"
                    faults.append(f"{word} p={p[token_id]} q={q[token_id]} at the coin {u!r}")
        num += _MIDDLES + 2
        faults += _check_residual(rule, p, q)
    return RuleResult(num, tuple(dict.fromkeys(faults)))


def _coins(p: float, q: float) -> list[float]:
    """0, the greatest, and the neighbours of the threshold that [0, 1) holds."""
    ratio = p / q
    near = [ratio * (1.0 - 2.0**-40), ratio, ratio * (1.0 + 2.0**-40)]
    return [0.0, *(u for u in near if 0.0 < u < 1.0), _LARGEST]


def _judge(
    rule: Rule, p: tuple[float, ...], q: tuple[float, ...], draft: int, u: float, last: float
) -> Verdict:
    law = torch.tensor(p, dtype=torch.float64).expand(1, 2, -1)
    support = torch.arange(len(q)).view(1, 1, -1)
    masses = torch.tensor(q, dtype=torch.float32).view(1, 1, -1)
    coin, end = (torch.tensor([x], dtype=torch.float64) for x in (u, last))
    return rule(torch.tensor([[draft]]), (1,), law, support, masses, coin[None], end, end)


def _check_residual(rule: Rule, p: tuple[float, ...], q: tuple[float, ...]) -> list[str]:
    """After a refusal, even draws must give max(p - q, 0) normalised; extreme ones, no zero."""
    draft = max(range(4), key=lambda i: q[i] - p[i])  # refused by the greatest coin
    left = [max(x - y, 0.0) for x, y in itertools.zip_longest(p, q)]
    middles = [(i + 0.5) / _MIDDLES for i in range(_MIDDLES)]
    said = [_judge(rule, p, q, draft, _LARGEST, u).next_ids[0] for u in (*middles, 0.0, _LARGEST)]
    faults = []
    for token_id, weight in enumerate(left):
        share = said[:_MIDDLES].count(token_id) / _MIDDLES
        if abs(share - weight / sum(left)) > 2.0 / _MIDDLES:
            faults.append(
                f"after a refusal, token {token_id} of p={p} q={q} comes {share:.3f} of the time; "
                f"{weight / sum(left):.3f} is right"
            )
        if weight == 0.0 and token_id in said[_MIDDLES:]:
            faults.append(f"after a refusal, the impossible token {token_id} of p={p} q={q} comes")
    return faults
