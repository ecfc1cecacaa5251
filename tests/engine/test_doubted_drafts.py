"""A draft changes nothing, even one whose checking gives no usable numbers."""

from __future__ import annotations

import pytest
import torch

from blockdraft.cache.base import DraftContext, NoContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.errors import ConfigError
from blockdraft.targets.native import NativeTarget
from blockdraft.types import Proposal, SamplingParams
from tests.fakes.bfloat16 import exact_target, native_target
from tests.fakes.codec import make_llm
from tests.fakes.models import random_weights, tiny_config, tiny_target
from tests.fakes.oracle import ids_of, solo
from tests.fakes.scripted import ScriptedDrafter

PROMPTS = [[5, 9, 14], [7], [30, 31, 32, 33]]


def broken_row(token_id: int):  # type: ignore[no-untyped-def]
    """A target that is sound but for the embedding of one token."""
    target = tiny_target(end_ids=())
    target.embedding[token_id] = float("nan")
    return target


def wrong_drafter(target, params: SamplingParams, token_id: int) -> ScriptedDrafter:  # type: ignore[no-untyped-def]
    """Drafts right tokens, then the broken one."""
    oracle = {
        tuple(p): list(out.token_ids)
        for p, out in zip(PROMPTS, solo(target, PROMPTS, params), strict=True)
    }
    drafter = ScriptedDrafter(oracle, lambda cycle, j: j < 2, 5, target.info.vocab_size)
    right = drafter._block
    drafter._block = lambda tokens: [*right(tokens)[:2], token_id, 1, 2]  # type: ignore[method-assign]
    return drafter


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_breaks_the_numbers_is_taken_back(temperature: float) -> None:
    target = broken_row(151)
    params = SamplingParams(max_tokens=12, temperature=temperature, seed=4)
    plain = solo(target, PROMPTS, params)
    assert all(out.finish_reason == "length" for out in plain)
    drafted = make_llm(target, wrong_drafter(target, params, 151), max_batch_size=3).generate(
        PROMPTS, params
    )
    assert [out.finish_reason for out in drafted] == ["length"] * 3
    if temperature == 0.0:
        assert ids_of(drafted) == ids_of(plain)
    assert any(cycle_drafts > 0 for cycle_drafts in (out.speculation.drafted for out in drafted))


def test_native_targets_take_it_back_too() -> None:
    config = tiny_config(end_ids=())
    weights = random_weights(config)
    weights["model.embed_tokens.weight"][151] = float("nan")
    target = NativeTarget(config, weights, tiny_target(end_ids=()).info)
    params = SamplingParams(max_tokens=12)
    plain = solo(target, PROMPTS, params)
    drafted = make_llm(target, wrong_drafter(target, params, 151), max_batch_size=3).generate(
        PROMPTS, params
    )
    assert ids_of(drafted) == ids_of(plain)


class EverySecond(Drafter):
    """A wrong draft first, the broken token far behind it; every second cycle drafts nothing."""

    name, num_draft_tokens, num_cycles = "every second", 15, 0

    def new_context(self, num_slots: int, max_len: int) -> NoContext:
        return NoContext()

    def draft(self, context: DraftContext, batch: DraftBatch) -> None:
        return None

    def select(self, drafted: None, batch: DraftBatch) -> Proposal:
        ids = torch.full((len(batch.max_lens), self.num_draft_tokens), 7)
        ids[:, 9] = 151
        self.num_cycles += 1
        return Proposal(ids, tuple(n if self.num_cycles % 2 else 0 for n in batch.max_lens))


@pytest.mark.parametrize("make", [exact_target, native_target])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_of_a_rejected_draft_is_read_later(make, temperature: float) -> None:  # type: ignore[no-untyped-def]
    """Chunks of a pass may be sound in front of one that is not: its rows must go as well."""
    weights = random_weights(tiny_config())
    weights["model.embed_tokens.weight"][151] = float("nan")
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=4)
    plain = solo(make(weights=weights, end_ids=()), PROMPTS, params)
    llm = make_llm(make(weights=weights, end_ids=()), EverySecond(), max_batch_size=3)
    drafted = llm.generate(PROMPTS, params)
    assert [out.finish_reason for out in drafted] == [out.finish_reason for out in plain]
    if temperature == 0.0:
        assert ids_of(drafted) == ids_of(plain)


def test_penalties_that_empty_a_drafted_row_are_taken_back() -> None:
    target = tiny_target(end_ids=())
    params = SamplingParams(max_tokens=12, repetition_penalty=1e-38)
    plain = solo(target, PROMPTS, params)
    drafted = make_llm(target, wrong_drafter(target, params, 151), max_batch_size=3).generate(
        PROMPTS, params
    )
    assert [out.finish_reason for out in drafted] == [out.finish_reason for out in plain]
    assert ids_of(drafted) == ids_of(plain)


@pytest.mark.parametrize("prompts", [{"role": "user"}, b"abc", {"a", "b"}, None, 5, torch.ones(2)])
def test_what_is_no_prompt_is_refused(prompts: object) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        make_llm(tiny_target()).generate(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "5"),
        ("max_tokens", 2.5),
        ("max_tokens", float("inf")),
        ("temperature", None),
        ("top_k", True),
        ("seed", 1.5),
        ("logprobs", "1"),
        ("stop", [1]),
        ("stop", b"x"),
        ("stop_token_ids", [1.5]),
        ("logit_bias", [1]),
        ("logit_bias", {1.5: 1.0}),
        ("include_stop", "no"),
    ],
)
def test_parameters_of_the_wrong_kind_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]
