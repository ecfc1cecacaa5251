"""bfloat16 where it is promised exact: the very tokens of plain decoding alone, ties included.

Logits near 20 are 0.125 apart in bfloat16, so the two best of these texts tie often; a pass that
rounded a row differently among others would soon part from the oracle.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.kernels import native
from blockdraft.targets.base import Target
from blockdraft.types import SamplingParams
from tests.fakes.bfloat16 import exact_target, native_target
from tests.fakes.codec import make_llm
from tests.fakes.drafting import VariedDrafter, random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, solo
from tests.fakes.scripted import ScriptedDrafter, accept_all, accept_none

KINDS = {"exact": exact_target, "native": native_target}
FEW = 6
LENGTHS = (1, 9, 40, 2, 16, 7)
PARAMS = [SamplingParams(max_tokens=n) for n in (30, 12, 24, 3, 48, 17)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "native" and not native.available():
        pytest.skip("native kernels cannot be built here")
    return name


@cache
def plain(kind: str, vocab_size: int, with_windows: bool) -> tuple[Target, Any, Any]:
    windows = (None, 6, None, 16) if with_windows else (None,) * 4
    target = KINDS[kind](vocab_size=vocab_size, windows=windows, end_ids=())
    prompts = [[token % vocab_size for token in p] for p in random_prompts(LENGTHS)]
    return target, prompts, ids_of(solo(target, prompts, PARAMS))


@pytest.mark.parametrize("vocab_size", [FEW, 160])
def test_without_the_promise_these_texts_part(vocab_size: int) -> None:
    """What the other tests rest on: the same weights in ordinary passes do not agree."""
    target = tiny_target(
        dtype=torch.bfloat16, vocab_size=vocab_size, windows=(None, 6, None, 16), end_ids=()
    )
    prompts = [[token % vocab_size for token in p] for p in random_prompts(LENGTHS)]
    alone = ids_of(solo(target, prompts, PARAMS))
    assert ids_of(make_llm(target, NgramDrafter(7, min_n=1)).generate(prompts, PARAMS)) != alone


#: The rest of the grid takes a minute.
SLOW = pytest.mark.slow
SHAPES = [(1, True), (8, True)]
SHAPES += [pytest.param(*shape, marks=SLOW) for shape in ((3, True), (1, False), (8, False))]


@pytest.mark.parametrize(("batch_size", "with_windows"), SHAPES)
def test_real_drafters_change_no_token(kind: str, batch_size: int, with_windows: bool) -> None:
    target, prompts, expected = plain(kind, FEW, with_windows)
    drafters = [None, NgramDrafter(11, min_n=1), random_drafter(target, "dflash", block_size=4)]
    drafters += [random_drafter(target, "dflash2", windows=9)]
    for drafter in drafters:
        llm = make_llm(target, drafter, max_batch_size=batch_size)
        outputs = llm.generate(prompts, PARAMS)
        assert ids_of(outputs) == expected
        assert drafter is None or sum(o.speculation.accepted for o in outputs) > 5


@pytest.mark.parametrize(("batch_size", "num_draft_tokens"), [(1, 7), (4, 8), (4, 15), (8, 1)])
def test_no_pattern_of_acceptance_changes_a_token(
    kind: str, batch_size: int, num_draft_tokens: int
) -> None:
    target, prompts, expected = plain(kind, 160, True)
    oracles = {tuple(p): ids for p, ids in zip(prompts, expected, strict=True)}
    right = ScriptedDrafter(oracles, accept_all, num_draft_tokens, 160)
    wrong = ScriptedDrafter(oracles, accept_none, num_draft_tokens, 160)
    for drafter in (right, wrong, VariedDrafter(right, ragged=True)):
        llm = make_llm(target, drafter, max_batch_size=batch_size)
        assert ids_of(llm.generate(prompts, PARAMS)) == expected


def test_greedy_rows_beside_others_change_no_token(kind: str) -> None:
    """Beside a row that needs whole logits, the greatest is looked up in another way."""
    target, prompts, expected = plain(kind, FEW, True)
    mixed = [
        PARAMS[0],
        SamplingParams(max_tokens=12, temperature=1.0, seed=1),
        PARAMS[2],
        SamplingParams(max_tokens=3, logprobs=2),
        PARAMS[4],
        SamplingParams(max_tokens=17, frequency_penalty=0.5),
    ]
    said = ids_of(make_llm(target, NgramDrafter(7, min_n=1)).generate(prompts, mixed))
    assert [said[i] for i in (0, 2, 3, 4)] == [expected[i] for i in (0, 2, 3, 4)]


def test_seeds_give_the_same_text_alone_and_in_a_batch(kind: str) -> None:
    target, prompts, _ = plain(kind, FEW, False)
    params = [SamplingParams(max_tokens=20, temperature=3.0, seed=i) for i in range(6)]
    llm = make_llm(target, random_drafter(target))
    alone = [llm.generate([p], one)[0] for p, one in zip(prompts, params, strict=True)]
    assert ids_of(llm.generate(prompts, params)) == ids_of(alone)


def test_texts_that_cross_a_block_of_cached_rows(kind: str) -> None:
    """Cached rows are read in blocks of 512: prompts end before, at and behind its edge."""
    target = KINDS[kind](num_layers=1, windows=(None,), max_context_len=600, end_ids=())
    prompts, params = random_prompts([505, 511, 3, 500]), SamplingParams(max_tokens=16)
    expected = ids_of(solo(target, prompts, params))
    oracles = {tuple(p): ids for p, ids in zip(prompts, expected, strict=True)}
    script = VariedDrafter(ScriptedDrafter(oracles, accept_all, 7, 160))
    assert ids_of(make_llm(target, script).generate(prompts, params)) == expected
