"""Objectives against slow loops over slots, with and without a draft vocabulary."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from blockdraft.drafters.draft_vocab import DraftVocab
from blockdraft.training.head import Head
from blockdraft.training.losses import MixedLoss
from blockdraft.training.module import DrafterModule
from blockdraft.training.objectives import dflash2
from blockdraft.training.objectives.blocks import accepted_metrics
from blockdraft.training.objectives.dflash import DFlashObjective
from blockdraft.training.objectives.dflash2 import DFlash2Objective
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.training.tiny_blocks import make_batch, make_sample, random_embedding

CE = MixedLoss({"ce": 1.0})


def _setup(method: str, ids: torch.Tensor | None) -> tuple[Any, ...]:
    size = 0 if ids is None else len(ids)
    config = tiny_drafter_config(method, draft_vocab_size=size)
    tensors = random_tensors(config)
    if ids is not None:
        tensors["draft_vocab_ids"] = ids
    embedding = random_embedding(config)
    module = DrafterModule.from_tensors(config, tensors, embedding)
    head = Head(embedding if ids is None else embedding[ids])
    vocab = DraftVocab(ids, config.vocab_size)
    samples = [make_sample(config, 40, seed=1), make_sample(config, 9, 5, seed=2)]
    batch = make_batch(config, samples, [[*range(3, 36, 3), 38], [5, 7]])
    return module, head, vocab, batch, tensors


VOCABS = [None, torch.arange(0, 150, 2)]


@pytest.mark.parametrize("ids", VOCABS, ids=["whole", "subset"])
@pytest.mark.parametrize("weighting", ["decay", "dpace"])
def test_dflash_is_a_weighted_sum_over_slots(ids: torch.Tensor | None, weighting: Any) -> None:
    module, head, vocab, batch, _ = _setup("dflash", ids)
    sums = DFlashObjective(head, vocab, CE, weighting=weighting, gamma=3.0)(module, batch)
    logp = (module(batch) @ head.weight.T).log_softmax(-1).detach()
    loss = weight = 0.0
    for block in range(len(batch.anchors)):
        s = []
        for k in range(1, batch.token_ids.shape[1]):
            used = bool(batch.is_valid[block, k])
            label = int(vocab.rows(batch.token_ids[block, k])) if used else vocab.size
            used = used and label < vocab.size
            s.append((used, float(logp[block, k, label]) if used else 0.0))
        for k, (used, lp) in enumerate(s):
            if not used:
                continue
            w = math.exp(-k / 3.0)
            if weighting == "dpace":
                alive = [
                    math.prod(0.5 * math.exp(q) + 0.5 for u, q in s[: j + 1] if u)
                    for j in range(len(s))
                ]
                w = sum(alive[j] for j in range(k, len(s)) if s[j][0])
            loss, weight = loss - w * lp, weight + w
    assert float(sums.loss.detach()) == pytest.approx(loss, rel=1e-4)
    assert float(sums.weight) == pytest.approx(weight, rel=1e-4)


@pytest.mark.parametrize("ids", VOCABS, ids=["whole", "subset"])
@pytest.mark.parametrize("inject", [False, True])
def test_selector_loss_with_true_predecessors(ids: torch.Tensor | None, inject: bool) -> None:
    module, head, vocab, batch, tensors = _setup("dflash2", ids)
    unary = DFlashObjective(head, vocab, CE)(module, batch)
    both = DFlash2Objective(head, vocab, CE, inject=inject, selector_weight=2.0)(module, batch)
    hidden = module(batch).detach()
    before = tensors["candidate_selector.predecessor_codebook"]
    after = tensors["candidate_selector.successor_codebook"]
    gate = tensors["candidate_selector.hidden_projection.weight"]
    extra, seen = 0.0, 0
    for block in range(len(batch.anchors)):
        for k in range(1, batch.token_ids.shape[1]):
            if not batch.is_valid[block, k]:
                continue
            label = int(vocab.rows(batch.token_ids[block, k]))
            if label == vocab.size:
                continue
            h = hidden[block, k]
            logits = head.weight @ h
            ids_ = logits.topk(16).indices.tolist()
            if label not in ids_:
                if not inject:
                    continue
                ids_[-1] = label
            previous = int(vocab.rows(batch.token_ids[block, k - 1]))
            left = before[previous] * (gate @ h)
            scores = logits[ids_] + after[ids_] @ left
            ce = -scores.log_softmax(-1)[ids_.index(label)]
            extra += 2.0 * math.exp(-(k - 1) / 4.0) * float(ce)
            seen += 1
    assert seen > 3
    assert float(both.loss.detach()) == pytest.approx(float(unary.loss.detach()) + extra, rel=1e-4)
    assert int(both.metrics["selector_loss_count"]) == seen


def test_no_figure_counts_an_injected_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding has the candidates alone, so what training puts among them changes no length."""
    module, head, vocab, batch, _ = _setup("dflash2", None)

    def loves_labels(_: Any, unary: Any) -> torch.Tensor:
        return (unary.rows.ids == unary.slots.labels[:, None]).float()

    monkeypatch.setattr(dflash2, "selector_scores", loves_labels)
    # Of so many numbers of candidates, some end in a label that is among them by itself.
    for num_best in range(1, 17):
        plain, injected = (
            DFlash2Objective(head, vocab, CE, num_best=num_best, inject=inject)(module, batch)
            for inject in (False, True)
        )
        for name in ("unary", "selector", "oracle"):
            for figure in (f"{name}_length", f"{name}_by_position"):
                assert torch.equal(plain.metrics[figure], injected.metrics[figure]), figure
        assert torch.equal(
            injected.metrics["selector_by_position"], injected.metrics["oracle_by_position"]
        )
        counts = [int(sums.metrics["selector_loss_count"]) for sums in (plain, injected)]
        assert counts[0] < counts[1]
    assert plain.metrics["oracle_by_position"].any()


@pytest.mark.parametrize("inject", [False, True])
def test_gradients_reach_every_parameter_but_a_zero_factor(inject: bool) -> None:
    module, head, vocab, batch, _ = _setup("dflash2", None)
    sums = DFlash2Objective(head, vocab, CE, inject=inject)(module, batch)
    (sums.loss / sums.weight).backward()
    missing = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []


def test_the_whole_gradient_is_that_of_finite_differences() -> None:
    """Through the chunked head, the candidates' logits and the selector, in float64."""
    module, head, vocab, batch, _ = _setup("dflash2", None)
    objective = DFlash2Objective(head, vocab, CE)
    module.double()
    module.dtype = torch.float64
    sums = objective(module, batch)
    sums.loss.backward()
    for name in (
        "fc.weight",
        "layers.1.mlp_conv.base_kernel",
        "candidate_selector.successor_codebook",
    ):
        param = module.get_parameter(name)
        direction = param.grad / param.grad.norm()
        expected = float((param.grad * direction).sum())
        values = []
        for step in (1e-4, -1e-4):
            with torch.no_grad():
                param += step * direction
                values.append(float(objective(module, batch).loss))
                param -= step * direction
        assert (values[0] - values[1]) / 2e-4 == pytest.approx(expected, rel=2e-2), name


def test_lengths_count_the_right_prefix_and_the_bonus() -> None:
    right = torch.tensor(
        [[0, 1, 1, 0, 1], [0, 0, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
    ).bool()
    valid = torch.tensor(
        [[0, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    ).bool()
    out = accepted_metrics("x", right, valid)
    assert int(out["x_length"]) == 3 + 1 + 3
    assert int(out["x_length_count"]) == 3
    assert out["x_by_position"].tolist() == [2, 3, 1, 2]
    assert out["x_by_position_count"].tolist() == [3, 3, 2, 2]
