"""Drafters by name: the built-in ones, those of outside packages, and checkpoints in folders.

Modules are named as text and imported when asked for: listing drafters costs nothing, and this
module depends on none of them. An outside package adds a drafter through the entry point group
`blockdraft.drafters`: a `Drafter` class whose classmethod `create(target, *, num_draft_tokens,
dtype)` returns a drafter that is ready but for `bind`.
"""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import torch

from blockdraft.drafters.base import Drafter
from blockdraft.errors import ConfigError
from blockdraft.types import TargetHandle

ENTRY_POINT_GROUP = "blockdraft.drafters"

#: The name of decoding without a drafter.
NONE = "none"

#: Most tokens a cycle may draft: no drafter is right for so long, and caches hold room for them.
MAX_DRAFT_TOKENS = 256

_BUILT_IN = {
    "ngram": "blockdraft.drafters.ngram:NgramDrafter",
    "dflash": "blockdraft.drafters.dflash:DFlashDrafter",
    "dflash2": "blockdraft.drafters.dflash2:DFlash2Drafter",
}
#: Methods that are trained, the best first: that of `auto` is the first that is shipped.
TRAINED_METHODS = ("dflash2", "dflash")
#: Behind a name or folder: text that repeats is looked up, and the drafter drafts the rest.
LOOKUP = "+ngram"
#: Shortest run of tokens that must have occurred before: of one alone, a drafter knows better.
_LOOKUP_MIN_N = 2

_CHECKPOINT_READER = "blockdraft.interop.zlab"
_SHIPPED = Path(__file__).parent / "checkpoints"


def drafter_names() -> list[str]:
    """Every name that `load_drafter` knows, those of outside packages included."""
    return sorted({NONE, *_BUILT_IN, *_plugins()})


def drafter_class(name: str) -> Any:
    """The class behind a name; a built-in name can not be taken over from outside.

    Raises: ConfigError that lists what exists, near misses first.
    """
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name].split(":")
        return getattr(importlib.import_module(module), attribute)
    plugins = _plugins()
    if name not in plugins:
        raise ConfigError(_unknown(name))
    entry = plugins[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"drafter {name!r} ({entry.value}) fails to load: {error}") from error


def load_drafter(
    name_or_path: str | Path,
    target: TargetHandle,
    *,
    num_draft_tokens: int | None = None,
    dtype: torch.dtype | None = None,
) -> Drafter | None:
    """A drafter bound to `target`; None for plain decoding ("none", or num_draft_tokens 0).

    Args:
        name_or_path: a name; `dflash` and `dflash2` mean the checkpoint shipped for this target.
            Or the folder of a checkpoint. Either may end in `+ngram`: text that repeats is then
            looked up, and the drafter drafts the rest.
        num_draft_tokens: tokens to draft each cycle; None takes the drafter's own number.
        dtype: what the drafter computes in; None takes the target's.
    Raises: ConfigError for an unknown name or number; CheckpointError for a checkpoint that is
        damaged or does not fit the target.
    """
    if num_draft_tokens is not None and not 0 <= num_draft_tokens <= MAX_DRAFT_TOKENS:
        raise ConfigError(
            f"num_draft_tokens is {num_draft_tokens}; it must be 0 (off) to {MAX_DRAFT_TOKENS}"
        )
    name, folder, names = str(name_or_path), Path(name_or_path), drafter_names()
    if (first := without_lookup(name)) != name:
        if first in ("", NONE, "ngram") or first.endswith(LOOKUP):
            raise ConfigError(f"drafter {name!r}: put one drafter with a model before {LOOKUP!r}")
        inner = load_drafter(first, target, num_draft_tokens=num_draft_tokens, dtype=dtype)
        return None if inner is None else add_lookup(inner)
    if name not in names and not folder.is_dir():
        raise ConfigError(_unknown(name))
    if name == NONE or num_draft_tokens == 0:
        return None
    dtype = dtype or target.info.dtype
    if name not in names:
        drafter = _load_folder(folder, target, num_draft_tokens, dtype)
    elif name in TRAINED_METHODS:
        shipped = checkpoint_folder(name, target.info.name)
        drafter = _load_folder(shipped, target, num_draft_tokens, dtype)
    else:
        drafter = drafter_class(name).create(target, num_draft_tokens=num_draft_tokens, dtype=dtype)
    drafter.bind(target)
    return drafter


def without_lookup(name: str) -> str:
    """What drafts behind the lookup; a folder that is itself called so keeps its name."""
    is_called_so = name in drafter_names() or Path(name).is_dir()
    return name if is_called_so else name.removesuffix(LOOKUP)


def add_lookup(inner: Drafter) -> Drafter:
    """The drafter, bound already, with text that repeats looked up before it drafts."""
    first = importlib.import_module("blockdraft.drafters.lookup_first")
    lookup = drafter_class("ngram")(inner.num_draft_tokens, min_n=_LOOKUP_MIN_N)
    drafter: Drafter = first.LookupFirst(lookup, inner)
    return drafter


def checkpoint_folder(name: str, target_name: str) -> Path:
    """The folder of the trained drafter that a name stands for, whether text is looked up or not.

    Args:
        name: `auto`, `dflash2` or `dflash`: the one shipped for the target; or a folder. Each may
            end in `+ngram`.
    Raises: ConfigError if it stands for none.
    """
    name = without_lookup(name)
    methods = TRAINED_METHODS if name == "auto" else [m for m in TRAINED_METHODS if m == name]
    found = (shipped_checkpoint(method, target_name) for method in methods)
    folder = next((each for each in found if each is not None), None)
    if folder is not None:
        return folder
    if methods:
        raise ConfigError(
            f"no {' or '.join(methods)} drafter comes with the package for {target_name}; give the"
            " folder of one, train one, or use 'ngram'"
        )
    if name in drafter_names():
        raise ConfigError(f"{name!r} is no trained drafter; give a checkpoint's folder")
    if not Path(name).is_dir():
        raise ConfigError(_unknown(name))
    return Path(name)


def shipped_checkpoint(method: str, target_name: str) -> Path | None:
    """The folder of the checkpoint that comes with the package for a target, if there is one."""
    folder = _SHIPPED / f"{target_name}-{method}"
    return folder if (folder / "config.json").is_file() else None


def recorded_target(folder: Path) -> str | None:
    """Fingerprint of the target that a checkpoint says it was made for.

    Raises: CheckpointError if its files are missing or damaged.
    """
    reader = importlib.import_module(_CHECKPOINT_READER)
    found: str | None = reader.read_provenance(folder).get("target_fingerprint")
    return found


def _load_folder(
    folder: Path, target: TargetHandle, num_draft_tokens: int | None, dtype: torch.dtype
) -> Drafter:
    reader = importlib.import_module(_CHECKPOINT_READER)
    config, tensors = reader.read_zlab(folder)
    drafter: Drafter = drafter_class(config.method).from_tensors(
        config,
        tensors,
        dtype=dtype,
        device=target.device,
        num_draft_tokens=num_draft_tokens,
        provenance={
            **reader.read_provenance(folder),
            "checkpoint_fingerprint": reader.checkpoint_fingerprint(folder),
        },
        # One that comes with the package is the same one wherever that is installed.
        source=folder.name if folder.parent == _SHIPPED else str(folder),
    )
    return drafter


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _unknown(name: str) -> str:
    names = drafter_names()
    near = difflib.get_close_matches(name, names, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no drafter {name!r}: not a name ({', '.join(names)}) and not a folder{hint}"
