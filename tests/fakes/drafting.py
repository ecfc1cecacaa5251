"""Drafters for the loop's tests: known laws, and real drafters whose drafts are watched."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.cache.base import DraftContext, NoContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.sampling.warp import draw
from blockdraft.targets.base import RowBatch, Target
from blockdraft.types import GREEDY_TEMPERATURE, Proposal
from tests.drafters.tiny import random_tensors, tiny_drafter, tiny_drafter_config
from tests.fakes.scripted import ScriptedDrafter


class SparseDrafter(Drafter):
    """Draws each token from a fixed law of its predecessor, on a few candidates.

    Args:
        q_ids, q_probs: candidates and their law after each token, [v, c]; rows sum to 1.
        told_probs: the law that is reported; None reports the true one. Another one is a fault
            that a test of the output's law must see.
    """

    name = "sparse"

    def __init__(
        self,
        q_ids: Tensor,
        q_probs: Tensor,
        num_draft_tokens: int,
        told_probs: Tensor | None = None,
    ) -> None:
        self.q_ids, self.q_probs, self.num_draft_tokens = q_ids, q_probs, num_draft_tokens
        self.told_probs = q_probs if told_probs is None else told_probs

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return NoContext()

    def draft(self, context: DraftContext, batch: DraftBatch) -> None:
        return None

    def select(self, drafted: None, batch: DraftBatch) -> Proposal:
        greedy = torch.tensor([t < GREEDY_TEMPERATURE for t in batch.temperatures])[:, None]
        last, ids, supports, laws = batch.anchor_ids, [], [], []
        for j in range(self.num_draft_tokens):
            best = torch.nn.functional.one_hot(self.q_probs[last].argmax(-1), self.q_ids.shape[1])
            law = torch.where(greedy, best.float(), self.q_probs[last])
            told = torch.where(greedy, best.float(), self.told_probs[last])
            u = (
                torch.zeros(len(last), dtype=torch.float64)
                if batch.uniforms is None
                else batch.uniforms[:, j]
            )
            support = self.q_ids[last]
            last = support.gather(1, draw(law, u)[:, None])[:, 0]
            ids.append(last), supports.append(support), laws.append(told)
        lens = tuple(min(n, self.num_draft_tokens) for n in batch.max_lens)
        return Proposal(torch.stack(ids, 1), lens, torch.stack(supports, 1), torch.stack(laws, 1))


class PointDrafter(Drafter):
    """Proposes a fixed successor of each token: a point mass, as n-gram lookup gives."""

    name = "point"

    def __init__(self, successors: Tensor, num_draft_tokens: int) -> None:
        self.successors, self.num_draft_tokens = successors, num_draft_tokens

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return NoContext()

    def draft(self, context: DraftContext, batch: DraftBatch) -> None:
        return None

    def select(self, drafted: None, batch: DraftBatch) -> Proposal:
        last, ids = batch.anchor_ids, []
        for _ in range(self.num_draft_tokens):
            last = self.successors[last]
            ids.append(last)
        lens = tuple(min(n, self.num_draft_tokens) for n in batch.max_lens)
        return Proposal(torch.stack(ids, 1), lens)


def random_drafter(target: Target, method: str = "dflash2", **changes: Any) -> Any:
    """A random DFlash or DFlash 2 drafter for a tiny target of any vocabulary.

    With a vocabulary of a few tokens, it is right often enough to exercise acceptance.
    """
    v = target.info.vocab_size
    small = {"vocab_size": v, "mask_token_id": v - 1, "max_context_len": 256}
    if method == "dflash2":
        small["selector_top_k"] = min(16, v)
    config = tiny_drafter_config(method, **{**small, **changes})
    cls = type(tiny_drafter(method))
    drafter = cls.from_tensors(config, random_tensors(config))
    drafter.bind(target)
    return drafter


class WatchedDrafter(Drafter):
    """Runs a real drafter in the loop, notes its drafts, and hands on those of a script.

    So the real drafter's context sees every pattern of acceptance. `drafts` maps the committed
    tokens of a row to what was drafted for them.
    """

    name = "watched"

    def __init__(self, inner: Any, script: ScriptedDrafter) -> None:
        self.inner, self.script = inner, script
        self.num_draft_tokens = inner.num_draft_tokens
        self.target_layer_ids = inner.target_layer_ids
        self.drafts: dict[tuple[int, ...], list[int]] = {}
        assert script.num_draft_tokens == self.num_draft_tokens

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        context: DraftContext = self.inner.new_context(num_slots, max_len)
        return context

    def draft(self, context: DraftContext, batch: DraftBatch) -> Any:
        return self.inner.draft(context, batch), self.script.draft(context, batch)

    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        real = self.inner.select(drafted[0], batch)
        for tokens, ids, length in zip(batch.token_ids, real.ids.tolist(), real.lens, strict=True):
            self.drafts[tuple(tokens)] = ids[:length]
        return self.script.select(drafted[1], batch)


def fresh_drafts(target: Target, drafter: Any, tokens: Sequence[int]) -> list[int]:
    """What a drafter proposes after `tokens` when all is computed anew: one row, one pass."""
    cache, context = target.new_cache(1, 256), drafter.new_context(1, 256)
    length = len(tokens) - 1
    if length:
        ids = torch.tensor([list(tokens[:-1])])
        out = target.forward(cache, RowBatch(ids, (length,), 0, "none", drafter.target_layer_ids))
        context.append(out.features, 0, [0], [length])
    batch = DraftBatch(
        anchor_ids=torch.tensor([tokens[-1]]),
        positions=(length,),
        token_ids=[list(tokens)],
        max_lens=(drafter.num_draft_tokens,),
        temperatures=(0.0,),
    )
    proposal = drafter.select(drafter.draft(context, batch), batch)
    drafts: list[int] = proposal.ids[0].tolist()
    return drafts


class VariedDrafter(ScriptedDrafter):
    """A script whose right drafts differ from row to row and from cycle to cycle.

    Args:
        seed: draft j after n committed tokens is right by a coin of (seed, tokens so far, j).
        chance: of a draft to be right.
        ragged: also draft fewer tokens than asked for, down to none, by another coin.
    """

    name = "varied"

    def __init__(
        self, script: ScriptedDrafter, seed: int = 0, chance: float = 0.7, ragged: bool = False
    ) -> None:
        super().__init__(
            script.oracles,
            script.pattern,
            script.num_draft_tokens,
            script.vocab_size,
            script.target_layer_ids,
        )
        self.seed, self.chance, self.ragged = seed, chance, ragged

    def _block(self, tokens: Sequence[int]) -> list[int]:
        rng = random.Random(str((self.seed, tuple(tokens))))
        self.pattern = lambda cycle, j: rng.random() < self.chance
        return super()._block(tokens)

    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        proposal = super().select(drafted, batch)
        if not self.ragged:
            return proposal
        coins = [random.Random(str((self.seed, len(t)))).random() for t in batch.token_ids]
        lens = tuple(int(n * coin * 1.2) for n, coin in zip(proposal.lens, coins, strict=True))
        lens = tuple(map(min, lens, proposal.lens))
        return Proposal(proposal.ids, lens)
