"""Header of a GGUF file: metadata, and where each tensor lies.

The layout is that of the GGUF specification (ggml-org/ggml, docs/gguf.md), versions 2 and 3,
little-endian. The reader of the `gguf` package makes several numpy arrays of each of the hundred
thousand strings of a tokenizer, which takes seconds; this one takes a tenth, and checks that the
file is as long as its header says.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from blockdraft.errors import CheckpointError, UnsupportedError

_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")  # by GGUF type number
_STRING, _ARRAY = 8, 9
_MAGIC = b"GGUF"


@dataclass(frozen=True)
class TensorPlace:
    """One tensor: `shape` in torch's order, `offset` from the start of the file, in bytes."""

    shape: tuple[int, ...]
    quant: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Raises:
        CheckpointError: the file is no GGUF file, is damaged or cut short; names it.
        UnsupportedError: another version or byte order, one part of several, or a tensor type
            that the `gguf` package does not know.
    """
    with path.open("rb") as file:
        try:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file cannot be mapped
            raise CheckpointError(f"{path} is empty; fetch it again") from error
        with view:
            return _parse(path, _Cursor(view))


def _parse(path: Path, cursor: _Cursor) -> GgufHeader:
    if cursor.view[:4] != _MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file (it does not start with {_MAGIC!r})")
    cursor.offset = 4
    try:
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise UnsupportedError(f"{path} is GGUF version {version}; 2 and 3 are read")
        num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
        metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_keys)}
        entries = [_tensor_entry(path, cursor) for _ in range(num_tensors)]
    except (struct.error, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header ({error}); fetch it again") from error
    if len(metadata) != num_keys or len({name for name, *_ in entries}) != num_tensors:
        raise CheckpointError(f"{path} has a key or tensor twice; fetch it again")
    if metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedError(
            f"{path} is one of {metadata['split.count']} parts; "
            f"join them with `llama-gguf-split --merge` first"
        )
    start = -(-cursor.offset // _alignment(path, metadata)) * _alignment(path, metadata)
    tensors = {
        name: TensorPlace(shape, quant, start + offset, _num_bytes(path, name, shape, quant))
        for name, shape, quant, offset in entries
    }
    end = max((place.offset + place.num_bytes for place in tensors.values()), default=start)
    if len(cursor.view) < end:
        raise CheckpointError(
            f"{path} is cut short: {len(cursor.view)} bytes of {end}; fetch it again"
        )
    return GgufHeader(path, metadata, tensors)


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(f"{path} has general.alignment {alignment!r}; fetch it again")
    return alignment


def _tensor_entry(
    path: Path, cursor: _Cursor
) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name = cursor.string()
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(cursor.scalar("I"))]))
    number = cursor.scalar("I")
    try:
        quant = GGMLQuantizationType(number)
    except ValueError as error:
        raise UnsupportedError(
            f"{path}: {name} has tensor type {number}, which is not known"
        ) from error
    return name, shape, quant, cursor.scalar("Q")


def _num_bytes(path: Path, name: str, shape: tuple[int, ...], quant: GGMLQuantizationType) -> int:
    block_len, block_bytes = GGML_QUANT_SIZES[quant]
    if shape and shape[-1] % block_len:
        raise CheckpointError(
            f"{path}: rows of {name} are {shape[-1]} long, not a multiple of {block_len}"
        )
    return int(math.prod(shape) // block_len * block_bytes)


class _Cursor:
    """Reads one thing after another from the mapped file; raises at its end."""

    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.offset = 0

    def scalar(self, kind: str) -> Any:
        value = struct.unpack_from("<" + kind, self.view, self.offset)[0]
        self.offset += struct.calcsize("<" + kind)
        return value

    def string(self) -> str:
        start = self.offset + 8
        end = start + int(self.scalar("Q"))
        if end > len(self.view):
            raise ValueError("a text runs past the end")
        self.offset = end
        return self.view[start:end].decode("utf-8", errors="strict")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        return self.scalar(_scalar_code(kind))

    def _array(self, kind: int, length: int) -> list[Any]:
        if length > len(self.view) - self.offset:
            raise ValueError("a list runs past the end")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(length)]
        code = f"<{length}{_scalar_code(kind)}"
        values = struct.unpack_from(code, self.view, self.offset)
        self.offset += struct.calcsize(code)
        return list(values)


def _scalar_code(kind: int) -> str:
    if not 0 <= kind < len(_SCALARS) or not _SCALARS[kind]:
        raise ValueError(f"value type {kind} is not known")
    return _SCALARS[kind]
