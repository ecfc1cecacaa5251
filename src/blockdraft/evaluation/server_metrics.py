"""Acceptance counters of servers, from `/metrics` (Prometheus text) and from usage fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"^([\w:]+)(?:\{([^}]*)\})?\s+([0-9.eE+-]+)")
_POSITION = re.compile(r'position="(\d+)"')

#: Counters of vLLM; summed over engines.
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True, kw_only=True)
class ServerCounts:
    """Drafting as a server counts it; `cycles` is None where it counts tokens alone."""

    drafted: int
    accepted: int
    cycles: int | None = None
    accepted_by_position: tuple[int, ...] = ()

    def since(self, before: ServerCounts) -> ServerCounts:
        """What was added after `before`."""
        width = len(self.accepted_by_position)
        old = (*before.accepted_by_position, *[0] * width)
        return ServerCounts(
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            cycles=None if self.cycles is None else self.cycles - (before.cycles or 0),
            accepted_by_position=tuple(
                new - was for new, was in zip(self.accepted_by_position, old, strict=False)
            ),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerCounts:
        """What `vars` of the counts became in a JSON file."""
        return cls(**{**data, "accepted_by_position": tuple(data["accepted_by_position"])})


def parse_metrics(text: str) -> ServerCounts | None:
    """Counters of a `/metrics` page; None if it has none of drafting."""
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        name, labels, value = match[1].removesuffix("_total"), match[2] or "", float(match[3])
        if name == _BY_POSITION and (position := _POSITION.search(labels)):
            at = int(position[1])
            positions[at] = positions.get(at, 0) + value
        else:
            totals[name] = totals.get(name, 0) + value
    if _DRAFTED not in totals or _ACCEPTED not in totals:
        return None
    return ServerCounts(
        drafted=int(totals[_DRAFTED]),
        accepted=int(totals[_ACCEPTED]),
        cycles=int(totals[_DRAFTS]) if _DRAFTS in totals else None,
        accepted_by_position=tuple(int(positions[i]) for i in sorted(positions)),
    )


def counts_of_reply(reply: Mapping[str, Any]) -> ServerCounts | None:
    """Counters in the last piece of one reply: llama.cpp's timings, or OpenAI's usage details."""
    timings = reply.get("timings") or {}
    if "draft_n" in timings:
        return ServerCounts(
            drafted=int(timings["draft_n"]), accepted=int(timings.get("draft_n_accepted", 0))
        )
    details = (reply.get("usage") or {}).get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens")
    rejected = details.get("rejected_prediction_tokens")
    if accepted is None or rejected is None or not accepted + rejected:
        return None
    return ServerCounts(drafted=accepted + rejected, accepted=accepted)


def add_server_counts(parts: Sequence[ServerCounts]) -> ServerCounts | None:
    """The counts of several parts of a run together."""
    if not parts:
        return None
    width = max(len(part.accepted_by_position) for part in parts)
    known = [part.cycles for part in parts if part.cycles is not None]
    return ServerCounts(
        drafted=sum(part.drafted for part in parts),
        accepted=sum(part.accepted for part in parts),
        cycles=sum(known) if len(known) == len(parts) else None,
        accepted_by_position=tuple(
            sum(p.accepted_by_position[j] for p in parts if j < len(p.accepted_by_position))
            for j in range(width)
        ),
    )
