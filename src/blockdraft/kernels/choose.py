"""Which backend a model runs on: decided once, at load."""

from __future__ import annotations

import torch

from blockdraft.errors import ConfigError
from blockdraft.kernels import onednn
from blockdraft.kernels.base import Kernels
from blockdraft.kernels.torch_reference import TorchKernels

NAMES = ("auto", "torch", "onednn")


def choose_kernels(dtype: torch.dtype, device: torch.device, name: str = "auto") -> Kernels:
    """The backend asked for, or the quickest one for this dtype and device.

    float32 stays on the reference: there, packed weights gained nothing (`docs/log.md`).

    Raises: ConfigError if the backend does not exist or cannot run here.
    """
    if name not in NAMES:
        raise ConfigError(f"kernels {name!r} do not exist; choose from {', '.join(NAMES)}")
    can_pack = device.type == "cpu" and onednn.is_available()
    if name == "onednn" and not can_pack:
        raise ConfigError(
            "kernels 'onednn' need a CPU and a PyTorch built with oneDNN; use 'torch'"
        )
    if name == "onednn" or (name == "auto" and can_pack and dtype == torch.bfloat16):
        return onednn.OneDnnKernels(dtype)
    return TorchKernels(dtype, device)
