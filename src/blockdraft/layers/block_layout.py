"""Where the rows of a block stand and which tokens they predict: for training and inference alike.

Block at anchor a, `width` rows: row k stands at position a + k. Row 0 holds the anchor token and
predicts nothing (the DFlash slot convention); row k >= 1 holds the mask and predicts the token at
its own position. Context features of positions t < a are visible, never the anchor's own.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor


def block_positions(anchors: Int64[Tensor, "n"], width: int) -> Int64[Tensor, "n t"]:
    """Position of each row of each block; it is also the position of the token it predicts."""
    return anchors[:, None] + torch.arange(width, device=anchors.device)
