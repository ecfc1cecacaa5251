"""What the objectives of the DFlash family share: valid rows, labels, and acceptance counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from blockdraft.data.collate import BlockBatch


class DraftVocab:
    """Target tokens to indices of the draft vocabulary, and back.

    Args:
        ids: ascending target tokens that may be drafted; None means all.
        vocab_size: of the target.
    """

    def __init__(self, ids: Int64[Tensor, "v"] | None, vocab_size: int) -> None:
        self.ids = ids
        self.size = vocab_size if ids is None else len(ids)
        self._index = torch.arange(vocab_size)
        if ids is not None:
            self._index = torch.full((vocab_size,), -1).index_copy_(0, ids, torch.arange(len(ids)))

    def index(self, tokens: Tensor) -> Int64[Tensor, "..."]:
        """Index of each token; -1 for those that cannot be drafted (and for -1)."""
        self._index = self._index.to(tokens.device)
        return self._index[tokens.clamp_min(0)].masked_fill(tokens < 0, -1)

    def predecessor(self, tokens: Tensor) -> Int64[Tensor, "..."]:
        """Row of the predecessor codebook: the one past the end is every other token's."""
        index = self.index(tokens)
        return index.masked_fill(index < 0, self.size)


@dataclass(frozen=True)
class SlotRows:
    """The slots of a batch that are trained, as flat rows.

    Attributes:
        is_used: slots whose token is an answer's and can be drafted [n, t].
        labels: draft-vocabulary index of each used slot, in row order.
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
    labels = vocab.index(batch.token_ids)
    is_used = batch.is_valid & (labels >= 0)
    before = vocab.predecessor(batch.token_ids.roll(1, 1))
    return SlotRows(is_used, labels[is_used], before[is_used])


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
