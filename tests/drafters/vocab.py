"""Tiny drafters with a draft vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.fakes.models import tiny_target

#: Every third token of the tiny targets from 1 on, without token 154: 51 of them. 155 is the mask.
IDS = torch.arange(1, 154, 3)

CLASSES = {"dflash": DFlashDrafter, "dflash2": DFlash2Drafter}


def subset_config(method: str, **changes: Any) -> DFlashConfig:
    return tiny_drafter_config(method, draft_vocab_size=len(IDS), **changes)


def subset_drafter(method: str, target: Any = None, **options: Any) -> Any:
    """A random drafter that drafts from `IDS`; options are those of `from_tensors`."""
    config = subset_config(method)
    drafter = CLASSES[method].from_tensors(config, random_tensors(config), **options)
    drafter.bind(target or tiny_target())
    return drafter


def restricted(method: str, tensors: dict[str, Tensor]) -> Any:
    """A whole drafter's tensors cut down to `IDS`; other tokens precede like token 0."""
    some = {**tensors, DRAFT_VOCAB_IDS: IDS}
    if method == "dflash2":
        left, right = (
            f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor")
        )
        some[left] = torch.cat([tensors[left][IDS], tensors[left][:1]])
        some[right] = tensors[right][IDS]
    drafter = CLASSES[method].from_tensors(subset_config(method), some)
    drafter.bind(tiny_target())
    return drafter
