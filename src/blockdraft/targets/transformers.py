"""Any causal language model of transformers as a target: simple and right rather than fast.

Sequences run one by one, so no row is ever padding to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache

from blockdraft.cache.base import TargetCache
from blockdraft.errors import CapacityError, ConfigError, UnsupportedError
from blockdraft.targets.base import PassOutput, RowBatch, Target
from blockdraft.targets.layer_taps import LayerTaps
from blockdraft.targets.rollback import check_by_trial
from blockdraft.targets.slot_caches import SlotCaches
from blockdraft.targets.sources import SourceFiles
from blockdraft.types import TargetInfo


class TransformersTarget(Target):
    """A frozen transformers model behind the interface of targets.

    `forward` gives exactly the model's own logits, with every scale and soft-cap. `embed` and
    `head` are the bare matrices, as the interface asks.

    Args:
        model: a causal language model on its device, in its dtype.
        info: what it is.

    Raises: UnsupportedError if the model cannot roll back, or hides its layers or its head.
    """

    def __init__(self, model: Any, info: TargetInfo) -> None:
        self.model = model.eval().requires_grad_(False)
        self.info = info
        self._embedding: Tensor = self.model.get_input_embeddings().weight
        self._head = self.model.get_output_embeddings()
        if not isinstance(self._head, nn.Linear):
            raise UnsupportedError(f"{info.name} has no plain output head for a drafter to borrow")
        if self._embedding.shape[1] != info.hidden_size:
            raise UnsupportedError(
                f"{info.name} embeds in width {self._embedding.shape[1]}, not its layers' "
                f"{info.hidden_size}: a drafter cannot borrow that"
            )
        self.device = self._embedding.device
        self._taps = LayerTaps(self.model, info)
        check_by_trial(info.name, self._last_logits, info.vocab_size)

    def new_cache(self, num_slots: int, max_len: int) -> SlotCaches:
        # Made without the model's config: with it, sliding layers would drop rows.
        return SlotCaches(DynamicCache, num_slots, max_len)

    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        return F.embedding(ids, self._embedding)

    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        return F.linear(hidden, self._head.weight, self._head.bias)

    def head_rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e m"], Float[Tensor, "e"] | None]:
        weight, bias = self._head.weight, self._head.bias
        return weight[ids], None if bias is None else bias[ids]

    @torch.inference_mode()
    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        assert isinstance(cache, SlotCaches)
        self._check(cache, batch)
        logits: list[Tensor] = []
        features: list[Tensor] = []
        for i, length in enumerate(batch.lens):
            slot = batch.first_slot + i
            ids = batch.input_ids[i : i + 1, :length].to(self.device)
            with self._taps.listen(batch.layer_ids) as taps:
                logits.append(self._run(cache.slot(slot), ids, batch.logits_for))
            features.append(taps.features())
            cache.lens[slot] += length
        num_rows = batch.input_ids.shape[1]
        return PassOutput(
            None if batch.logits_for == "none" else _stack(logits, num_rows, batch.logits_for),
            _stack(features, num_rows, "all") if batch.layer_ids else None,
        )

    def _check(self, cache: SlotCaches, batch: RowBatch) -> None:
        for i, length in enumerate(batch.lens):
            assert 1 <= length <= batch.input_ids.shape[1], (batch.lens, batch.input_ids.shape)
            if cache.lens[batch.first_slot + i] + length > cache.max_len:
                raise CapacityError(
                    f"sequence {i} would be {cache.lens[batch.first_slot + i] + length} tokens "
                    f"long; the cache was made for {cache.max_len}"
                )
        wrong = [i for i in batch.layer_ids if not 0 <= i < self.info.num_layers]
        if wrong:
            raise ConfigError(
                f"layer {wrong[0]} of {self.info.name} was asked for; "
                f"it has layers 0 to {self.info.num_layers - 1}"
            )

    def _run(self, cache: Any, ids: Tensor, logits_for: str) -> Tensor:
        """Logits [rows, v] of one sequence's new rows: of all of them, or of the last."""
        keep = 0 if logits_for == "all" else 1
        output = self.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=keep)
        logits: Tensor = output.logits
        return logits[0]

    @torch.inference_mode()
    def _last_logits(self, cache: Any, ids: Sequence[int]) -> Tensor:
        return self._run(cache, torch.tensor([ids], device=self.device), "last")[0]


def _stack(rows: list[Tensor], num_rows: int, which: str) -> Tensor:
    """Sequences of different length side by side; rows beyond a length are zero."""
    if which == "last":
        return torch.stack(rows)
    out = rows[0].new_zeros(len(rows), num_rows, rows[0].shape[-1])
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def load_transformers_target(
    source: SourceFiles, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> TransformersTarget:
    """Load a model of any family transformers knows.

    Nothing is ever initialised at random: weights that are missing, unexpected or misshapen are
    errors. Code that comes with a checkpoint is not run.

    Args:
        source: what `resolve` gave.
        dtype: to compute in.
        device: to run on.

    Raises:
        UnsupportedError: transformers does not know the model, it cannot roll back, or it is
            quantised.
        CheckpointError: its config or weights do not fit.
    """
    # Here, so that building a target from a model in hand does not need the loading code.
    from blockdraft.targets.transformers_loading import build_model, target_info

    model = build_model(source, dtype).to(device)
    return TransformersTarget(model, target_info(source, model, dtype))
