"""DFlash 2's objective: the slots' own loss, and the selector's choice among the candidates.

The selector learns with the true token before each slot (teacher forcing). Where the true token is
not among a slot's candidates, the slot is left out of the selector's loss ("drop") or the token
takes the last candidate's place ("inject"). Source: re-implementations of DFlash 2
(inco.ai/blog/dflash2, August 2026); the authors published no objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockdraft.data.collate import BlockBatch
from blockdraft.training.objectives.base import StepSums
from blockdraft.training.objectives.blocks import accepted_metrics
from blockdraft.training.objectives.dflash import DFlashObjective, UnaryRows


@dataclass
class DFlash2Objective(DFlashObjective):
    """DFlash's objective plus `selector_weight` times the selector's cross entropy."""

    selector_weight: float = 1.0

    def __call__(self, module: Any, batch: BlockBatch) -> StepSums:
        unary = self.unary(module, batch)
        scores = selector_scores(module.candidate_selector, unary)
        is_label = unary.rows.ids == unary.slots.labels[:, None]
        is_trained, place = is_label.max(-1)
        losses = F.cross_entropy(scores, place, reduction="none") * is_trained
        total = unary.rows.loss + self.selector_weight * losses
        # An injected label is trained on, and is no choice that decoding has.
        is_right = (scores.detach().argmax(-1) == place) & unary.rows.has_label
        metrics = self.metrics(batch, unary) | {
            "selector_loss": losses.detach().sum(),
            "selector_loss_count": is_trained.sum(),
            # The true token before every slot: what a walk has for as long as it is right.
            **accepted_metrics("selector", unary.slots.spread(is_right), batch.is_valid),
        }
        return StepSums((total * unary.weights).sum(), unary.weights.sum(), metrics)


def selector_scores(selector: Any, unary: UnaryRows) -> Tensor:
    """Score of each candidate of each used slot, given the true token before it [r, c]."""
    gate = selector.hidden_projection(unary.hidden).float()
    left = F.embedding(unary.slots.predecessors, selector.predecessor_codebook) * gate
    right = F.embedding(unary.rows.ids, selector.successor_codebook)
    return unary.rows.values + torch.einsum("rcd,rd->rc", right, left)
