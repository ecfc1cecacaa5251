"""What a drafter had to choose from: recall of its candidates, and what a perfect choice gives.

Measured in runs that are not timed, since more candidates are asked for than drafting needs. With a
lookup before the drafter, of the cycles that the drafter drafted. Every figure is defined in
`docs/metrics.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.block_model import DraftedBlock
from blockdraft.evaluation.block_watch import BlockWatch
from blockdraft.types import Proposal

#: Recall is reported at so many candidates; the oracle chooses among the last number.
RECALL_AT = (1, 4, 8, 16)

CHOICES = ("top1", "selector", "oracle")


@dataclass(frozen=True)
class SeenDraft:
    """One draft of one row.

    Attributes:
        token_ids: the row's own list of tokens: it grows, and in the end says what was right.
        start: index of the token that slot 0 stands for.
        candidates: token ids of each slot, the best first.
        path: what was drafted.
    """

    token_ids: Sequence[int]
    start: int
    candidates: Int64[Tensor, "k c"]
    path: tuple[int, ...]


class CandidateWatch(BlockWatch):
    """A drafter that drafts what `inner` drafts, and keeps the candidates of every cycle."""

    def __init__(self, inner: BlockDrafter) -> None:
        super().__init__(inner)
        self.seen: list[SeenDraft] = []

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        proposal = self.inner.select(drafted, batch)
        _, rows = drafted.best(RECALL_AT[-1])
        candidates = self.inner.model.vocab.tokens(rows).cpu()
        for i, (tokens, path) in enumerate(
            zip(batch.token_ids, proposal.ids.tolist(), strict=True)
        ):
            length = proposal.lens[i]
            if length:
                seen = SeenDraft(tokens, len(tokens), candidates[i, :length], tuple(path[:length]))
                self.seen.append(seen)
        return proposal


@dataclass(frozen=True, kw_only=True)
class CandidateCounts:
    """Sums over cycles, so that parts of a run add up.

    Attributes:
        cycles: those with a draft of the watched drafter; looked-up ones are none.
        known: cycles whose text says what was right at slot j.
        hits: of those, the ones that had it among the best n candidates, by str(n).
        committed: tokens that a cycle commits if it drafts each slot's best candidate ("top1"),
            what was drafted ("selector"), or what is right wherever it is a candidate ("oracle").
    """

    cycles: int
    known: tuple[int, ...]
    hits: Mapping[str, tuple[int, ...]]
    committed: Mapping[str, int]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CandidateCounts:
        """What `vars` of the counts became in a JSON file."""
        hits = {name: tuple(values) for name, values in data["hits"].items()}
        return cls(**{**data, "known": tuple(data["known"]), "hits": hits})


def count_candidates(seen: Sequence[SeenDraft]) -> CandidateCounts:
    """Compare finished texts with what could have been drafted."""
    width = max((len(draft.path) for draft in seen), default=0)
    known = [0] * width
    hits = {n: [0] * width for n in RECALL_AT}
    committed = dict.fromkeys(CHOICES, 0)
    num_cycles = 0
    for draft in seen:
        right = list(draft.token_ids[draft.start : draft.start + len(draft.path) + 1])
        if not right:  # the row failed before it said anything more
            continue
        num_cycles += 1
        found = _found(draft, right)
        for j, at in enumerate(found):
            known[j] += 1
            for n in RECALL_AT:
                hits[n][j] += at < n
        drafted = [path == token for path, token in zip(draft.path, right, strict=False)]
        ok = ([at < 1 for at in found], drafted, [at < RECALL_AT[-1] for at in found])
        for name, flags in zip(CHOICES, ok, strict=True):
            committed[name] += min(_leading(flags) + 1, len(right))
    return CandidateCounts(
        cycles=num_cycles,
        known=tuple(known),
        hits={str(n): tuple(values) for n, values in hits.items()},
        committed=committed,
    )


def _found(draft: SeenDraft, right: Sequence[int]) -> list[int]:
    """The place of each right token among its slot's candidates; beyond all if it is none."""
    slots = min(len(draft.path), len(right))
    wanted = torch.tensor(right[:slots])[:, None]
    is_right: Bool[Tensor, "k c"] = draft.candidates[:slots] == wanted
    place = is_right.int().argmax(-1)
    missing = ~is_right.any(-1)
    places: list[int] = torch.where(missing, RECALL_AT[-1], place).tolist()
    return places


def _leading(flags: Sequence[bool]) -> int:
    return next((j for j, flag in enumerate(flags) if not flag), len(flags))


def add_counts(parts: Sequence[CandidateCounts]) -> CandidateCounts:
    """The counts of several parts of a run together."""
    width = max((len(part.known) for part in parts), default=0)

    def total(columns: Sequence[Sequence[int]]) -> tuple[int, ...]:
        return tuple(sum(c[j] for c in columns if j < len(c)) for j in range(width))

    return CandidateCounts(
        cycles=sum(part.cycles for part in parts),
        known=total([part.known for part in parts]),
        hits={str(n): total([part.hits[str(n)] for part in parts]) for n in RECALL_AT},
        committed={name: sum(part.committed[name] for part in parts) for name in CHOICES},
    )


def candidate_figures(counts: CandidateCounts | None) -> dict[str, Any]:
    """Keys of a result row; None where nothing was watched."""
    if counts is None or not counts.cycles:
        names = [f"{name}_tau" for name in CHOICES]
        return dict.fromkeys(
            ("candidate_cycles", "recall_by_position", *names, "headroom_recovered")
        )
    taus = {name: counts.committed[name] / counts.cycles for name in CHOICES}
    headroom = counts.committed["oracle"] - counts.committed["top1"]
    gained = counts.committed["selector"] - counts.committed["top1"]
    return {
        "candidate_cycles": counts.cycles,
        "recall_by_position": {
            n: [hit / known for hit, known in zip(hits, counts.known, strict=True) if known]
            for n, hits in counts.hits.items()
        },
        **{f"{name}_tau": tau for name, tau in taus.items()},
        "headroom_recovered": gained / headroom if headroom else None,
    }
