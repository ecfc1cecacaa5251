"""DFlash and DFlash 2 from draft to proposal: choice, lengths, q, faults."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.dflash import SUPPORT
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.types import Proposal
from tests.drafters.slow_reference import slow_edge
from tests.drafters.tiny import (
    TOP_K,
    batch_of,
    features_for,
    random_tensors,
    tiny_drafter,
    tiny_drafter_config,
)
from tests.fakes.models import tiny_target

METHODS = pytest.mark.parametrize("method", ["dflash", "dflash2"])


def filled(drafter: Any, lens: list[int]) -> Any:
    context = drafter.new_context(len(lens), 64)
    for slot, n in enumerate(lens):
        features = features_for(drafter.model.config, n, seed=slot)
        context.append(features[None], slot, [0], [n])
    return context


def propose(drafter: Any, batch: DraftBatch) -> Proposal:
    context = filled(drafter, list(batch.positions))
    proposal: Proposal = drafter.select(drafter.draft(context, batch), batch)
    return proposal


def uniforms(b: int, k: int = 7, seed: int = 0) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(b, k, dtype=torch.float64, generator=gen)


def test_dflash_takes_the_best_of_each_slot() -> None:
    drafter = tiny_drafter("dflash")
    batch = batch_of([4, 5], [3, 9])
    drafted = drafter.draft(filled(drafter, [3, 9]), batch)
    proposal = drafter.select(drafted, batch)
    assert torch.equal(proposal.ids, drafted.logits.argmax(-1))
    assert proposal.lens == (7, 7)
    assert proposal.q_ids is None
    assert proposal.q_probs is None


def test_dflash2_walks_greedily_like_a_plain_loop() -> None:
    drafter = tiny_drafter(output_multiplier=0.5, final_logit_softcapping=6.0)
    tensors = random_tensors(drafter.model.config)
    batch = batch_of([4, 5], [3, 9])
    drafted = drafter.draft(filled(drafter, [3, 9]), batch)
    ids = drafter.select(drafted, batch).ids
    for i in range(2):
        before = int(batch.anchor_ids[i])
        for slot in range(7):
            logits = 6 * torch.tanh(drafted.logits[i, slot] * 0.5 / 6)
            hidden = drafted.hidden[i, slot]
            scores = {
                token: float(logits[token]) + slow_edge(tensors, hidden, before, token)
                for token in logits.topk(TOP_K).indices.tolist()
            }
            before = max(scores, key=lambda token: scores[token])
            assert ids[i, slot] == before


@METHODS
def test_q_is_the_law_of_the_draw_and_sparse(method: str) -> None:
    drafter = tiny_drafter(method)
    batch = batch_of([4, 5], [3, 9], temperatures=[0.7, 1.3], uniforms=uniforms(2))
    proposal = propose(drafter, batch)
    assert proposal.q_ids is not None
    assert proposal.q_probs is not None
    width = TOP_K if method == "dflash2" else SUPPORT
    assert proposal.q_ids.shape == proposal.q_probs.shape == (2, 7, width)
    assert proposal.q_probs.dtype == torch.float32
    torch.testing.assert_close(proposal.q_probs.sum(-1), torch.ones(2, 7))
    drawn = (proposal.q_ids == proposal.ids[..., None]) * proposal.q_probs
    assert bool((drawn.sum(-1) > 0).all())


def test_dflash_q_is_the_softmax_of_its_support() -> None:
    drafter = tiny_drafter("dflash", output_multiplier=2.0)
    batch = batch_of([4], [3], temperatures=[0.7], uniforms=uniforms(1))
    drafted = drafter.draft(filled(drafter, [3]), batch)
    proposal = drafter.select(drafted, batch)
    values, ids = drafted.logits.topk(SUPPORT, -1)
    assert proposal.q_ids is not None
    assert torch.equal(proposal.q_ids.sort(-1)[0], ids.sort(-1)[0])
    torch.testing.assert_close(proposal.q_probs, (2 * values / 0.7).softmax(-1))


@METHODS
def test_temperature_zero_beside_others_is_one_hot(method: str) -> None:
    """Greedy rows of a mixed batch draft what they draft alone; q is a point mass at it."""
    drafter = tiny_drafter(method)
    alone = propose(drafter, batch_of([4], [3]))
    mixed = propose(
        drafter, batch_of([4, 5], [3, 9], temperatures=[1e-6, 1.0], uniforms=uniforms(2))
    )
    assert torch.equal(mixed.ids[0], alone.ids[0])
    assert mixed.q_ids is not None
    assert mixed.q_probs is not None
    point = (mixed.q_ids[0] == mixed.ids[0][:, None]).float()
    assert torch.equal(mixed.q_probs[0], point)


@METHODS
def test_draws_do_not_depend_on_neighbours(method: str) -> None:
    drafter, u = tiny_drafter(method), uniforms(3)
    together = propose(drafter, batch_of([4, 5, 6], [3, 9, 1], temperatures=[1.0] * 3, uniforms=u))
    for i, (anchor, position) in enumerate(zip([4, 5, 6], [3, 9, 1], strict=True)):
        features = features_for(drafter.model.config, position, seed=i)
        context = drafter.new_context(1, 64)
        context.append(features[None], 0, [0], [position])
        batch = batch_of([anchor], [position], temperatures=[1.0], uniforms=u[i : i + 1])
        alone = drafter.select(drafter.draft(context, batch), batch)
        assert torch.equal(alone.ids[0], together.ids[i])


@METHODS
def test_short_rows_are_cut_not_run_narrow(method: str) -> None:
    """A row's draft is the head of its full-width draft, whatever its limit is."""
    drafter = tiny_drafter(method)
    full = propose(drafter, batch_of([4, 5], [3, 9]))
    short = propose(drafter, batch_of([4, 5], [3, 9], max_lens=[2, 0]))
    assert short.lens == (2, 0)
    assert short.ids.shape == (2, 2)
    assert torch.equal(short.ids[0], full.ids[0, :2])
    assert propose(drafter, batch_of([4], [3], max_lens=[0])).lens == (0,)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (3, 3), (7, 7), (8, 7), (20, 7)])
@METHODS
def test_num_draft_tokens_bc49(method: str, asked: int, given: int) -> None:
    """BC-49: 1 to 7 exactly; more is lowered with one notice."""
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        drafter = tiny_drafter(method, num_draft_tokens=asked)
        proposal = propose(drafter, batch_of([4], [3], max_lens=[50]))
    assert drafter.num_draft_tokens == given
    assert proposal.ids.shape == (1, given)
    assert proposal.lens == (given,)
    assert [f"using {given}" in str(n.message) for n in notices] == [True] * (asked > 7)


def test_num_draft_tokens_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_draft_tokens is 0; it must be 1 to 7"):
        tiny_drafter(num_draft_tokens=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@METHODS
def test_nonfinite_logits_draft_nothing_bc24(method: str, temperature: float) -> None:
    """BC-24: that row proposes nothing, its neighbours go on, and it is said once."""
    drafter = tiny_drafter(method)
    batch = batch_of([4, 5], [3, 9], temperatures=[temperature] * 2, uniforms=uniforms(2))
    good = drafter.draft(filled(drafter, [3, 9]), batch)
    for bad in (float("nan"), float("inf")):
        logits = good.logits.clone()
        logits[0, 2, 7] = bad
        drafted = dataclasses.replace(good, logits=logits)
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            proposal = drafter.select(drafted, batch)
            drafter.select(drafted, batch)
        assert proposal.lens == (0, 7)
        assert torch.equal(proposal.ids[1], drafter.select(good, batch).ids[1])
        assert bool(((proposal.ids >= 0) & (proposal.ids < 160)).all())
        if bad != bad:
            assert [method in str(n.message) for n in notices] == [True]
        else:
            assert not notices


def test_an_overflowing_selector_drafts_nothing_bc24() -> None:
    drafter = tiny_drafter()
    batch = batch_of([4, 5], [3, 9])
    good = drafter.draft(filled(drafter, [3, 9]), batch)
    hidden = good.hidden.clone()
    hidden[1, 3] = torch.nan
    with pytest.warns(UserWarning, match="non-finite"):
        proposal = drafter.select(dataclasses.replace(good, hidden=hidden), batch)
    assert proposal.lens == (7, 0)


def test_mask_token_in_the_text_is_an_ordinary_token_bc38() -> None:
    """BC-38: an anchor that is the mask id drafts like any other."""
    drafter = tiny_drafter()
    mask = drafter.model.config.mask_token_id
    proposal = propose(drafter, batch_of([mask], [5]))
    assert proposal.lens == (7,)


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_bfloat16_drafts_about_the_same(method: str) -> None:
    """Packed bfloat16 weights are as near to float32 as plain bfloat16 products are."""
    config = tiny_drafter_config(method)
    exact, tensors = tiny_drafter(method), random_tensors(config)
    batch = batch_of([4, 5], [3, 9])
    expected = exact.draft(filled(exact, [3, 9]), batch).hidden

    def error(kernels: str) -> float:
        drafter = type(exact).from_tensors(config, tensors, dtype=torch.bfloat16, kernels=kernels)
        drafter.bind(tiny_target())
        hidden = drafter.draft(filled(drafter, [3, 9]), batch).hidden
        assert hidden.dtype == torch.bfloat16
        return float((hidden.float() - expected).norm() / expected.norm())

    assert 0 < error("torch") < 0.1
    assert error("auto") < 1.3 * error("torch")


def test_wrong_method_and_wrong_tensors_are_refused() -> None:
    config, other = tiny_drafter_config("dflash2"), tiny_drafter_config("dflash")
    cls = type(tiny_drafter("dflash"))
    with pytest.raises(CheckpointError, match="is a dflash2 drafter"):
        cls.from_tensors(config, random_tensors(config))
    tensors = random_tensors(other)
    tensors["fc.weight"] = tensors["fc.weight"][:, 1:]
    with pytest.raises(CheckpointError, match=r"fc.weight is \(64, 191\), not \(64, 192\)"):
        cls.from_tensors(other, tensors)
