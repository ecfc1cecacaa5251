"""Where blocks start in a sample: drawn anew in every epoch (arXiv 2602.06036).

An anchor is the last committed token of a decoding cycle: the first answer token at the earliest
(prefill itself emits it), and the last but one token of the sample at the latest, since a block
needs something to predict.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


def anchor_range(prompt_len: int, num_tokens: int) -> range:
    """Positions that may be anchors in a sample of `num_tokens` tokens, prompt included.

    Empty where the answer has one token or none: nothing can be learnt from it.
    """
    return range(max(prompt_len, 1), num_tokens - 1)


def draw_anchors(
    generator: np.random.Generator, prompt_len: int, num_tokens: int, most: int
) -> Int64[Tensor, "n"]:
    """At most `most` different anchors of a sample, ascending."""
    places = anchor_range(prompt_len, num_tokens)
    num = min(most, len(places))
    chosen = generator.choice(len(places), size=num, replace=False, shuffle=False)
    chosen.sort()
    return torch.from_numpy(chosen.astype(np.int64)) + places.start
