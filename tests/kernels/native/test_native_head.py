"""The head's selection: exactly the sorted logits, whatever the ties and the threads."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from blockdraft.kernels.native import ModelWeights, NativePass, PassResult, Span, set_num_threads
from tests.kernels.native.native_reference import empty_cache, random_weights

VOCAB = 700


def run(weights: ModelWeights, isa: str, num_rows: int = 20, **asked: object) -> PassResult:
    k, v = empty_cache(weights)
    ids = torch.arange(num_rows) % 61
    spans = [Span(0, 0, num_rows)]
    return NativePass(weights, isa).forward(k, v, ids, spans, **asked)  # type: ignore[arg-type]


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Greatest logits, the lowest id first among equals: a stable sort."""
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], ids[:, :count]


@pytest.mark.parametrize("top_k", [1, 2, 16, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_selection_is_the_sorted_logits(isa: str, top_k: int, threads: int) -> None:
    weights = random_weights(vocab_size=VOCAB)
    set_num_threads(threads)
    out = run(weights, isa, top_k=top_k)
    logits = run(weights, isa, logits=torch.float32).logits
    assert logits is not None
    assert out.top_values is not None
    assert out.top_ids is not None
    assert out.nonfinite is not None
    values, ids = best(logits, top_k)
    assert torch.equal(out.top_values, values)
    assert torch.equal(out.top_ids, ids)
    assert not out.nonfinite.any()


@pytest.mark.parametrize("threads", [1, 4])
def test_ties_go_to_the_lowest_id(isa: str, threads: int) -> None:
    weights = random_weights(vocab_size=VOCAB)
    head = weights.head
    assert isinstance(head, Tensor)
    tied = head[torch.arange(VOCAB) % 5]  # every logit occurs 140 times
    weights = dataclasses.replace(weights, head=tied)
    set_num_threads(threads)
    out = run(weights, isa, top_k=16)
    logits = run(weights, isa, logits=torch.float32).logits
    assert logits is not None
    assert out.top_ids is not None
    assert torch.equal(out.top_ids, best(logits, 16)[1])


def test_only_asked_rows_are_answered(isa: str) -> None:
    weights = random_weights(vocab_size=VOCAB)
    rows = (0, 3, 4, 19)
    everything = run(weights, isa, logits=torch.float32, hidden=True)
    asked = run(weights, isa, logits=torch.float32, hidden=True, head_rows=rows)
    assert everything.logits is not None
    assert everything.hidden is not None
    assert asked.logits is not None
    assert asked.hidden is not None
    assert torch.equal(asked.logits, everything.logits[list(rows)])
    assert torch.equal(asked.hidden, everything.hidden[list(rows)])


def test_bfloat16_logits_are_rounded_float32_logits(isa: str) -> None:
    weights = random_weights(vocab_size=VOCAB)
    exact = run(weights, isa, logits=torch.float32).logits
    rounded = run(weights, isa, logits=torch.bfloat16).logits
    assert exact is not None
    assert rounded is not None
    assert torch.equal(rounded, exact.bfloat16())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_numbers_are_flagged(isa: str, bad: float) -> None:
    """BC-24: a broken row says so; it is never quietly the first candidates."""
    weights = random_weights(vocab_size=VOCAB, is_tied=False)
    assert weights.embedding is not None
    table = weights.embedding.clone()
    table[3] = bad
    weights = dataclasses.replace(weights, embedding=table)
    k, v = empty_cache(weights)
    ids = torch.tensor([1, 2, 3])
    spans = [Span(0, 0, 1), Span(1, 0, 1), Span(2, 0, 1)]
    out = NativePass(weights, isa).forward(k, v, ids, spans, top_k=4)
    assert out.nonfinite is not None
    assert out.top_ids is not None
    assert out.nonfinite.tolist() == [False, False, True]
    assert out.top_ids[2].tolist() == [-1, -1, -1, -1]


def test_fewer_numbers_than_asked_leave_empty_places(isa: str) -> None:
    weights = random_weights(vocab_size=40)
    head = weights.head
    assert isinstance(head, Tensor)
    head = head.clone()
    head[2:] = float("nan")
    table = random_weights(vocab_size=40, seed=5).head
    assert isinstance(table, Tensor)
    weights = dataclasses.replace(weights, head=head, embedding=table)
    k, v = empty_cache(weights)
    out = NativePass(weights, isa).forward(k, v, torch.tensor([7]), [Span(0, 0, 1)], top_k=4)
    assert out.top_ids is not None
    assert out.top_values is not None
    assert sorted(out.top_ids[0, :2].tolist()) == [0, 1]
    assert out.top_ids[0, 2:].tolist() == [-1, -1]
    assert out.top_values[0, 2:].tolist() == [-float("inf")] * 2
