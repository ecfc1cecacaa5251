"""Prompts into the cache, in chunks, up to each row's first token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from blockdraft.decoding.choose_tokens import best_is_enough, choose_tokens, record_logprobs
from blockdraft.decoding.row import Row
from blockdraft.decoding.state import DecodeState
from blockdraft.targets.base import PassOutput, RowBatch
from blockdraft.types import Proposal

#: Places of a filled pass, padding included, over its tokens: features come padded.
_MOST_PADDED = 4


class Piece(NamedTuple):
    """Tokens of one prompt that a pass reads: `length` of them from `start` on."""

    prompt: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@torch.inference_mode()
def admit(state: DecodeState, rows: Sequence[Row]) -> None:
    """Add rows to the batch: run their prompts and commit the first token of each."""
    mark = state.clock.mark()
    for row in rows:
        row.mark = row.mark or mark
    plan = padded_passes if state.target.computes_padding else filled_passes
    first_slot = len(state.rows)
    state.rows.extend(rows)
    for pieces in plan([row.prompt_len for row in rows], state.prefill_chunk_len):
        _read(state, pieces, first_slot)


def padded_passes(lens: Sequence[int], chunk_len: int) -> Iterator[list[Piece]]:
    """Passes over prompts of these lengths, for targets that compute padding too.

    Prompts that share a pass fit one chunk when padded to the longest; a longer one is cut.
    """
    for group in _groups(lens, chunk_len):
        if len(group) > 1:
            yield [Piece(i, 0, lens[i]) for i in group]
            continue
        [i] = group
        for start in range(0, lens[i], chunk_len):
            yield [Piece(i, start, min(chunk_len, lens[i] - start))]


def _groups(lens: Sequence[int], chunk_len: int) -> Iterator[list[int]]:
    group: list[int] = []
    for i in range(len(lens)):
        longest = max(lens[j] for j in [*group, i])
        if group and longest * (len(group) + 1) > chunk_len:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def filled_passes(lens: Sequence[int], chunk_len: int) -> Iterator[list[Piece]]:
    """Passes of `chunk_len` tokens each, of whichever prompts, for targets without padding.

    The end of one prompt and the beginning of another share a pass. Only very uneven pieces leave
    a pass before it is full (see `_MOST_PADDED`).
    """
    pieces: list[Piece] = []
    for i, prompt_len in enumerate(lens):
        start = 0
        while start < prompt_len:
            room = chunk_len - sum(piece.length for piece in pieces)
            length = min(room, prompt_len - start)
            longest = max([length, *(piece.length for piece in pieces)])
            if not room or longest * (len(pieces) + 1) > _MOST_PADDED * chunk_len:
                yield pieces
                pieces = []
                continue
            pieces.append(Piece(i, start, length))
            start += length
    if pieces:
        yield pieces


def _read(state: DecodeState, pieces: Sequence[Piece], first_slot: int) -> None:
    """One pass over pieces of the prompts from slot `first_slot` on; those at their end speak."""
    first_slot += pieces[0].prompt
    rows = state.rows[first_slot : first_slot + len(pieces)]
    # Pieces follow each other: only the last prompt of a pass can have more to read.
    ended = [row for row, piece in zip(rows, pieces, strict=True) if piece.end == row.prompt_len]
    lens = tuple(piece.length for piece in pieces)
    ids = torch.zeros(len(rows), max(lens), dtype=torch.long)
    for i, (_, start, length) in enumerate(pieces):
        ids[i, :length] = torch.tensor(rows[i].token_ids[start : start + length])
    wanted = "last" if ended else "none"
    ids = ids.to(state.target.device)
    batch = RowBatch(ids, lens, first_slot, wanted, state.layer_ids, best_is_enough(ended))
    with state.clock.phase("prefill"):
        output = state.target.forward(state.cache, batch)
        for i, length in enumerate(lens):
            state.record(first_slot + i, output.features, i, length)
        if state.context is not None:
            starts = [piece.start for piece in pieces]
            state.context.append(output.features, first_slot, starts, lens)
    if ended:
        _commit_first(ended, _of_first(output, len(ended)))


def _of_first(output: PassOutput, num_rows: int) -> PassOutput:
    """What chooses tokens for the first rows of a pass."""
    logits = None if output.logits is None else output.logits[:num_rows]
    best = None if output.best is None else (output.best[0][:num_rows], output.best[1][:num_rows])
    return dataclasses.replace(output, logits=logits, best=best)


def _commit_first(rows: Sequence[Row], output: PassOutput) -> None:
    nothing = Proposal(torch.zeros(len(rows), 0, dtype=torch.long), (0,) * len(rows))
    verdict, faults = choose_tokens(rows, nothing, output)
    for i, row in enumerate(rows):
        if i in faults:
            row.fail(faults[i].message)
            continue
        kept = row.commit([verdict.next_ids[i]])
        record_logprobs(row, output.logits, i, kept)
