"""What the objectives of the DFlash family share: valid rows, labels, and acceptance counts."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Int64
from torch import Tensor

from blockdraft.data.collate import BlockBatch
from blockdraft.drafters.draft_vocab import DraftVocab


@dataclass(frozen=True)
class SlotRows:
    """The slots of a batch that are trained, as flat rows.

    Attributes:
        is_used: slots whose token is an answer's and can be drafted [n, t].
        labels: row of the head of each used slot, in row order.
        predecessors: predecessor codebook row of each used slot (the true token before it).
    """

    is_used: Bool[Tensor, "n t"]
    labels: Int64[Tensor, "r"]
    predecessors: Int64[Tensor, "r"]

    def spread(self, rows: Tensor, fill: float | int = 0) -> Tensor:
        """Values of the used slots at their places [n, t]."""
        out = rows.new_full(self.is_used.shape, fill)
        return out.masked_scatter(self.is_used, rows)


def slot_rows(batch: BlockBatch, vocab: DraftVocab) -> SlotRows:
    """Which slots count, and their labels. A slot predicts the token at its own position."""
    rows = vocab.rows(batch.token_ids.clamp_min(0))  # rows beyond the sample's end are not valid
    is_used = batch.is_valid & (rows < vocab.size)
    return SlotRows(is_used, rows[is_used], rows.roll(1, 1)[is_used])


def accepted_metrics(
    name: str, is_right: Bool[Tensor, "n t"], is_valid: Bool[Tensor, "n t"]
) -> dict[str, Tensor]:
    """Tokens a block would commit if its right slots were the drafts, and rightness by position.

    Blocks cut by the sample's end count for what they hold. The bonus or correction is added, so
    that the mean is an acceptance length.
    """
    is_right, is_valid = is_right[:, 1:], is_valid[:, 1:]
    alive = (is_right & is_valid).cumprod(1)
    blocks = is_valid[:, 0]
    return {
        f"{name}_length": (1 + alive.sum(1))[blocks].sum(),
        f"{name}_length_count": blocks.sum(),
        f"{name}_by_position": (is_right & is_valid).sum(0),
        f"{name}_by_position_count": is_valid.sum(0),
    }
