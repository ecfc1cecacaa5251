"""Tiny bfloat16 targets that promise bit-equal rows whatever is checked with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from blockdraft.targets.base import Target
from blockdraft.targets.exact import ExactTarget
from blockdraft.targets.native import NativeTarget
from tests.fakes.models import random_weights, tiny_config, tiny_target


def exact_target(**changes: Any) -> Target:
    """Passes of one shape on PyTorch's kernels."""
    return ExactTarget(tiny_target(dtype=torch.bfloat16, **changes))


def native_target(**changes: Any) -> Target:
    """The C kernels. Only where `native.available()`."""
    info = dataclasses.replace(tiny_target(**changes).info, dtype=torch.bfloat16)
    config = tiny_config(**changes)
    return NativeTarget(config, random_weights(config), info)
