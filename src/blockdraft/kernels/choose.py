"""Which backend a model runs on: decided once, at load."""

from __future__ import annotations

from collections.abc import Callable

import torch

from blockdraft.errors import ConfigError
from blockdraft.kernels import onednn
from blockdraft.kernels.base import Kernels
from blockdraft.kernels.torch_reference import TorchKernels

NAMES = ("auto", "native", "onednn", "torch")


def choose_backend(
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    head_dim: int,
    log: Callable[[str], None],
) -> str:
    """The backend asked for, or the quickest that can run here: native, onednn or torch.

    Native kernels run bfloat16 on a CPU. float32 stays on PyTorch: there, packed weights gained
    nothing (`docs/log.md`). One line says so if native kernels cannot be had.

    Raises: ConfigError if the backend does not exist or cannot run here.
    """
    if name not in NAMES:
        raise ConfigError(f"kernels {name!r} do not exist; choose from {', '.join(NAMES)}")
    is_packable = device.type == "cpu" and dtype == torch.bfloat16
    if name == "native" or (name == "auto" and is_packable):
        why_not = _why_not_native(dtype, device, head_dim, log)
        if why_not is None:
            return "native"
        if name == "native":
            raise ConfigError(f"kernels 'native' cannot run here: {why_not}")
        log(f"kernels: without the native ones ({why_not})")
    can_pack = device.type == "cpu" and onednn.is_available()
    if name == "onednn" and not can_pack:
        raise ConfigError("kernels 'onednn' need a CPU and a PyTorch with oneDNN; use 'torch'")
    return (
        "onednn" if name == "onednn" or (name == "auto" and is_packable and can_pack) else "torch"
    )


def choose_kernels(dtype: torch.dtype, device: torch.device, name: str = "auto") -> Kernels:
    """The products' backend of a model that runs layer by layer in PyTorch.

    Raises: ConfigError if it does not exist or cannot run here.
    """
    is_packable = device.type == "cpu" and dtype == torch.bfloat16 and onednn.is_available()
    if name == "auto":
        name = "onednn" if is_packable else "torch"
    if name == "onednn":
        return onednn.OneDnnKernels(dtype)
    if name == "torch":
        return TorchKernels(dtype, device)
    raise ConfigError(f"kernels {name!r} do not run single layers; choose from onednn, torch")


def _why_not_native(
    dtype: torch.dtype, device: torch.device, head_dim: int, log: Callable[[str], None]
) -> str | None:
    if device.type != "cpu" or dtype != torch.bfloat16:
        return f"they run bfloat16 on a CPU, not {dtype} on {device.type}"
    if head_dim % 8 or head_dim > 256:
        return f"no kernel for heads of width {head_dim}"
    # Imported late: it compiles the kernels at first use.
    from blockdraft.kernels import native

    if native.must_compile():
        log("kernels: compiling the native ones for this machine (once, some 10 seconds)")
    return native.why_unavailable()
