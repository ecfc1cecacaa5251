"""Are recorded hidden states what they say they are? Asked before the first training step.

What is wrong here does not fail later: a drafter trained on shifted, swapped or empty states
"converges", and is never accepted when it serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockdraft.data.feature_faults import (
    TOLERANCE,
    Fault,
    index_faults,
    place_faults,
    relative_difference,
    sample_fault,
    shard_faults,
)
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.errors import CheckpointError
from blockdraft.targets.base import Target

_MAX_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class IntegrityReport:
    """What was looked at and what was found.

    Attributes:
        num_recomputed: samples whose states were computed anew on the target.
        worst_difference: the largest relative difference of a state among them.
    """

    num_shards: int
    num_samples: int
    num_rows: int
    num_recomputed: int
    worst_difference: float
    faults: tuple[Fault, ...]

    def require_sound(self) -> None:
        """Raises: CheckpointError listing the faults, if there are any."""
        if self.faults:
            listed = "; ".join(str(fault) for fault in self.faults[:_MAX_LISTED])
            more = len(self.faults) - _MAX_LISTED
            raise CheckpointError(
                f"{len(self.faults)} faults in the hidden states: {listed}"
                + (f"; and {more} more" if more > 0 else "")
            )


def check_features(
    store: FeatureStore,
    target: Target | None = None,
    *,
    layer_ids: Sequence[int] | None = None,
    share: float = 0.01,
    scan_share: float = 1.0,
    seed: int = 0,
    has_hashes: bool = False,
) -> IntegrityReport:
    """Look at every sample of a store, and compute some anew.

    Args:
        target: whose states they must be; None leaves fingerprint and recomputation out.
        layer_ids: layers they must be of, in order; None takes those of the index.
        share: of the samples that are recomputed, at least 4 and at most 512 of them.
        scan_share: of the shards whose rows are read, at least one; 1 reads every row, at about
            the speed of the disk.
        seed: of the choice of both.
        has_hashes: compare each shard's SHA-256 too (as long as reading them takes).
    """
    faults = list(index_faults(store, target, layer_ids))
    if faults:  # nothing else would mean anything
        return _report(store, 0, 0.0, faults)
    readable: list[int] = []
    for shard in _choose(range(len(store.index.shards)), scan_share, seed, least=1):
        found = list(shard_faults(store, shard, has_hashes))
        faults += found
        readable += [] if any(f.sample is None for f in found) else store.shard_samples(shard)
    named = {fault.sample for fault in faults}
    sound = [i for i in readable if store.answers[i].id not in named]
    faults += place_faults(store, sound)
    if target is None or not sound:
        return _report(store, 0, 0.0, faults)
    chosen = _choose(sound, share, seed, least=4, most=512)
    recomputed = OnlineFeatures(store.answers, target, store.layer_ids)
    differences = dict(zip(chosen, _differences(store, recomputed, chosen), strict=True))
    faults += [
        sample_fault(
            store, i, f"differs by {d:.0%} from the states the target gives for its tokens"
        )
        for i, d in differences.items()
        if not d <= TOLERANCE
    ]
    return _report(store, len(chosen), max(differences.values()), faults)


def _differences(
    store: FeatureStore, recomputed: OnlineFeatures, chosen: Sequence[int]
) -> list[float]:
    layers = len(store.layer_ids)
    return [
        relative_difference(store.sample(i).features.float(), again.features.float(), layers)
        for i, again in zip(chosen, recomputed.batch(chosen), strict=True)
    ]


def _choose(
    items: Sequence[int], share: float, seed: int, least: int, most: int | None = None
) -> list[int]:
    num = max(least, math.ceil(share * len(items)))
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))
    return sorted(items[i] for i in order[: num if most is None else min(num, most)].tolist())


def _report(
    store: FeatureStore, num_recomputed: int, worst: float, faults: Sequence[Fault]
) -> IntegrityReport:
    shards = store.index.shards
    return IntegrityReport(
        num_shards=len(shards),
        num_samples=len(store),
        num_rows=sum(sum(entry.lens) for entry in shards),
        num_recomputed=num_recomputed,
        worst_difference=worst,
        faults=tuple(faults),
    )
