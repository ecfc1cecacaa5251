"""A loop in hand: rows and state without an engine, to look at between cycles."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.decoding.clock import Clock
from blockdraft.decoding.prefill import admit
from blockdraft.decoding.row import Row
from blockdraft.decoding.state import DecodeState
from blockdraft.drafters.base import Drafter
from blockdraft.targets.base import Target
from blockdraft.types import Request, SamplingParams


def row_of(prompt: Sequence[int], params: SamplingParams, end_ids: Sequence[int] = ()) -> Row:
    return Row(
        request=Request(prompt_ids=tuple(prompt), params=params, seed=params.seed or 0),
        limit_len=len(prompt) + params.max_tokens,
        target_end_ids=frozenset(end_ids),
    )


def begun(
    target: Target,
    drafter: Drafter | None,
    rows: Sequence[Row],
    *,
    num_slots: int = 8,
    max_len: int = 200,
    prefill_chunk_len: int = 512,
) -> DecodeState:
    """A state whose rows have read their prompts and said one token."""
    state = DecodeState(
        target=target,
        drafter=drafter,
        cache=target.new_cache(num_slots, max_len),
        context=None if drafter is None else drafter.new_context(num_slots, max_len),
        clock=Clock(target.device),
        prefill_chunk_len=prefill_chunk_len,
    )
    admit(state, rows)
    return state
