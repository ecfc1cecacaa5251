"""DFlash: every slot of the block is predicted on its own, in one pass (arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

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
from blockdraft.layers.walk import draw_slots
from blockdraft.types import Proposal, TargetHandle

#: A sampled slot is drawn from the softmax over this many best tokens: exact, since that is the q
#: that is reported, and all but complete.
SUPPORT = 64


class DFlashDrafter(Drafter):
    """Slots are independent given the context, so sampling all of them at once is exact."""

    name = "dflash"

    def __init__(self, model: BlockModel) -> None:
        self.model = model
        self.num_draft_tokens = model.num_draft_tokens
        self.target_layer_ids = model.config.target_layer_ids

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
        source: str = "dflash",
        kernels: str = "auto",
    ) -> DFlashDrafter:
        """Build from a checkpoint's tensors; see `BlockModel` for the arguments and errors."""
        if config.method != "dflash":
            raise CheckpointError(f"{source} is a {config.method} drafter, not dflash")
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
        return cls(model)

    def bind(self, target: TargetHandle) -> None:
        self.model.bind(target)

    def describe(self) -> dict[str, Any]:
        return self.model.describe(self.name)

    def new_context(self, num_slots: int, max_len: int) -> KVDraftContext:
        return self.model.new_context(num_slots, max_len)

    def draft(self, context: DraftContext, batch: DraftBatch) -> DraftedBlock:
        is_greedy = all(t is None for t in sampling_temperatures(batch))
        return self.model.draft(context, batch, 1 if is_greedy else SUPPORT)

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        temperatures = sampling_temperatures(batch)
        if all(t is None for t in temperatures):
            return self._select_best(drafted, batch)
        return self._sample(drafted, batch, temperatures)

    def _select_best(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        values, ids = drafted.best(1)
        return Proposal(ids[..., 0], self.model.draft_lens(batch, _finite_rows(values)))

    def _sample(
        self, drafted: DraftedBlock, batch: DraftBatch, temperatures: Sequence[float | None]
    ) -> Proposal:
        assert batch.uniforms is not None, "sampled rows need uniforms"
        k = drafted.hidden.shape[1]
        values, ids = drafted.best(SUPPORT)
        scores = self.model.transform(values)
        is_finite = _finite_rows(scores)
        lens = self.model.draft_lens(batch, is_finite)
        scores = without_refused(scores, is_finite)
        chosen, q = draw_slots(scores, temperatures, batch.uniforms[:, :k])
        return Proposal(ids.gather(-1, chosen[..., None])[..., 0], lens, ids, q)


def _finite_rows(scores: Float32[Tensor, "b k c"]) -> list[bool]:
    is_finite: list[bool] = torch.isfinite(scores.sum((1, 2))).tolist()
    return is_finite
