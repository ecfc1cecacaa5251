"""NaN and infinities of the target end one request with an error; of a drafter, they end none."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.outputs import Output
from blockdraft.kernels import native
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import SamplingParams
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.fakes.bfloat16 import exact_target, native_target
from tests.fakes.codec import make_llm
from tests.fakes.drafting import SparseDrafter, random_drafter
from tests.fakes.models import random_weights, tiny_config, tiny_target
from tests.fakes.oracle import ids_of, random_prompts, scripted, solo
from tests.fakes.poison import SPOILS, PoisonedTarget
from tests.fakes.scripted import accept_all, accept_first, accept_none

PROMPTS = random_prompts([13, 5, 21, 9])
DOOMED = 1
GREEDY = SamplingParams(max_tokens=14)
SAMPLED = SamplingParams(max_tokens=14, temperature=0.8, seed=3)


def expected(params: SamplingParams) -> list[Output]:
    """Each prompt alone, without a fault."""
    return _expected(params is SAMPLED)


@cache
def _expected(is_sampled: bool) -> list[Output]:
    return solo(tiny_target(end_ids=()), PROMPTS, SAMPLED if is_sampled else GREEDY)


def trigger(params: SamplingParams, place: int) -> int:
    """A token that only the doomed request says, at this place of its answer or later."""
    others = {t for i, o in enumerate(expected(params)) if i != DOOMED for t in o.token_ids}
    others |= {t for prompt in PROMPTS for t in prompt}
    own = expected(params)[DOOMED].token_ids
    return next(t for k, t in enumerate(own) if k >= place and t not in others | set(own[:k]))


def check(outputs: list[Output], params: SamplingParams, num_tokens: int) -> None:
    """The doomed request fails after `num_tokens` tokens of its own; the others equal their solo
    runs."""
    failed = outputs[DOOMED]
    assert failed.finish_reason == "error"
    assert failed.error is not None
    assert "non-finite" in failed.error
    assert failed.token_ids == expected(params)[DOOMED].token_ids[:num_tokens]
    assert all(0 <= t < 160 for t in failed.token_ids)
    assert failed.speculation.committed == num_tokens - 1
    for i, output in enumerate(outputs):
        if i != DOOMED:
            assert output.token_ids == expected(params)[i].token_ids
            assert (output.finish_reason, output.error) == ("length", None)


#: Every kind of spoiled row once, and every batch size with one of them.
SHAPES = [(2, spoil) for spoil in SPOILS] + [(1, "one NaN"), (4, "one NaN")]


@pytest.mark.parametrize(("batch_size", "spoil"), SHAPES)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_bc23_plain_decoding(params: SamplingParams, batch_size: int, spoil: str) -> None:
    """With two slots, later requests run in the slot of the one that failed."""
    token = trigger(params, 3)
    place = expected(params)[DOOMED].token_ids.index(token)
    target = PoisonedTarget(tiny_target(end_ids=()), token, SPOILS[spoil])
    outputs = make_llm(target, max_batch_size=batch_size).generate(PROMPTS, params)
    check(outputs, params, place + 1)


@pytest.mark.parametrize(("batch_size", "spoil"), SHAPES)
@pytest.mark.parametrize(
    "pattern", [accept_all, accept_first(1), accept_none], ids=["all", "first", "none"]
)
def test_bc23_in_a_verified_block(pattern: Any, batch_size: int, spoil: str) -> None:
    """The token fails the request when it is drafted and right, or when it is the anchor."""
    clean = tiny_target(end_ids=())
    token = trigger(GREEDY, 3)
    script = scripted(clean, PROMPTS, pattern, length=20)
    target = PoisonedTarget(clean, token, SPOILS[spoil])
    outputs = make_llm(target, script, max_batch_size=batch_size).generate(PROMPTS, GREEDY)
    place = expected(GREEDY)[DOOMED].token_ids.index(token)
    check(outputs, GREEDY, len(outputs[DOOMED].token_ids))
    assert 1 <= len(outputs[DOOMED].token_ids) <= place + 1


#: A padded row of the vocabulary: no text ever says it.
UNSAID = 151


@pytest.mark.parametrize("spoil", SPOILS)
def test_bc23_sampled_rows_of_a_mixed_batch(spoil: str) -> None:
    """A failing sampled row among sampled and greedy ones, with real draft distributions."""
    biased = dataclasses.replace(SAMPLED, logit_bias={UNSAID: 12.0})
    params = [SAMPLED, GREEDY, biased, GREEDY]
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(150, (160, 4), generator=gen)
    drafter = SparseDrafter(ids, torch.full((160, 4), 0.25), 3)
    llm = make_llm(tiny_target(end_ids=()), drafter)
    alone = [llm.generate([p], one)[0] for p, one in zip(PROMPTS, params, strict=True)]
    assert UNSAID in alone[2].token_ids
    assert not any(UNSAID in alone[i].token_ids for i in (0, 1, 3))
    poisoned = PoisonedTarget(tiny_target(end_ids=()), UNSAID, SPOILS[spoil])
    outputs = make_llm(poisoned, drafter).generate(PROMPTS, params)
    assert [o.finish_reason for o in outputs] == ["length", "length", "error", "length"]
    for i in (0, 1, 3):
        assert outputs[i].token_ids == alone[i].token_ids


def with_nan_embedding() -> DecoderTarget:
    """A real decoder that computes NaN keys, values and features for one token."""
    target = tiny_target(end_ids=())
    target.embedding = target.embedding.clone()
    target.embedding[UNSAID] = torch.nan
    return target


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("method", [None, "dflash", "dflash2"])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_bc23_nan_in_the_caches_does_not_outlive_its_request(
    place: int, method: str | None, batch_size: int
) -> None:
    """NaN is written to both caches while a prompt is read; the next request takes the slot."""
    target, prompts = with_nan_embedding(), [list(prompt) for prompt in PROMPTS]
    prompts[DOOMED][place] = UNSAID
    drafter = None if method is None else random_drafter(target, method)
    outputs = make_llm(target, drafter, max_batch_size=batch_size).generate(prompts, GREEDY)
    assert outputs[DOOMED].finish_reason == "error"
    assert outputs[DOOMED].token_ids == ()
    assert outputs[DOOMED].usage.completion_tokens == outputs[DOOMED].speculation.cycles == 0
    for i, output in enumerate(outputs):
        if i != DOOMED:
            assert output.token_ids == expected(GREEDY)[i].token_ids


UNANSWERABLE = {
    "no token is left": {"min_tokens": 3, "stop_token_ids": tuple(range(160))},
    "beyond float32": {"logit_bias": {3: 1e39}},
    "divided to infinity": {"repetition_penalty": 1e-300},
}


@pytest.mark.parametrize("name", UNANSWERABLE)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_that_leave_no_law_fail_alone(name: str, temperature: float) -> None:
    wrong = SamplingParams(max_tokens=9, temperature=temperature, **UNANSWERABLE[name])  # type: ignore[arg-type]
    outputs = make_llm(tiny_target(end_ids=())).generate(PROMPTS, [GREEDY, wrong, GREEDY, GREEDY])
    assert outputs[1].finish_reason == "error"
    assert outputs[1].error is not None
    assert "leave no token" in outputs[1].error
    for i in (0, 2, 3):
        assert outputs[i].token_ids == expected(GREEDY)[i].token_ids


@pytest.mark.parametrize("kind", ["exact", "native"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_bc23_on_the_other_kernels(kind: str, batch_size: int) -> None:
    """NaN while a prompt is read, and NaN that greedy rows see without any logits written out."""
    if kind == "native" and not native.available():
        pytest.skip("native kernels cannot be built here")
    make = {"exact": exact_target, "native": native_target}[kind]
    weights = random_weights(tiny_config())
    weights["model.embed_tokens.weight"][UNSAID] = torch.nan
    target, clean = make(weights=weights, end_ids=()), make(end_ids=())
    said = dataclasses.replace(GREEDY, logit_bias={UNSAID: 1e4})
    prompts, params = [*PROMPTS, [4, UNSAID, 5]], [GREEDY, said, GREEDY, GREEDY, GREEDY]
    llm = make_llm(target, NgramDrafter(5, min_n=1), max_batch_size=batch_size)
    outputs, alone = llm.generate(prompts, params), solo(clean, PROMPTS, GREEDY)
    assert [o.finish_reason for o in outputs] == ["length", "error", "length", "length", "error"]
    assert [o.token_ids for o in outputs[1::3]] == [(UNSAID,), ()]
    for i in (0, 2, 3):
        assert outputs[i].token_ids == alone[i].token_ids


def test_bc23_a_failed_stream_ends_with_its_error() -> None:
    llm = make_llm(with_nan_embedding())
    pieces = list(llm.stream([4, UNSAID, 5], GREEDY))
    assert len(pieces) == 1
    assert pieces[0].output is not None
    assert (pieces[0].output.finish_reason, pieces[0].output.text) == ("error", "")
    assert llm.generate([PROMPTS[0]], GREEDY)[0].token_ids == expected(GREEDY)[0].token_ids


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.2])
def test_bc24_a_drafter_that_overflows_changes_nothing(method: str, temperature: float) -> None:
    """Nothing is drafted, it is said once, and the answer is that of no drafter at all."""
    config = tiny_drafter_config(method)
    tensors = random_tensors(config)
    tensors["norm.weight"] = tensors["norm.weight"] * 1e38  # finite, but not what it gives
    target = tiny_target(end_ids=())
    drafter = type(random_drafter(target, method)).from_tensors(config, tensors)
    drafter.bind(target)
    params = SamplingParams(max_tokens=14, temperature=temperature, seed=3)
    with pytest.warns(UserWarning, match="non-finite") as caught:
        outputs = make_llm(target, drafter).generate(PROMPTS, params)
    assert len(caught) == 1
    assert ids_of(outputs) == ids_of(solo(target, PROMPTS, params))
    assert all(output.speculation.drafted == 0 for output in outputs)
