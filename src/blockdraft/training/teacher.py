"""The target's own logits for trained slots, out of its last hidden states.

Only chunks of them ever exist. Losses that compare distributions (kl, tv, ...) need them; cross
entropy does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Float32
from torch import Tensor

from blockdraft.data.collate import BlockBatch
from blockdraft.training.head import Head
from blockdraft.training.mixing import rms_norm
from blockdraft.training.objectives.blocks import SlotRows


@dataclass(frozen=True)
class Teacher:
    """Final norm and head of the target, over its whole vocabulary.

    Attributes:
        head: with the target's own multiplier and soft-cap.
        norm: weight of its final norm.
    """

    head: Head
    norm: Float[Tensor, "m"]
    eps: float

    def __call__(self, batch: BlockBatch, slots: SlotRows, rows: slice) -> Float32[Tensor, "r v"]:
        """Logits that the tokens of some used slots were chosen from.

        Args:
            rows: which of the used slots, in row order.
        """
        assert batch.teacher is not None, "the features lack the target's last layer"
        hidden = batch.teacher[slots.is_used][rows]
        hidden = rms_norm(hidden, self.norm, self.eps).to(self.head.weight.dtype)
        return self.head.logits(hidden)
