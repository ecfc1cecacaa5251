"""Stop strings and held-back text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.decoding.text import TextTracker


class Words:
    """Token i is the i-th word of a list."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def feed(self, token_id: int) -> str:
        return self.words[token_id]

    def flush(self) -> str:
        return ""


def track(words: Sequence[str], stops: Sequence[str], include: bool = False) -> TextTracker:
    return TextTracker(Words(words), stops, include)


def test_earliest_completing_stop_wins() -> None:
    """BC-07 b: "is" completes before "a" and "," appear."""
    tracker = track(["This", " a", ","], ["a", "is", ","])
    assert tracker.feed([0, 1, 2]) == 0
    assert tracker.text == "Th"


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "xSTOP")])
def test_stop_across_tokens_and_the_include_flag(include: bool, text: str) -> None:
    tracker = track(["xS", "TO", "P and more"], ["STOP"], include)
    assert tracker.feed([0]) is None
    assert tracker.feed([1, 2]) == 1
    assert tracker.text == text
    assert tracker.take() == text


def test_no_prefix_of_a_stop_leaks() -> None:
    """BC-08: "own fox" may begin inside "brown"."""
    tracker = track(["the br", "own", " fox"], ["own fox"])
    assert [tracker.feed([0]), tracker.take()] == [None, "the br"]
    assert [tracker.feed([1]), tracker.take()] == [None, ""]
    assert [tracker.feed([2]), tracker.take()] == [0, ""]
    assert tracker.text == "the br"


def test_held_text_is_released_when_the_match_fails_or_the_end_comes() -> None:
    tracker = track(["brown", " dog", " own"], ["own fox"])
    tracker.feed([0])
    assert tracker.take() == "br"
    tracker.feed([1])
    assert tracker.take() == "own dog"
    tracker.feed([2])
    assert tracker.take() == " "
    tracker.finish()
    assert tracker.take() == "own"


@given(
    words=st.lists(st.text("ab ", max_size=3), max_size=12),
    stops=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 4), max_size=12),
    include=st.booleans(),
)
def test_streaming_gives_the_same_text_as_one_go(
    words: list[str], stops: list[str], cuts: list[int], include: bool
) -> None:
    whole = track(words, stops, include)
    hit = whole.feed(range(len(words)))
    whole.finish()
    pieces, streamed, at = [], track(words, stops, include), 0
    for size in [*cuts, len(words)]:
        ids = range(at, min(at + size, len(words)))
        if not streamed.is_stopped and streamed.feed(ids) is not None:
            break
        at += len(ids)
        pieces.append(streamed.take())
        assert "".join(pieces) == streamed.text[: len("".join(pieces))]
    streamed.finish()
    pieces.append(streamed.take())
    assert "".join(pieces) == whole.text
    # The definition: the shortest run of words that holds a stop; the earliest-ending one counts.
    for n in range(1, len(words) + 1):
        text = "".join(words[:n])
        ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
        if ends:
            end, start = min(ends)
            assert hit == n - 1
            assert whole.text == text[: end if include else start]
            return
    assert hit is None
    assert whole.text == "".join(words)
