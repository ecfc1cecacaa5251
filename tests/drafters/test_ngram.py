"""The n-gram index against a naive scan of the text, and its context's book-keeping."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.ngram import NgramDrafter, NgramIndex
from blockdraft.errors import ConfigError


def scan(tokens: list[int], min_n: int, max_n: int, length: int) -> list[int]:
    """Longest suffix first, latest earlier occurrence first; the copy may read what it wrote."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if n < len(tokens) and tokens[end - n : end] == tokens[-n:]:
                text = list(tokens)
                for j in range(length):
                    text.append(text[end + j])
                return text[len(tokens) :]
    return []


def batch_for(texts: list[list[int]], max_lens: list[int]) -> DraftBatch:
    return DraftBatch(
        anchor_ids=torch.tensor([text[-1] for text in texts]),
        positions=tuple(len(text) - 1 for text in texts),
        token_ids=texts,
        max_lens=tuple(max_lens),
        temperatures=(0.0,) * len(texts),
    )


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    lengths=st.lists(st.integers(0, 7), min_size=12, max_size=12),
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 3)),
)
def test_equals_a_scan_while_the_text_grows(
    text: list[int], steps: list[int], lengths: list[int], sizes: tuple[int, int]
) -> None:
    min_n, max_n = sizes[0], sizes[0] + sizes[1]
    index, end = NgramIndex(min_n, max_n), 0
    for step, length in zip(steps, lengths, strict=False):
        end = min(end + step, len(text))
        expected = scan(text[:end], min_n, max_n, length)
        assert index.continuation(text[:end], length) == expected


def test_longest_then_latest() -> None:
    text = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert NgramIndex(2, 3).continuation(text, 2) == [7, 9]
    assert NgramIndex(2, 2).continuation(text, 2) == [8, 1]


def test_a_loop_is_continued_to_full_length() -> None:
    assert NgramIndex(2, 4).continuation([5, 6, 5, 6, 5, 6], 7) == [5, 6, 5, 6, 5, 6, 5]
    assert NgramIndex(2, 4).continuation([4, 4, 4], 3) == [4, 4, 4]


def test_nothing_new_is_proposed_for_new_text() -> None:
    assert NgramIndex(2, 4).continuation([1, 2, 3, 4], 5) == []
    assert NgramIndex(1, 4).continuation([1], 5) == []


def test_a_cycle_looks_at_new_tokens_only() -> None:
    """The index reads each token a bounded number of times, however often it is asked."""

    class Counting(list[int]):
        reads = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            out = super().__getitem__(key)
            Counting.reads += len(out) if isinstance(key, slice) else 1
            return out

    text, index = Counting(), NgramIndex(2, 4)
    for token in range(2000):
        text.append(token % 50)
        index.continuation(text, 7)
    assert Counting.reads < 2000 * (3 * 4 + 3 * 4 + 7)


def test_proposal_and_book_keeping() -> None:
    """Rows of a batch, their limits, and slots that move and are given to others."""
    drafter = NgramDrafter(num_draft_tokens=4)
    context = drafter.new_context(3, 100)
    texts = [[1, 2, 3, 1, 2], [7, 8, 9], [4, 5, 4, 5]]
    batch = batch_for(texts, [4, 4, 1])
    proposal = drafter.select(drafter.draft(context, batch), batch)
    assert proposal.lens == (4, 0, 1)
    assert proposal.ids[0].tolist() == [3, 1, 2, 3]
    assert proposal.ids[2, 0] == 4
    assert proposal.q_ids is None
    assert context.num_bytes() > 0
    context.reset(0)
    context.move(2, 0)
    batch = batch_for([[4, 5, 4, 5, 4], [7, 8, 9, 7, 8]], [9, 2])
    proposal = drafter.select(drafter.draft(context, batch), batch)
    assert proposal.lens == (4, 2)
    assert proposal.ids.tolist() == [[5, 4, 5, 4], [9, 7, 0, 0]]
    context.reset(0)
    batch = batch_for([[6, 3]], [4])
    assert drafter.select(drafter.draft(context, batch), batch).lens == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0"),
        ({"min_n": 0}, "min_n is 0"),
        ({"min_n": 3, "max_n": 2}, "min_n is 3 and max_n 2"),
    ],
)
def test_wrong_numbers(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NgramDrafter(**arguments)
