"""Load the compiled kernels, and choose the instruction set they run on."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from blockdraft.errors import ConfigError, UserError
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.build import BuildError, build

ISA_VARIABLE = "BLOCKDRAFT_NATIVE_ISA"
_ERRORS = {
    -1: "native kernels: not enough memory for the buffers of a pass; run fewer rows at once",
    -2: "native kernels: an argument is out of range",
}


@cache
def load() -> ctypes.CDLL:
    """The compiled library, built if need be; its threads are set to torch's number.

    Raises: BuildError if it cannot be built or loaded on this machine.
    """
    path = build()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"native kernels cannot be loaded ({error}); delete {path}") from error
    _declare(library)
    _check_layout(library, str(path))
    library.bd_set_num_threads(default_num_threads())
    return library


def is_loaded() -> bool:
    """Whether the kernels are in use in this process: they are never compiled for small work."""
    return load.cache_info().currsize > 0


def _declare(library: ctypes.CDLL) -> None:
    linear, model = POINTER(structs.LinearStruct), POINTER(structs.ModelStruct)
    batch, cache_ = POINTER(structs.BatchStruct), POINTER(structs.CacheStruct)
    sequences = POINTER(structs.SequenceStruct)
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "bd_abi_version": (c_int, ()),
        "bd_struct_bytes": (c_int, (c_int,)),
        "bd_isa_usable": (c_int, (c_int,)),
        "bd_set_num_threads": (None, (c_int,)),
        "bd_workspace_bytes": (c_int64, ()),
        "bd_run_linear": (c_int, (c_int, linear, c_void_p, c_int, c_void_p, c_int)),
        "bd_run_pass": (c_int, (model, batch)),
        "bd_append_context": (c_int, (model, cache_, c_void_p, sequences, c_int, c_int)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _check_layout(library: ctypes.CDLL, path: str) -> None:
    sizes = [library.bd_struct_bytes(i) for i in range(len(structs.ALL_STRUCTS))]
    expected = [ctypes.sizeof(struct) for struct in structs.ALL_STRUCTS]
    if library.bd_abi_version() != structs.ABI_VERSION or sizes != expected:
        raise BuildError(f"native kernels at {path} are of another version; delete that file")


def default_num_threads() -> int:
    """Torch's number of threads, but no more than the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores))


def set_num_threads(num_threads: int) -> None:
    """Threads of every later call; the results do not depend on it.

    Raises: ConfigError if it is not 1 to 256.
    """
    if not 1 <= num_threads <= 256:
        raise ConfigError(f"num_threads is {num_threads}; it must be 1 to 256")
    load().bd_set_num_threads(num_threads)


def usable_isas() -> tuple[str, ...]:
    """Instruction sets that were compiled and that this processor runs, slowest first."""
    library = load()
    return tuple(name for i, name in enumerate(structs.ISAS) if library.bd_isa_usable(i))


def choose_isa(asked: str | None = None) -> str:
    """The instruction set asked for, or by `BLOCKDRAFT_NATIVE_ISA`, or else the fastest.

    Results of different instruction sets differ by rounding; within one they never do.

    Raises: ConfigError if the one asked for is unknown or cannot run here.
    """
    asked = asked or os.environ.get(ISA_VARIABLE) or None
    usable = usable_isas()
    if asked is None:
        return usable[-1]
    if asked not in usable:
        raise ConfigError(
            f"{ISA_VARIABLE} is {asked!r}; on this machine it can be {', '.join(usable)}"
        )
    return asked


def why_unavailable() -> str | None:
    """One line that says why the native kernels cannot be used here; None if they can."""
    try:
        choose_isa()
    except UserError as error:
        return str(error)
    return None


def available() -> bool:
    """Whether the native kernels can be used here; the first call may compile them (seconds)."""
    return why_unavailable() is None


def workspace_bytes() -> int:
    """Memory that the buffers of passes hold, shared by all models, in bytes."""
    return int(load().bd_workspace_bytes())


def check_status(status: int) -> None:
    """Raises: UserError for anything but success."""
    if status != 0:
        raise UserError(_ERRORS.get(status, f"native kernels: unknown error {status}"))
