"""Safetensors weights, single or in shards: checked by their headers, read lazily.

A file is checked before anything is loaded: its header must be whole, and the file as long as
the header says. A download that was cut short is then named at once, not met as a crash later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from blockdraft.errors import CheckpointError
from blockdraft.json_text import parse_json

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_WIDTH_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16}
_WIDTH_BITS |= {"BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_WIDTH_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4}


class SafetensorsWeights(Mapping[str, Tensor]):
    """Tensors of one or several files by name, read at each access."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = dict(places)
        self._open: dict[Path, Any] = {}

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        return tuple(sorted(set(self._places.values())))

    def __getitem__(self, name: str) -> Tensor:
        path = self._places[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            tensor: Tensor = self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; fetch it again") from error
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def open_weights(folder: Path) -> SafetensorsWeights:
    """Find and check the weights of a model folder.

    Like transformers, a single `model.safetensors` is preferred to shards with an index.

    Raises: CheckpointError naming the file that is missing or damaged, or the tensors that an
        index promises and its shard does not hold.
    """
    single = folder / SINGLE_NAME
    if single.is_file():
        return SafetensorsWeights(dict.fromkeys(read_header(single), single))
    index = folder / INDEX_NAME
    if not index.is_file():
        raise CheckpointError(f"{folder} has no {SINGLE_NAME} and no {INDEX_NAME}{_hint(folder)}")
    return SafetensorsWeights(_sharded_places(folder, index))


def _hint(folder: Path) -> str:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        return f"; to use the GGUF file, give its own path ({ggufs[0]})"
    if any(folder.glob("*.bin")):
        return "; .bin weights are not read: save the model again as safetensors"
    return ""


def _sharded_places(folder: Path, index: Path) -> dict[str, Path]:
    promised = _weight_map(index)
    places: dict[str, Path] = {}
    for shard in sorted(set(promised.values())):
        path = folder / shard
        if Path(shard).name != shard:
            raise CheckpointError(f"{index} names {shard!r}; a shard must lie beside its index")
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, but {index.name} names it; fetch it again")
        # Tensors no index speaks of are kept, so that whoever loads strictly can name them.
        places |= dict.fromkeys(read_header(path), path)
    absent = [name for name in promised if places.get(name) != folder / promised[name]]
    if absent:
        raise CheckpointError(
            f"{index} names {len(absent)} tensors that their shards do not hold: "
            f"{', '.join(absent[:5])}"
        )
    return places


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = parse_json(index.read_text())["weight_map"]
        return {str(name): str(shard) for name, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged: {error!r}; fetch it again") from error


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Header of a safetensors file: `dtype`, `shape`, `data_offsets` of each tensor.

    Raises: CheckpointError naming the file if the header is broken, or the file is shorter or
        longer than it says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_len = int.from_bytes(file.read(8), "little")
        if size < 8 or header_len > size - 8:
            raise CheckpointError(f"{path} is cut short inside its header; fetch it again")
        try:
            header = parse_json(file.read(header_len))
            header.pop("__metadata__", None)
            ends = [_checked_end(entry) for entry in header.values()]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{path} has a damaged header; fetch it again") from error
    expected = 8 + header_len + max(ends, default=0)
    if size != expected:
        raise CheckpointError(
            f"{path} is {size} bytes, but its header says {expected}; fetch it again"
        )
    return dict(header)


def _checked_end(entry: Mapping[str, Any]) -> int:
    """Where a tensor's bytes end; its span must fit its shape."""
    start, end = (int(offset) for offset in entry["data_offsets"])
    bits = _WIDTH_BITS.get(entry["dtype"])
    if bits is not None and (end - start) * 8 != math.prod(entry["shape"]) * bits:
        raise ValueError("a tensor's bytes do not fit its shape")
    return end
