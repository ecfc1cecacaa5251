"""How much each slot of a block counts: the first ones decide whether later ones are ever used."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

#: Decay gamma for a block size, as published for DFlash (arXiv 2602.06036).
_GAMMAS = {8: 4.0, 10: 5.0, 16: 7.0}


def default_gamma(block_size: int) -> float:
    """Published where there is a figure, else half the block."""
    return _GAMMAS.get(block_size, block_size / 2)


def decay_weights(is_valid: Bool[Tensor, "n t"], gamma: float) -> Float32[Tensor, "n t"]:
    """exp(-(k - 1) / gamma) for slot k of valid rows, else 0."""
    slots = torch.arange(is_valid.shape[1], device=is_valid.device)
    return torch.exp(-(slots - 1) / gamma) * is_valid


def dpace_weights(
    logprob: Float32[Tensor, "n t"], is_valid: Bool[Tensor, "n t"], alpha: float = 0.5
) -> Float32[Tensor, "n t"]:
    """D-PACE (arXiv 2605.18810): how much the expected accepted length hangs on each slot.

    With s_k = (1 - alpha) q(label_k) + alpha, the weight is the sum over j >= k of the product of
    s_1..s_j: proportional to the slope of the expected length in log s_k. Invalid slots have s = 1
    and add nothing. Detached.
    """
    survival = (1 - alpha) * logprob.detach().exp() + alpha
    alive = torch.where(is_valid, survival, 1.0).cumprod(-1) * is_valid
    return alive.flip(-1).cumsum(-1).flip(-1) * is_valid
