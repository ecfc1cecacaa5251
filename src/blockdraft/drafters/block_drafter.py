"""What DFlash and DFlash 2 share: a block model, from a checkpoint to its pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from blockdraft.cache.draft_context import KVDraftContext
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.block_model import BlockModel
from blockdraft.drafters.config import DFlashConfig
from blockdraft.errors import CheckpointError
from blockdraft.types import TargetHandle


class BlockDrafter(Drafter):
    """A block model; each method adds how a path is chosen (`draft` and `select`).

    Args:
        model: the pass, with what it borrows from the target.
        tensors: the whole checkpoint; a method takes from it what is its own.
    """

    def __init__(self, model: BlockModel, tensors: Mapping[str, Tensor]) -> None:
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
        source: str | None = None,
        kernels: str = "auto",
    ) -> Self:
        """Build from a checkpoint's tensors; see `BlockModel` for the arguments and errors."""
        source = source or cls.name
        if config.method != cls.name:
            raise CheckpointError(f"{source} is a {config.method} drafter, not {cls.name}")
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
        return cls(model, tensors)

    def bind(self, target: TargetHandle) -> None:
        self.model.bind(target)

    def describe(self) -> dict[str, Any]:
        return self.model.describe(self.name)

    def new_context(self, num_slots: int, max_len: int) -> KVDraftContext:
        return self.model.new_context(num_slots, max_len)
