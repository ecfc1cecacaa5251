"""Stop strings and limits: one text, streamed or not, whatever was accepted in one block."""

from __future__ import annotations

import codecs
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.engine.llm import LLM
from blockdraft.types import SamplingParams
from tests.fakes.codec import FakeCodec, make_llm
from tests.fakes.drafting import VariedDrafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import greedy_oracle, random_prompts
from tests.fakes.scripted import Pattern, ScriptedDrafter, accept_all, accept_first, accept_none

PROMPT = random_prompts([13], seed=5)[0]
PATTERNS = (accept_all, accept_first(3), accept_none)


@cache
def oracle() -> tuple[int, ...]:
    return greedy_oracle(tiny_target(), PROMPT, 40)


def llm_saying(words: list[str], pattern: Pattern, end_at: int | None = None) -> LLM:
    """An engine whose i-th answered token is spelled words[i] (a token keeps its first word)."""
    spelled: list[str | bytes] = [f"<{i}>" for i in range(160)]
    for token_id, word in reversed(list(zip(oracle(), words, strict=False))):
        spelled[token_id] = word
    ends = () if end_at is None else (oracle()[end_at],)
    target = tiny_target(end_ids=ends)
    drafter = ScriptedDrafter({tuple(PROMPT): oracle()}, pattern, 7, 160)
    return make_llm(target, drafter, codec=FakeCodec(spelled, special_ids=ends))


def check(llm: LLM, params: SamplingParams, text: str, num_tokens: int, reason: str) -> None:
    """Generated and streamed text are this text, and no piece gives away more of it."""
    [output] = llm.generate([PROMPT], params)
    assert (output.text, output.finish_reason) == (text, reason)
    assert output.token_ids == oracle()[:num_tokens]
    shown, ids = "", ()
    for piece in llm.stream(PROMPT, params):
        shown, ids = shown + piece.text, ids + piece.token_ids
        assert text.startswith(shown)
    assert (shown, ids) == (text, output.token_ids)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("include", [False, True])
def test_bc07_a_stop_in_the_first_token_of_a_block(pattern: Pattern, include: bool) -> None:
    llm = llm_saying(["zero ", "one! ", "two "], pattern)
    params = SamplingParams(max_tokens=20, stop="ne!", include_stop=include)
    check(llm, params, "zero one!" if include else "zero o", 2, "stop")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bc07_the_stop_that_completes_earliest_wins(pattern: Pattern) -> None:
    llm = llm_saying(["So th", "is, a", "nd more"], pattern)
    check(llm, SamplingParams(max_tokens=20, stop=("a", "is", ",")), "So th", 2, "stop")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("first", [3, 6, 7])
def test_bc07_a_stop_across_blocks(pattern: Pattern, first: int) -> None:
    """Tokens 1 to 7 are the first block, 8 its bonus, 9 and on the second block."""
    words = [f"{i}." for i in range(20)]
    words[first : first + 4] = ["a[EN", "D", "O", "F]b"]
    text = "".join(words[:first]) + "a"
    params = SamplingParams(max_tokens=20, stop="[ENDOF]")
    check(llm_saying(words, pattern), params, text, first + 4, "stop")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bc08_no_prefix_of_the_stop_leaks(pattern: Pattern) -> None:
    llm = llm_saying(["the", " br", "own", " fox", " ran"], pattern)
    check(llm, SamplingParams(max_tokens=20, stop="own fox"), "the br", 4, "stop")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("end_at", "reason"), [(4, "stop"), (None, "length")])
def test_bc08_held_text_comes_out_at_the_end(
    pattern: Pattern, end_at: int | None, reason: str
) -> None:
    llm = llm_saying(["the", " br", "own", " f", ""], pattern, end_at)
    check(llm, SamplingParams(max_tokens=5, stop="own fox"), "the brown f", 5, reason)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_limit_and_the_stop_at_one_token(pattern: Pattern) -> None:
    llm = llm_saying(["a", "b", "c"], pattern)
    check(llm, SamplingParams(max_tokens=3, stop="bc"), "a", 3, "stop")
    check(llm, SamplingParams(max_tokens=2, stop="bc"), "ab", 2, "length")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_end_token_before_and_behind_a_stop(pattern: Pattern) -> None:
    words = ["a", "b", "", "c", "d"]
    params = SamplingParams(max_tokens=9, stop="ab")
    check(llm_saying(words, pattern, end_at=2), params, "", 2, "stop")
    check(llm_saying(words, pattern, end_at=1), params, "a", 2, "stop")


# Tokens that are parts of characters, as byte-level vocabularies have.
BYTES = ["é".encode()[:1], "é".encode()[1:], "日".encode()[:2], "日".encode()[2:], b"\xf0"]
WORD = st.sampled_from([*"abc", "ab", "bca", "é", *BYTES])


def expected_of(words: list[bytes], stops: tuple[str, ...], include: bool) -> tuple[str, int, str]:
    """Read token by token: text, number of tokens and finish reason, written the plain way."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for i, word in enumerate(words):
        text += decoder.decode(word)
        found = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
        if found:
            end, start = min(found)
            return text[: end if include else start], i + 1, "stop"
    return text + decoder.decode(b"", final=True), len(words), "length"


@settings(max_examples=80, deadline=None)
@given(
    words=st.lists(WORD, min_size=16, max_size=16),
    stops=st.lists(st.text("abcé日", min_size=1, max_size=4), max_size=3).map(tuple),
    include=st.booleans(),
    max_tokens=st.integers(1, 16),
    seed=st.integers(0, 9),
)
def test_any_words_and_stops(
    words: list[str], stops: tuple[str, ...], include: bool, max_tokens: int, seed: int
) -> None:
    llm = llm_saying(words, accept_all)
    assert isinstance(llm.drafter, ScriptedDrafter)
    llm.drafter = VariedDrafter(llm.drafter, seed)
    spelled = [llm.loaded.codec.words[i] for i in oracle()[:max_tokens]]  # type: ignore[attr-defined]
    params = SamplingParams(max_tokens=max_tokens, stop=stops, include_stop=include)
    check(llm, params, *expected_of(spelled, stops, include))
