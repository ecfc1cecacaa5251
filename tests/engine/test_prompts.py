"""What a prompt may be, and what is refused, by its place in the list."""

from __future__ import annotations

from typing import Any

import pytest

from blockdraft.engine.prompts import split_prompts
from blockdraft.errors import ConfigError
from blockdraft.types import SamplingParams
from tests.fakes.codec import FakeCodec, make_llm, numbered_words
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, solo

PARAMS = SamplingParams(max_tokens=8)
CHAT = [{"role": "user", "content": " 5, 9,"}, {"role": "user", "content": " 17,"}]


def llm(chat_template: str | None = "yes") -> Any:
    return make_llm(tiny_target(), codec=FakeCodec(numbered_words(160), (), chat_template))


def test_texts_chats_and_ids_in_one_list() -> None:
    outputs = llm().generate([" 5, 9, 17,", CHAT, [5, 9, 17], (5, 9, 17)], PARAMS)
    expected = solo(tiny_target(), [[5, 9, 17]] * 4, PARAMS)
    assert ids_of(outputs) == ids_of(expected)
    assert [output.usage.prompt_tokens for output in outputs] == [3] * 4


@pytest.mark.parametrize("one", [" 5, 9,", [5, 9], CHAT])
def test_one_prompt_needs_no_list(one: Any) -> None:
    assert split_prompts(one) == [one]
    assert ids_of(llm().generate(one, PARAMS)) == ids_of(llm().generate([one], PARAMS))


def test_a_text_is_raw_where_there_is_no_template() -> None:
    assert ids_of(llm(None).generate(" 5, 9,", PARAMS)) == ids_of(llm().generate([5, 9], PARAMS))
    with pytest.raises(ConfigError, match="no chat template"):
        llm(None).generate([CHAT], PARAMS)


def test_no_prompts_no_outputs() -> None:
    assert llm().generate([], PARAMS) == []


@pytest.mark.parametrize("empty", ["", [], ()])
def test_bc34_an_empty_prompt_is_refused_by_its_place(empty: Any) -> None:
    with pytest.raises(ConfigError, match=r"prompt 1 is empty; give at least one token"):
        llm().generate([[5], empty], PARAMS)
    with pytest.raises(ConfigError, match="empty"):
        next(llm().stream(empty, PARAMS))


@pytest.mark.parametrize("wrong", [160, -1, 10**9])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(ConfigError, match=rf"prompt 0 has token id {wrong}; .* 0 to 159"):
        llm().generate([[5, wrong]], PARAMS)


@pytest.mark.parametrize("wrong", [[5, "a"], [5, {"role": "user"}], [5, True], [1.5], [None]])
def test_what_is_no_prompt_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="prompt 1 is neither a text, nor chat messages, nor"):
        llm().generate([[5], wrong], PARAMS)


def test_a_wrong_prompt_stops_the_whole_list_before_anything_runs() -> None:
    engine = llm()
    engine.loaded.target.forward = None  # nothing may be run
    with pytest.raises(ConfigError, match="prompt 2"):
        engine.generate([[5], [6], [999]], PARAMS)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_bc34_short_prompts(length: int) -> None:
    """Shorter than a block, a window and the conv taps; the row after the prompt is the last."""
    from tests.fakes.drafting import random_drafter

    target, [prompt] = tiny_target(), random_prompts([length], seed=length)
    expected = solo(target, [prompt], SamplingParams(max_tokens=20))
    for drafter in (random_drafter(target, "dflash"), random_drafter(target, windows=16)):
        engine = make_llm(target, drafter)
        assert ids_of(engine.generate(prompt, SamplingParams(max_tokens=20))) == ids_of(expected)
