"""DFlash 2: a DFlash backbone with block convolutions, and a selector that walks the candidates.

The pass gives every slot its best candidates; the selector scores each candidate given each
possible predecessor, and a path is walked from the anchor. Given the path, each q is the softmax
that its token was drawn from, so rejection sampling is exact.

Source: DFlash 2 (inco.ai/blog/dflash2, August 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.cache.base import DraftContext
from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.block_model import (
    BlockModel,
    DraftedBlock,
    sampling_temperatures,
    without_refused,
)
from blockdraft.layers.selector import edge_scores
from blockdraft.layers.walk import Paths, walk_greedy, walk_sampled
from blockdraft.types import Proposal


@dataclass(frozen=True)
class Lattice:
    """Token ids of each slot's candidates; scores of all edges (slot, predecessor, candidate)."""

    ids: Int64[Tensor, "b k c"]
    scores: Float32[Tensor, "b k c c"]


class DFlash2Drafter(BlockDrafter):
    """Candidates from the target's head, path and q from the selector."""

    name = "dflash2"

    def __init__(self, model: BlockModel, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(model, tensors)
        # Codebooks are kept in the run dtype; the rows that are gathered become float32.
        device, dtype, part = model.device, model.dtype, "candidate_selector"
        self._predecessors = tensors[f"{part}.predecessor_codebook"].to(device, dtype)
        self._successors = tensors[f"{part}.successor_codebook"].to(device, dtype)
        projection = tensors[f"{part}.hidden_projection.weight"]
        self._projection = projection.to(device, torch.float32)

    def draft(self, context: DraftContext, batch: DraftBatch) -> DraftedBlock:
        return self.model.draft(context, batch, self.model.config.selector_top_k)

    def lattice(self, drafted: DraftedBlock, anchor_ids: Int64[Tensor, "b"]) -> Lattice:
        """The best candidates of each slot and all edge scores, in float32."""
        values, rows = drafted.best(self.model.config.selector_top_k)
        unary, vocab = self.model.transform(values), self.model.vocab
        gate = F.linear(drafted.hidden.float(), self._projection)
        anchors = vocab.rows(anchor_ids)
        scores = edge_scores(unary, rows, anchors, gate, self._predecessors, self._successors)
        return Lattice(vocab.tokens(rows), scores)

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        if drafted.top is not None:
            return self._walk_natively(drafted, batch)
        lattice = self.lattice(drafted, batch.anchor_ids)
        is_finite = torch.isfinite(lattice.scores.sum((1, 2, 3))).tolist()
        lens = self.model.draft_lens(batch, is_finite)
        temperatures = sampling_temperatures(batch)
        if all(t is None for t in temperatures):
            return Proposal(_tokens(lattice, walk_greedy(lattice.scores)), lens)
        assert batch.uniforms is not None, "sampled rows need uniforms"
        scores = without_refused(lattice.scores, is_finite)
        paths, q = walk_sampled(scores, temperatures, batch.uniforms[:, : scores.shape[1]])
        return Proposal(_tokens(lattice, paths), lens, lattice.ids, q)

    def _walk_natively(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        """The walk in C, which scores only the edges it passes."""
        from blockdraft.kernels.native.walk import WalkInput, walk_greedy, walk_sampled

        values, rows = drafted.best(self.model.config.selector_top_k)
        vocab, rows = self.model.vocab, rows.contiguous()
        given = WalkInput(
            self._native_gate(drafted.hidden),
            self.model.transform(values).contiguous(),
            rows,
            vocab.rows(batch.anchor_ids),
            self._predecessors,
            self._successors,
            vocab.ids,
        )
        temperatures = sampling_temperatures(batch)
        if all(t is None for t in temperatures):
            path, finite_lens = walk_greedy(given)
            return Proposal(path, self.model.cut_lens(batch, finite_lens))
        assert batch.uniforms is not None, "sampled rows need uniforms"
        uniforms, isa = batch.uniforms[:, : rows.shape[1]], self.model.native_isa
        path, q, finite_lens = walk_sampled(given, temperatures, uniforms, isa)
        return Proposal(path, self.model.cut_lens(batch, finite_lens), vocab.tokens(rows), q)

    @cached_property
    def _native_gate(self) -> Callable[[Tensor], Tensor]:
        from blockdraft.kernels.native import NativeLinear

        linear = NativeLinear(self._projection)
        return lambda hidden: linear(hidden, torch.float32)


def _tokens(lattice: Lattice, paths: Paths) -> Int64[Tensor, "b k"]:
    index = torch.tensor(paths, device=lattice.ids.device)
    return lattice.ids.gather(-1, index[..., None])[..., 0]
