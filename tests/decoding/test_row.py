"""What a row commits: up to the first end token, stop string or limit, and not one token more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.decoding.row import Row
from blockdraft.decoding.text import TextTracker
from blockdraft.targets.tokenizer import TextCodec
from blockdraft.types import Request, SamplingParams
from tests.fakes.codec import FakeCodec
from tests.targets.tiny_tokenizers import sentencepiece_tokenizer

WORDS = FakeCodec(["a", "b", "c", "", "xy"], special_ids=(3,))


def row(limit: int, *, ends: tuple[int, ...] = (), stop: tuple[str, ...] = ()) -> Row:
    params = SamplingParams(max_tokens=limit, stop=stop)
    tracker = TextTracker(WORDS.stream(), stop, False) if stop else None
    return Row(
        request=Request(prompt_ids=(1, 2), params=params),
        limit_len=2 + limit,
        target_end_ids=frozenset(ends),
        tracker=tracker,
    )


def test_a_new_row_holds_its_prompt() -> None:
    one = row(5)
    assert (one.token_ids, one.output_ids, one.prompt_len, one.remaining_len) == ([1, 2], [], 2, 5)
    assert not one.is_finished


def test_a_prompt_that_holds_the_end_token_has_not_ended() -> None:
    one = row(5, ends=(1, 2))
    assert one.commit([0, 4]) == [0, 4]
    assert not one.is_finished


@pytest.mark.parametrize(
    ("limit", "ends", "stop", "ids", "kept", "reason"),
    [
        (5, (), (), [0, 1], [0, 1], None),
        (2, (), (), [0, 1, 2], [0, 1], "length"),
        (5, (1,), (), [0, 1, 2], [0, 1], "stop"),
        (2, (1,), (), [0, 1], [0, 1], "stop"),  # the end at the limit is an end
        (2, (2,), (), [0, 1, 2], [0, 1], "length"),  # the end behind the limit is not said
        (5, (), ("xy",), [0, 4, 1], [0, 4], "stop"),
        (5, (4,), ("ab",), [0, 1, 4], [0, 1], "stop"),  # a stop before the end
        (5, (1,), ("ab",), [0, 1, 4], [0, 1], "stop"),  # the end token's text is no text
        (1, (), ("ab",), [0, 1], [0], "length"),  # a stop behind the limit
        (5, (), ("y",), [4], [4], "stop"),
    ],
)
def test_commit(
    limit: int,
    ends: tuple[int, ...],
    stop: tuple[str, ...],
    ids: list[int],
    kept: list[int],
    reason: str | None,
) -> None:
    one = row(limit, ends=ends, stop=stop)
    assert (one.commit(ids), one.output_ids, one.finish_reason) == (kept, kept, reason)


@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    limit=st.integers(1, 12),
    ends=st.sets(st.integers(0, 4), max_size=2),
    stop=st.lists(st.sampled_from(["a", "ab", "bc", "ca", "xya", "cxy"]), max_size=2, unique=True),
)
def test_blocks_commit_what_single_tokens_commit(
    ids: list[int], cuts: list[int], limit: int, ends: set[int], stop: list[str]
) -> None:
    single = row(limit, ends=tuple(ends), stop=tuple(stop))
    for token_id in ids:
        if not single.is_finished:
            single.commit([token_id])
    blocks, rest = row(limit, ends=tuple(ends), stop=tuple(stop)), list(ids)
    for cut in cuts:
        if rest and not blocks.is_finished:
            blocks.commit(rest[:cut])
            rest = rest[cut:]
    assert (blocks.token_ids, blocks.finish_reason) == (single.token_ids, single.finish_reason)
    texts = [one.tracker.text for one in (single, blocks) if one.tracker is not None]
    assert len(set(texts)) <= 1


@pytest.mark.parametrize(("stop", "reason", "text"), [("é", "stop", ""), ("x", "length", "é")])
def test_a_stop_in_the_characters_held_back_to_the_end(stop: str, reason: str, text: str) -> None:
    """Byte tokens are read when their run ends: here, with the request."""
    codec = TextCodec(sentencepiece_tokenizer())
    ids = [2 + byte for byte in "é".encode()]
    one = Row(
        request=Request(prompt_ids=(1,), params=SamplingParams(max_tokens=2, stop=stop)),
        limit_len=3,
        target_end_ids=frozenset(),
        tracker=TextTracker(codec.stream(), (stop,), False),
    )
    one.commit(ids)
    assert one.tracker is not None
    assert (one.finish_reason, one.tracker.text, one.tracker.take()) == (reason, text, text)


def test_a_failed_row_keeps_its_text_and_its_message() -> None:
    one = row(5, stop=("zz",))
    one.commit([0, 1])
    one.fail("broken")
    assert one.tracker is not None
    assert (one.finish_reason, one.error, one.tracker.text) == ("error", "broken", "ab")
    assert one.is_finished
