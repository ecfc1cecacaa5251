"""Greedy answers, with the block that the drafter would draft after every one of their tokens.

What a drafter drafts at a place depends on the text up to there alone. So one run that drafts
everywhere and accepts nothing shows what any way of choosing would have done in real decoding:
each is led through the same texts along the cycles that it would have had itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from benchmarks.findings.asked import Asked
from blockdraft.cache.base import DraftContext
from blockdraft.decoding.step import nothing_drafted
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.drafters.block_model import DraftedBlock
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner
from blockdraft.types import Proposal, SamplingParams


@dataclass(frozen=True)
class AnswerBlocks:
    """One answer. Block i stands before token `first + i`; what cycles commit begins there.

    Attributes:
        token_ids: prompt and answer.
        ids: token ids of the candidates, the best by their own logits first.
        scores: of all edges (slot, predecessor, candidate).
        right: the tokens of the text; -1 beyond its end.
    """

    asked: Asked
    token_ids: tuple[int, ...]
    first: int
    ids: Int64[Tensor, "n k c"]
    scores: Float32[Tensor, "n k c c"]
    right: Int64[Tensor, "n k"]

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The answer alone, with the token that ends it."""
        return self.token_ids[self.first - 1 :]

    @property
    def num_tokens(self) -> int:
        """Tokens that cycles commit: the answer's, less the first, which the prefill gives."""
        return len(self.right)

    def matches(self, chosen: Int64[Tensor, "n k"]) -> Bool[Tensor, "n k"]:
        """Where the chosen candidates are right."""
        return self.ids.gather(-1, chosen[..., None])[..., 0] == self.right

    def oracle(self, num_candidates: int) -> Bool[Tensor, "n k"]:
        """Where the right token is one of the best so many candidates."""
        return (self.ids[..., :num_candidates] == self.right[..., None]).any(-1)


def commits(matches: Bool[Tensor, "n k"]) -> Int64[Tensor, "n"]:
    """Tokens that a cycle at each place commits: right ones from the front, and the target's."""
    accepted = matches.long().cumprod(-1).sum(-1)
    left = len(matches) - torch.arange(len(matches))
    return torch.minimum(accepted + 1, left)


def cycle_starts(committed: Int64[Tensor, "n"]) -> list[int]:
    """Places at which the cycles of an answer begin, if a cycle at i commits committed[i]."""
    steps, starts = committed.tolist(), [0]
    while (then := starts[-1] + steps[starts[-1]]) < len(steps):
        starts.append(then)
    return starts


class BlockWatch(Drafter):
    """Keeps the candidates of every block that `inner` drafts, and proposes nothing."""

    def __init__(self, inner: DFlash2Drafter) -> None:
        self.inner, self.name = inner, inner.name
        self.num_draft_tokens = inner.num_draft_tokens
        self.target_layer_ids = inner.target_layer_ids
        #: By the identity of a row's list of tokens: ids and scores of block after block.
        self.seen: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return self.inner.new_context(num_slots, max_len)

    def draft(self, context: DraftContext, batch: DraftBatch) -> DraftedBlock:
        return self.inner.draft(context, batch)

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        lattice = self.inner.lattice(drafted, batch.anchor_ids)
        for i, tokens in enumerate(batch.token_ids):
            block = (lattice.ids[i].clone(), lattice.scores[i].clone())
            self.seen.setdefault(id(tokens), []).append(block)
        return nothing_drafted(len(batch.token_ids))


def collect(
    llm: LLM, drafter: DFlash2Drafter, asked: Sequence[Asked], num_tokens: int
) -> list[AnswerBlocks]:
    """Answer every prompt greedily with up to `num_tokens` tokens, and draft at each of them.

    `llm` lends its target and limits. Answers of one token have no cycle and are left out.
    """
    watch = BlockWatch(drafter)
    # Rows near their limit draft less: the limit is put behind what is looked at.
    params = SamplingParams(max_tokens=num_tokens + drafter.num_draft_tokens)
    rows = llm.rows([each.text for each in asked], params)
    for _ in Runner(llm.target, watch, rows, llm.limits).run():
        pass
    answers = []
    for each, row in zip(asked, rows, strict=True):
        end = min(len(row.token_ids), row.prompt_len + num_tokens)
        text, first = tuple(row.token_ids[:end]), row.prompt_len + 1
        if first < end:
            answers.append(_answer(each, text, first, watch.seen.pop(id(row.token_ids))))
    return answers


def _answer(
    asked: Asked, text: tuple[int, ...], first: int, seen: Sequence[tuple[Tensor, Tensor]]
) -> AnswerBlocks:
    num = len(text) - first
    ids = torch.stack([block[0] for block in seen[:num]])
    scores = torch.stack([block[1] for block in seen[:num]])
    k = ids.shape[1]
    padded = torch.tensor([*text[first:], *[-1] * (k - 1)])
    return AnswerBlocks(asked, text, first, ids, scores, padded.unfold(0, k, 1))
