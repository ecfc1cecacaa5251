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
from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.cache.base import DraftContext
from blockdraft.cache.draft_context import KVDraftContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.drafters.block_model import (
    BlockModel,
    DraftedBlock,
    sampling_temperatures,
    without_refused,
)
from blockdraft.drafters.config import DFlashConfig
from blockdraft.errors import CheckpointError
from blockdraft.layers.selector import edge_scores
from blockdraft.layers.walk import Paths, walk_greedy, walk_sampled
from blockdraft.types import Proposal, TargetHandle


@dataclass(frozen=True)
class Lattice:
    """Candidates of each slot and the score of every edge (slot, predecessor, candidate)."""

    ids: Int64[Tensor, "b k c"]
    scores: Float32[Tensor, "b k c c"]


class DFlash2Drafter(Drafter):
    """Candidates from the target's head, path and q from the selector."""

    name = "dflash2"

    def __init__(self, model: BlockModel, selector: Mapping[str, Tensor]) -> None:
        self.model = model
        self.num_draft_tokens = model.num_draft_tokens
        self.target_layer_ids = model.config.target_layer_ids
        # Codebooks are kept in the run dtype; the rows that are gathered become float32.
        device, dtype = model.device, model.dtype
        self._predecessors = selector["predecessor_codebook"].to(device, dtype)
        self._successors = selector["successor_codebook"].to(device, dtype)
        self._projection = selector["hidden_projection.weight"].to(device, torch.float32)

    @classmethod
    def from_tensors(
        cls,
        config: DFlashConfig,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_draft_tokens: int | None = None,
        provenance: Mapping[str, str] | None = None,
        source: str = "dflash2",
        kernels: str = "auto",
    ) -> DFlash2Drafter:
        """Build from a checkpoint's tensors; see `BlockModel` for the arguments and errors."""
        if config.method != "dflash2":
            raise CheckpointError(f"{source} is a {config.method} drafter, not dflash2")
        model = BlockModel(
            config,
            tensors,
            dtype=dtype,
            device=torch.device(device),
            num_draft_tokens=num_draft_tokens,
            provenance=provenance or {},
            source=source,
            kernels=kernels,
        )
        prefix = "candidate_selector."
        names = [name for name in tensors if name.startswith(prefix)]
        return cls(model, {name.removeprefix(prefix): tensors[name] for name in names})

    def bind(self, target: TargetHandle) -> None:
        self.model.bind(target)

    def describe(self) -> dict[str, Any]:
        return self.model.describe(self.name)

    def new_context(self, num_slots: int, max_len: int) -> KVDraftContext:
        return self.model.new_context(num_slots, max_len)

    def draft(self, context: DraftContext, batch: DraftBatch) -> DraftedBlock:
        return self.model.draft(context, batch, self.model.config.selector_top_k)

    def lattice(self, drafted: DraftedBlock, anchor_ids: Int64[Tensor, "b"]) -> Lattice:
        """The best candidates of each slot and all edge scores, in float32."""
        values, ids = drafted.best(self.model.config.selector_top_k)
        unary = self.model.transform(values)
        gate = F.linear(drafted.hidden.float(), self._projection)
        scores = edge_scores(unary, ids, anchor_ids, gate, self._predecessors, self._successors)
        return Lattice(ids, scores)

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        if drafted.top is not None and all(t is None for t in sampling_temperatures(batch)):
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
        """The greedy walk in C, which scores only the edges it passes."""
        from blockdraft.kernels.native.walk import walk_greedy as walk

        values, ids = drafted.best(self.model.config.selector_top_k)
        gate = self._native_gate(drafted.hidden)
        path, is_finite = walk(
            gate,
            self.model.transform(values).contiguous(),
            ids.contiguous(),
            batch.anchor_ids,
            self._predecessors,
            self._successors,
        )
        return Proposal(path, self.model.draft_lens(batch, is_finite.tolist()))

    @cached_property
    def _native_gate(self) -> Callable[[Tensor], Tensor]:
        from blockdraft.kernels.native import NativeLinear

        linear = NativeLinear(self._projection)
        return lambda hidden: linear(hidden, torch.float32)


def _tokens(lattice: Lattice, paths: Paths) -> Int64[Tensor, "b k"]:
    index = torch.tensor(paths, device=lattice.ids.device)
    return lattice.ids.gather(-1, index[..., None])[..., 0]
