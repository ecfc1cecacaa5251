"""Tiny bfloat16 targets that promise bit-equal rows whatever is checked with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from blockdraft.kernels.choose import choose_kernels
from blockdraft.targets.base import Target
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.targets.exact import ExactTarget
from blockdraft.targets.native import NativeTarget
from blockdraft.types import TargetInfo
from tests.fakes.models import random_weights, tiny_config, tiny_target

Weights = Mapping[str, Tensor]


def exact_target(weights: Weights | None = None, **changes: Any) -> Target:
    """Passes of one shape on PyTorch's kernels."""
    config, info = _config_and_info(changes)
    device = torch.device("cpu")
    kernels = choose_kernels(torch.bfloat16, device)
    weights = weights or random_weights(config)
    return ExactTarget(DecoderTarget(config, weights, kernels, info, device))


def native_target(weights: Weights | None = None, **changes: Any) -> Target:
    """The C kernels. Only where `native.available()`."""
    config, info = _config_and_info(changes)
    return NativeTarget(config, weights or random_weights(config), info)


def _config_and_info(changes: dict[str, Any]) -> tuple[DecoderConfig, TargetInfo]:
    info = dataclasses.replace(tiny_target(**changes).info, dtype=torch.bfloat16)
    return tiny_config(**changes), info
