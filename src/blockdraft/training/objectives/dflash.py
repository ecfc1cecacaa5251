"""DFlash's objective: every slot on its own, earlier slots count more (arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float32
from torch import Tensor

from blockdraft.data.collate import BlockBatch
from blockdraft.drafters.draft_vocab import DraftVocab
from blockdraft.training.head import Head, HeadRows, head_rows
from blockdraft.training.losses import MixedLoss
from blockdraft.training.objectives.base import Objective, StepSums
from blockdraft.training.objectives.blocks import (
    SlotRows,
    accepted_metrics,
    slot_rows,
)
from blockdraft.training.position_weights import decay_weights, dpace_weights

Weighting = Literal["decay", "dpace"]

#: Target's logits [r, w] of some used rows of a batch; what they are made from is its own affair.
Teacher = Callable[[BlockBatch, SlotRows, slice], Tensor]


@dataclass(frozen=True)
class UnaryRows:
    """A batch after the head: rows, their weights, and what the candidates are."""

    slots: SlotRows
    hidden: Tensor
    rows: HeadRows
    weights: Float32[Tensor, "r"]


@dataclass
class DFlashObjective(Objective):
    """Sum over slots of w_k * loss_k; the loop divides by the sum of w.

    Args:
        head, vocab: the target's head over what may be drafted.
        loss: of a row.
        weighting: fixed decay, or D-PACE.
        gamma, alpha: of the decay, and of D-PACE.
        num_best: candidates looked at (recall and the oracle's length use them).
        inject: see `head_rows`.
    """

    head: Head
    vocab: DraftVocab
    loss: MixedLoss
    weighting: Weighting = "decay"
    gamma: float = 4.0
    alpha: float = 0.5
    num_best: int = 16
    inject: bool = False
    teacher: Teacher | None = None

    def __call__(self, module: Any, batch: BlockBatch) -> StepSums:
        unary = self.unary(module, batch)
        return StepSums(
            (unary.rows.loss * unary.weights).sum(),
            unary.weights.sum(),
            self.metrics(batch, unary),
        )

    def unary(self, module: Any, batch: BlockBatch) -> UnaryRows:
        """The pass, the head and the weights."""
        slots = slot_rows(batch, self.vocab)
        hidden = module(batch)[slots.is_used]
        teacher = None
        if self.teacher is not None and self.loss.needs_teacher:
            ask = self.teacher
            teacher = lambda rows: ask(batch, slots, rows)  # noqa: E731
        rows = head_rows(
            self.head,
            hidden,
            slots.labels,
            self.loss,
            self.num_best,
            inject=self.inject,
            teacher=teacher,
        )
        return UnaryRows(slots, hidden, rows, self._weights(slots, rows))

    def _weights(self, slots: SlotRows, rows: HeadRows) -> Tensor:
        if self.weighting == "decay":
            return decay_weights(slots.is_used, self.gamma)[slots.is_used]
        logprob = slots.spread(rows.label_logprob)
        return dpace_weights(logprob, slots.is_used, self.alpha)[slots.is_used]

    def metrics(self, batch: BlockBatch, unary: UnaryRows) -> dict[str, Tensor]:
        """Lengths that argmax of each slot, and a perfect choice among candidates, would give."""
        is_label = unary.rows.ids == unary.slots.labels[:, None]
        # Decoding never has an injected label; of a single candidate it takes the first place.
        first = unary.slots.spread(is_label[:, 0] & unary.rows.has_label)
        within = unary.slots.spread(unary.rows.has_label)
        return {
            "unary_loss": unary.rows.loss.detach().sum(),
            "unary_loss_count": unary.rows.loss.new_tensor(float(len(unary.rows.loss))),
            **accepted_metrics("unary", first, batch.is_valid),
            **accepted_metrics("oracle", within, batch.is_valid),
        }
