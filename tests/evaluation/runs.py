"""Engines, prompts and a journal for the tests of measured runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from blockdraft.drafters.base import Drafter
from blockdraft.engine.llm import LLM
from blockdraft.evaluation.engines import Engine, LocalEngine
from blockdraft.evaluation.tasks import EvalPrompt, Task
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import SamplingParams
from tests.fakes.codec import FakeCodec, make_llm, numbered_words
from tests.fakes.models import tiny_target
from tests.fakes.scripted import Pattern, ScriptedDrafter


@cache
def target() -> DecoderTarget:
    return tiny_target(end_ids=())


def codec() -> FakeCodec:
    return FakeCodec(numbered_words(target().info.vocab_size), (), chat_template="yes")


def engine(drafter: Drafter | None = None) -> LocalEngine:
    return LocalEngine(make_llm(target(), drafter, codec=codec()))


def text_of(ids: tuple[int, ...]) -> str:
    return codec().decode(ids)


def prompts(num: int = 5, turns: int = 1) -> tuple[EvalPrompt, ...]:
    """Prompts none of which begins with another one."""
    return tuple(
        EvalPrompt(
            id=f"p{i}", turns=tuple(text_of((i + 3, 7 + turn, 5, 2 + i)) for turn in range(turns))
        )
        for i in range(num)
    )


def task(num: int = 5, turns: int = 1, name: str = "toy") -> Task:
    return Task(name=name, source="tests", prompts=prompts(num, turns))


@cache
def oracles(num: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Greedy answers to the first turns of `prompts(num)`."""
    llm, found = make_llm(target(), codec=codec()), {}
    for prompt in prompts(num):
        ids = tuple(codec().encode(prompt.turns[0]))
        found[ids] = llm.generate([list(ids)], SamplingParams(max_tokens=60))[0].token_ids
    return found


def scripted(pattern: Pattern, num: int = 5, width: int = 3) -> ScriptedDrafter:
    """Right about the first 60 tokens of those answers where `pattern` says so."""
    return ScriptedDrafter(oracles(num), pattern, width, target().info.vocab_size)


def engines(**drafters: Drafter) -> dict[str, Engine]:
    return {"plain": engine(), **{name: engine(each) for name, each in drafters.items()}}


def out_in(folder: Path) -> Path:
    return folder / "R.json"


def llm_of(one: Engine) -> LLM:
    assert isinstance(one, LocalEngine)
    return one.llm
