"""Prompts into the cache, in chunks, up to each row's first token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from blockdraft.decoding.choose_tokens import best_is_enough, choose_tokens, record_logprobs
from blockdraft.decoding.row import Row
from blockdraft.decoding.state import DecodeState
from blockdraft.targets.base import PassOutput, RowBatch
from blockdraft.types import Proposal


@torch.inference_mode()
def admit(state: DecodeState, rows: Sequence[Row]) -> None:
    """Add rows to the batch: run their prompts and commit the first token of each."""
    mark = state.clock.mark()
    for row in rows:
        row.mark = row.mark or mark
    for group in _groups(rows, state.prefill_chunk_len):
        first_slot = len(state.rows)
        state.rows.extend(group)
        _commit_first(group, _run_prompts(state, group, first_slot))


def _groups(rows: Sequence[Row], chunk_len: int) -> Iterator[list[Row]]:
    """Prompts that share a pass: padded to the longest, they fit one chunk."""
    group: list[Row] = []
    for row in rows:
        longest = max([row.prompt_len, *(other.prompt_len for other in group)])
        if group and longest * (len(group) + 1) > chunk_len:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _run_prompts(state: DecodeState, rows: Sequence[Row], first_slot: int) -> PassOutput:
    """The pass over the prompts' last tokens, with what chooses their next ones."""
    device, longest = state.target.device, max(row.prompt_len for row in rows)
    step_len = state.prefill_chunk_len if len(rows) == 1 else longest
    output = None
    for start in range(0, longest, step_len):
        lens = tuple(min(step_len, row.prompt_len - start) for row in rows)
        ids = torch.zeros(len(rows), max(lens), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : lens[i]] = torch.tensor(row.token_ids[start : start + lens[i]])
        wanted = "last" if start + step_len >= longest else "none"
        batch = RowBatch(
            ids.to(device), lens, first_slot, wanted, state.layer_ids, best_is_enough(rows)
        )
        with state.clock.phase("prefill"):
            output = state.target.forward(state.cache, batch)
            for i in range(len(rows)):
                state.record(first_slot + i, output.features, i, lens[i])
            if state.context is not None:
                starts = [start] * len(rows)
                state.context.append(output.features, first_slot, starts, lens)
    assert output is not None
    return output


def _commit_first(rows: Sequence[Row], output: PassOutput) -> None:
    nothing = Proposal(torch.zeros(len(rows), 0, dtype=torch.long), (0,) * len(rows))
    verdict, errors = choose_tokens(rows, nothing, output)
    for i, row in enumerate(rows):
        if i in errors:
            row.fail(errors[i])
            continue
        kept = row.commit([verdict.next_ids[i]])
        record_logprobs(row, output.logits, i, kept)
