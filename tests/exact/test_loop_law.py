"""Sampling through the real loop: whole outputs have the target's law, wherever they are cut.

Thousands of short requests go through the engine in batches, each with its own seed, and are
counted against laws written out by hand (`tests.fakes.laws`). Seeds are fixed, so a test that
passes passes always; the bound is one false alarm in ten thousand per count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from blockdraft.decoding import choose_tokens, step
from blockdraft.decoding.row import Row
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.sampling.streams import Purpose
from blockdraft.targets.base import RowBatch, Target
from blockdraft.types import Request, SamplingParams
from tests.fakes.drafting import PointDrafter, SparseDrafter, random_drafter
from tests.fakes.laws import Law, binomial_p_value, p_value, table_law, warped
from tests.fakes.models import tiny_target
from tests.fakes.scripted import TableTarget

VOCAB, PROMPT, LENGTH, NUM_DRAFT = 8, (2, 5), 5, 3
SURE, FAULTY = 1e-4, 1e-8

PLAIN = SamplingParams(max_tokens=LENGTH, temperature=1.0)
WARPS = {
    "temperature": PLAIN,
    "top-k, top-p": SamplingParams(max_tokens=LENGTH, temperature=0.7, top_k=3, top_p=0.8),
    "top-p": SamplingParams(max_tokens=LENGTH, temperature=1.3, top_p=0.7),
    "min-p": SamplingParams(max_tokens=LENGTH, temperature=0.8, min_p=0.3),
}


def table() -> torch.Tensor:
    return torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(3))


def sparse(**changes: Any) -> SparseDrafter:
    """q on 5 of 8 tokens given the token before: fixed, random, and not like p."""
    gen = torch.Generator().manual_seed(4)
    ids = torch.stack([torch.randperm(VOCAB, generator=gen)[:5] for _ in range(VOCAB)])
    probs = torch.softmax(torch.randn(VOCAB, 5, generator=gen), -1)
    return SparseDrafter(ids, probs, NUM_DRAFT, **changes)


def point() -> PointDrafter:
    """One token after each token: a likely one, so that whole blocks are accepted too."""
    return PointDrafter(table().mean(0).argmax(-1), NUM_DRAFT)


def run(
    target: Target,
    drafter: Drafter | None,
    params: SamplingParams,
    num_requests: int,
    prompt: tuple[int, ...] = PROMPT,
) -> list[Row]:
    """Finished rows of requests that differ in their seed only."""
    rows = requests(params, num_requests, prompt)
    for _ in Runner(target, drafter, rows, RunnerLimits(max_batch_size=128)).run():
        pass
    return rows


def requests(params: SamplingParams, number: int, prompt: tuple[int, ...] = PROMPT) -> list[Row]:
    """Requests that differ in their streams only."""
    return [
        Row(
            request=Request(prompt_ids=prompt, params=params, seed=seed),
            limit_len=len(prompt) + params.max_tokens,
            target_end_ids=frozenset(),
        )
        for seed in range(number)
    ]


def counts(samples: Sequence[Sequence[int]], vocab_size: int = VOCAB) -> Law:
    """How often each sequence of tokens occurred, [v, v, ..]."""
    cells: Law = np.zeros((vocab_size,) * len(samples[0]))
    np.add.at(cells, tuple(np.array(samples).T), 1.0)
    return cells


def worst(rows: Sequence[Row], params: SamplingParams) -> float:
    """The smallest p-value of all single positions, all pairs, and whole outputs."""
    law = table_law(table(), PROMPT, LENGTH, params)
    seen = counts([row.output_ids for row in rows])
    places = range(LENGTH)
    views = [(i,) for i in places] + [(i, j) for i in places for j in places if i < j]
    others = [tuple(k for k in places if k not in view) for view in views]
    values = [p_value(seen.sum(other), law.sum(other)) for other in others]
    return min(*values, p_value(seen, law))


MAKERS: dict[str, Any] = {"plain": lambda: None, "point": point, "sparse": sparse}


@pytest.mark.parametrize("warp", ["temperature", "top-k, top-p"])
@pytest.mark.parametrize("maker", MAKERS)
def test_bc10_bc11_outputs_have_the_law_of_the_target(maker: str, warp: str) -> None:
    rows = run(TableTarget(table()), MAKERS[maker](), WARPS[warp], 2500)
    assert worst(rows, WARPS[warp]) > SURE
    if maker != "plain":
        ends = {cycle.accepted_len for row in rows for cycle in row.cycles}
        assert ends >= {0, 1, 2}  # each of these places was the first to be rejected


@pytest.mark.slow
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("maker", MAKERS)
def test_bc10_bc11_with_many_requests(maker: str, warp: str) -> None:
    rows = run(TableTarget(table()), MAKERS[maker](), WARPS[warp], 20_000)
    assert worst(rows, WARPS[warp]) > SURE


@pytest.mark.parametrize("make", [point, sparse], ids=["point", "sparse"])
def test_bc10_the_first_token_after_a_rejection(make: Any) -> None:
    """P(token x, then a rejected draft, then y) = p(x) max(p(y) - q(y), 0), cell by cell."""
    drafter = make()
    rows = run(TableTarget(table()), drafter, PLAIN, 4000)
    rejected = [row.output_ids[:2] for row in rows if row.cycles[0].accepted_len == 0]
    joint = np.zeros((VOCAB, VOCAB))
    first = warped(table()[PROMPT].numpy(), PLAIN)
    for x in range(VOCAB):
        q = np.zeros(VOCAB)
        if isinstance(drafter, SparseDrafter):
            q[drafter.q_ids[x]] = drafter.q_probs[x]
        else:
            q[drafter.successors[x]] = 1.0
        p = warped(table()[PROMPT[1], x].numpy(), PLAIN)
        joint[x] = first[x] * np.maximum(p - q, 0.0)
    assert p_value(counts(rejected), joint) > SURE
    assert binomial_p_value(len(rejected), len(rows), joint.sum()) > SURE


def share_a_stream(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Let two purposes use the same random numbers."""
    true = choose_tokens.uniforms_for

    def faulty(seeds: Any, keys: Any, positions: Any, purposes: Sequence[Purpose]) -> Any:
        other = Purpose.ACCEPT if fault == "residual is accept" else Purpose.DRAFT
        swapped = [other if p is Purpose.RESIDUAL else p for p in purposes]
        return true(seeds, keys, positions, swapped)

    if fault == "draft is accept":
        draws = partial(step.draws, purpose=Purpose.ACCEPT)
        monkeypatch.setattr(step, "draws", lambda rows, steps, _: draws(rows, steps))
    else:
        monkeypatch.setattr(choose_tokens, "uniforms_for", faulty)


@pytest.mark.parametrize("fault", ["draft is accept", "residual is draft", "residual is accept"])
def test_bc10_equal_streams_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share_a_stream(monkeypatch, fault)
    assert worst(run(TableTarget(table()), sparse(), PLAIN, 2000), PLAIN) < FAULTY


def test_bc11_a_q_that_was_not_used_is_caught() -> None:
    """The drafter tells its law as it was before it was sharpened."""
    drafter = sparse()
    told = torch.softmax(drafter.q_probs.log() / 2, -1)
    assert worst(run(TableTarget(table()), sparse(told_probs=told), PLAIN, 2000), PLAIN) < FAULTY


FEW = 5


def decoder_law(target: Target, params: SamplingParams) -> Law:
    """Law of the first LENGTH tokens: every text written out and read by the target in one pass."""
    texts = np.indices((FEW,) * (LENGTH - 1)).reshape(LENGTH - 1, -1).T
    prompts = np.tile(FEW_PROMPT, (len(texts), 1))
    ids = torch.from_numpy(np.concatenate([prompts, texts], 1))
    cache = target.new_cache(len(ids), ids.shape[1])
    logits = target.forward(cache, RowBatch(ids, (ids.shape[1],) * len(ids))).logits
    assert logits is not None
    law: Law = np.ones((FEW,) * LENGTH)
    for i in range(LENGTH):
        at = logits[:, len(FEW_PROMPT) - 1 + i].numpy()
        rows = np.array([warped(row, params) for row in at]).reshape((FEW,) * LENGTH)
        rows = rows[(slice(None),) * i + (0,) * (LENGTH - 1 - i)]  # what comes later is not seen
        law *= rows.reshape(rows.shape + (1,) * (LENGTH - 1 - i))
    return law


FEW_PROMPT = (2, 0, 3)


@pytest.mark.parametrize("method", ["dflash", "dflash2", "dflash2+ngram"])
def test_bc12_the_trained_kinds_of_drafter(method: str) -> None:
    """A real decoder and a real DFlash block: drafted from its context, walked, and reported."""
    target = tiny_target(vocab_size=FEW, end_ids=(), num_layers=2)
    shape = {"num_layers": 1, "windows": (None,), "causal": (False,), "block_size": 4}
    taps = {"num_target_layers": 2, "target_layer_ids": (0, 1)}
    drafter = random_drafter(target, method.removesuffix("+ngram"), **shape, **taps)
    if method.endswith("+ngram"):
        drafter = LookupFirst(NgramDrafter(3, min_n=1), drafter)
    params = SamplingParams(max_tokens=LENGTH, temperature=2.0)  # these logits are steep
    rows = run(target, drafter, params, 2500, FEW_PROMPT)
    law = decoder_law(target, params)
    assert abs(law.sum() - 1) < 1e-9
    assert p_value(counts([row.output_ids for row in rows], FEW), law) > SURE
    assert {cycle.accepted_len for row in rows for cycle in row.cycles} == {0, 1, 2, 3}
