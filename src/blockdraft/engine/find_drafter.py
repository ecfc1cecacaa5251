"""Pick a model, not a configuration: the drafter is found by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from blockdraft.drafters.base import Drafter
from blockdraft.errors import CheckpointError
from blockdraft.registry import (
    NONE,
    TRAINED_METHODS,
    add_lookup,
    load_drafter,
    recorded_target,
    shipped_checkpoint,
)
from blockdraft.targets.base import Target
from blockdraft.targets.sources.wheel import cache_folder
from blockdraft.types import ROUNDED_FROM, TargetInfo

AUTO = "auto"


def find_drafter(
    name: str, target: Target, num_draft_tokens: int | None, *, log: Callable[[str], None]
) -> Drafter | None:
    """The drafter asked for, bound to `target`; None decodes plainly.

    `auto` takes the one shipped for this target, else one of the cache's `drafters` folder, if it
    records this target's fingerprint; text that repeats is then looked up first. Else n-gram lookup
    alone. One line says which.
    """
    if name != AUTO or num_draft_tokens == 0:
        wanted = NONE if name == AUTO else name
        return load_drafter(wanted, target, num_draft_tokens=num_draft_tokens)
    folder = next(_candidates(target, log), None)
    if folder is None:
        log(f"drafter: ngram lookup (no trained drafter is known for {target.info.name})")
        return load_drafter("ngram", target, num_draft_tokens=num_draft_tokens)
    inner = load_drafter(folder, target, num_draft_tokens=num_draft_tokens)
    assert inner is not None
    drafter = add_lookup(inner)
    log(f"drafter: {drafter.name} from {folder}")
    return drafter


def _candidates(target: Target, log: Callable[[str], None]) -> Iterator[Path]:
    for method in TRAINED_METHODS:
        folder = shipped_checkpoint(method, target.info.name)
        if folder is not None and _is_made_for(folder, target.info, log):
            yield folder
    own = cache_folder() / "drafters"
    for config in sorted(own.glob("*/config.json")):
        if _recorded(config.parent, log) == target.info.fingerprint:
            yield config.parent


def _is_made_for(folder: Path, info: TargetInfo, log: Callable[[str], None]) -> bool:
    """Whether a shipped checkpoint is for these weights: any file may bear its target's name."""
    made_for = _recorded(folder, log)
    if made_for is None or made_for in (info.fingerprint, info.extra.get(ROUNDED_FROM)):
        return made_for is not None
    log(
        f"drafter: passed over {folder.name}, which comes with the package (made for weights "
        f"{made_for[:12] or 'that it does not record'}, {info.source} has {info.fingerprint[:12]})"
    )
    return False


def _recorded(folder: Path, log: Callable[[str], None]) -> str | None:
    """The target's fingerprint; empty if none is recorded, None if the checkpoint is damaged."""
    try:
        return recorded_target(folder) or ""
    except CheckpointError as error:  # a damaged neighbour must not stop what works without it
        log(f"drafter: passed over {folder} ({error})")
        return None
