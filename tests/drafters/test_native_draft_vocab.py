"""A draft vocabulary on the native kernels: its own head, candidates, walk, drafts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blockdraft.drafters.native_backbone import NativeBackbone
from blockdraft.kernels import native
from blockdraft.sampling.topk import fast_topk
from tests.drafters.tiny import batch_of, features_for, random_tensors, tiny_drafter_config
from tests.drafters.vocab import CLASSES, IDS, subset_drafter
from tests.fakes.bfloat16 import native_target

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")

METHODS = pytest.mark.parametrize("method", ["dflash", "dflash2"])
TARGET_KINDS = pytest.mark.parametrize("is_tied", [False, True])
ANCHORS, LENS = [4, 5, 0], [3, 9, 1]


def native_drafter(method: str, is_tied: bool, kernels: str = "auto") -> Any:
    target = native_target(tie_embeddings=is_tied)
    drafter = subset_drafter(method, target, dtype=torch.bfloat16, kernels=kernels)
    assert isinstance(drafter.model.backbone, NativeBackbone) == (kernels == "auto")
    return drafter


def drafted(drafter: Any, batch: Any) -> Any:
    context = drafter.new_context(len(batch.positions), 64)
    for slot, n in enumerate(batch.positions):
        features = features_for(drafter.model.config, n, seed=slot).bfloat16()
        context.append(features[None], slot, [0], [n])
    return drafter.draft(context, batch)


def uniforms(seed: int) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(3, 7, dtype=torch.float64, generator=gen)


@TARGET_KINDS
def test_candidates_are_the_best_of_the_subset(is_tied: bool) -> None:
    """Of the same hidden rows: values within rounding of float32 products, rows in order."""
    drafter = native_drafter("dflash2", is_tied)
    block = drafted(drafter, batch_of(ANCHORS, LENS))
    weight, _ = drafter.model.target.head_rows(IDS)
    logits = F.linear(block.hidden.float(), weight.float())
    values, rows = block.best(16)
    torch.testing.assert_close(values, logits.gather(-1, rows), rtol=1e-4, atol=1e-4)
    best = fast_topk(logits.flatten(0, 1), 16)[0].view_as(values)
    torch.testing.assert_close(values, best, rtol=1e-4, atol=1e-4)


@TARGET_KINDS
def test_logits_have_the_bits_of_the_whole_head(is_tied: bool) -> None:
    """A row of the packed subset is summed as it is in the target's own head."""
    drafter = native_drafter("dflash2", is_tied)
    block = drafted(drafter, batch_of(ANCHORS, LENS))
    logits = drafter.model.target.head(block.hidden.flatten(0, 1))[:, IDS]
    values, rows = fast_topk(logits, 16)
    assert torch.equal(block.best(16)[0].flatten(0, 1), values)
    assert torch.equal(block.best(16)[1].flatten(0, 1), rows)


@METHODS
def test_hidden_rows_are_those_of_a_whole_drafter(method: str) -> None:
    some, config = native_drafter(method, True), tiny_drafter_config(method)
    whole = random_tensors(config)
    for name, tensor in random_tensors(some.model.config).items():
        if name in whole and "codebook" not in name:
            whole[name] = tensor
    other = CLASSES[method].from_tensors(config, whole, dtype=torch.bfloat16)
    other.bind(some.model.target)
    batch = batch_of(ANCHORS, LENS)
    assert torch.equal(drafted(some, batch).hidden, drafted(other, batch).hidden)


@TARGET_KINDS
def test_the_walk_in_c_is_the_walk_through_the_lattice(is_tied: bool) -> None:
    """But for near ties: in C the selector's projection is rounded to bfloat16."""
    drafter, equal = native_drafter("dflash2", is_tied), []
    for seed in range(20):
        gen = torch.Generator().manual_seed(seed)
        anchors = torch.randint(0, 160, (3,), generator=gen).tolist()
        batch = batch_of(anchors, LENS)
        block = drafted(drafter, batch)
        in_c = drafter.select(block, batch)
        # Greedy rows beside a sampled one: the whole lattice in PyTorch.
        mixed = dataclasses.replace(batch, temperatures=(0.0, 0.0, 1.0), uniforms=uniforms(seed))
        equal.append(in_c.ids[:2] == drafter.select(block, mixed).ids[:2])
        assert bool(torch.isin(in_c.ids, IDS).all())
    assert float(torch.stack(equal).float().mean()) > 0.95


@METHODS
def test_it_drafts_about_what_torch_drafts(method: str) -> None:
    batch = batch_of(ANCHORS, LENS)
    fast, slow = (native_drafter(method, True, kernels) for kernels in ("auto", "torch"))
    values = [drafted(drafter, batch).best(1)[0] for drafter in (fast, slow)]
    assert (values[0] - values[1]).norm() < 0.05 * values[1].norm()
    proposals = [drafter.select(drafted(drafter, batch), batch) for drafter in (fast, slow)]
    assert float((proposals[0].ids == proposals[1].ids).float().mean()) > 0.7


@METHODS
def test_sampled_candidates_are_tokens_of_the_subset(method: str) -> None:
    drafter = native_drafter(method, True)
    batch = batch_of(ANCHORS, LENS, temperatures=[1.5, 0.0, 0.6], uniforms=uniforms(3))
    proposal = drafter.select(drafted(drafter, batch), batch)
    assert proposal.q_ids is not None
    assert proposal.q_ids.shape[-1] == (16 if method == "dflash2" else len(IDS))
    assert bool(torch.isin(proposal.q_ids, IDS).all())
    drawn = (proposal.q_ids == proposal.ids[..., None]) * proposal.q_probs
    assert bool((drawn.sum(-1) > 0).all())


def test_the_own_head_is_the_only_new_memory() -> None:
    some, config = native_drafter("dflash", False), tiny_drafter_config("dflash")
    other = CLASSES["dflash"].from_tensors(config, random_tensors(config), dtype=torch.bfloat16)
    other.bind(some.model.target)
    sizes = [d.model.backbone.native_pass.num_bytes() for d in (some, other)]
    assert sizes[0] - sizes[1] == 64 * 64 * 2  # 51 rows of 64, in whole blocks of 32
