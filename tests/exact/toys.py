"""Toy targets and drafters given by tables, small enough to enumerate.

A context is the last two tokens (a, b). Every drafter is a table of q at (a, b, slot,
predecessor): methods differ in which of these their q depends on, and in its support.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdraft.sampling import probabilities
from blockdraft.types import SamplingParams


@dataclass(frozen=True)
class ToyTarget:
    """`laws` [v, v, v]: the law of the next token after each context, float64."""

    laws: Tensor

    @classmethod
    def random(cls, vocab: int, params: SamplingParams, seed: int = 0) -> ToyTarget:
        """Random logits, made a law by the library's own warping."""
        logits = _normal(seed, vocab, vocab, vocab)
        rows = probabilities(logits.view(-1, vocab), [params] * vocab**2)
        return cls(rows.view(vocab, vocab, vocab))

    @property
    def vocab(self) -> int:
        return self.laws.shape[-1]


@dataclass(frozen=True)
class ToyDrafter:
    """Support `ids` and masses `probs` [v, v, k, v, c] that tokens are drawn from.

    `recorded` are the masses handed to verification; None where they are `probs`.
    """

    ids: Tensor
    probs: Tensor
    is_point_mass: bool = False
    recorded: Tensor | None = None

    @property
    def num_draft_tokens(self) -> int:
        return self.ids.shape[2]


def no_drafter(vocab: int) -> ToyDrafter:
    empty = torch.zeros(vocab, vocab, 0, vocab, 1)
    return ToyDrafter(empty.long(), empty.double(), is_point_mass=True)


def lookup_drafter(vocab: int, k: int, seed: int = 1) -> ToyDrafter:
    """Deterministic, as n-gram lookup is: one token for each context and slot."""
    choices = _normal(seed, vocab, vocab, k, vocab).argmax(-1)
    ids = choices[..., None, None].expand(-1, -1, -1, vocab, 1)
    return ToyDrafter(ids, torch.ones_like(ids, dtype=torch.float64), is_point_mass=True)


def slot_drafter(vocab: int, k: int, params: SamplingParams, seed: int = 2) -> ToyDrafter:
    """DFlash: each slot has a law of its own, whatever the other slots say."""
    logits = _normal(seed, vocab, vocab, k, vocab)
    probs = probabilities(logits.view(-1, vocab), [params] * (vocab**2 * k)).view_as(logits)
    probs = probs[..., None, :].expand(-1, -1, -1, vocab, -1)
    return ToyDrafter(torch.arange(vocab).expand_as(probs), probs)


def walk_drafter(
    vocab: int, k: int, candidates: int, temperature: float, seed: int = 3
) -> ToyDrafter:
    """DFlash 2: a few candidates a slot; q at a slot depends on the token drawn before it."""
    unary, ids = _normal(seed, vocab, vocab, k, vocab).topk(candidates)
    edges = _normal(seed + 100, vocab, vocab)
    ids = ids[..., None, :].expand(-1, -1, -1, vocab, -1)
    predecessors = torch.arange(vocab)[:, None].expand_as(ids)
    scores = unary[..., None, :] + edges[predecessors, ids]
    if temperature == 0.0:
        return ToyDrafter(ids, torch.zeros_like(scores).scatter_(-1, _best(scores), 1.0))
    return ToyDrafter(ids, torch.softmax(scores / temperature, -1))


def _best(scores: Tensor) -> Tensor:
    return scores.argmax(-1, keepdim=True)


def _normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(*shape, dtype=torch.float64, generator=generator)
