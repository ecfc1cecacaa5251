"""The single looks at recorded hidden states: what the index says, single rows, places of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import BFloat16
from torch import Tensor

from blockdraft.data.feature_alignment import TokenMeans
from blockdraft.data.feature_shards import FeatureSample, FeatureStore
from blockdraft.errors import CheckpointError
from blockdraft.targets.base import Target
from blockdraft.targets.sources.fingerprint import hash_file

#: Relative difference of a state from the one computed anew that bfloat16 in other shapes explains.
TOLERANCE = 0.1

#: Samples that the means of tokens, and the usual first rows, are taken from.
_NUM_REFERENCE = 256

#: A sample fits its tokens at least this share as well as the median sample does.
_MIN_FIT_SHARE = 0.6


@dataclass(frozen=True)
class Fault:
    """What is wrong with a sample, or with a whole file (`sample` is None)."""

    file: str
    sample: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{f' sample {self.sample}' if self.sample else ''}: {self.what}"


def index_faults(
    store: FeatureStore, target: Target | None, layer_ids: Sequence[int] | None
) -> Iterator[Fault]:
    """What the index says against what is expected."""
    index, file = store.index, str(store.folder / "index.json")
    if layer_ids is not None and tuple(layer_ids) != index.layer_ids:
        yield Fault(file, None, f"states of layers {list(index.layer_ids)}, not {list(layer_ids)}")
    if target is not None and target.info.fingerprint != index.fingerprint:
        yield Fault(
            file,
            None,
            f"states of another target: {index.target} {index.fingerprint[:12]}, not "
            f"{target.info.name} {target.info.fingerprint[:12]}",
        )
    if target is not None and target.info.hidden_size != index.hidden_size:
        yield Fault(file, None, f"width {index.hidden_size}, not {target.info.hidden_size}")
    if not len(store):
        yield Fault(file, None, "no samples")


def shard_faults(store: FeatureStore, shard: int, has_hashes: bool) -> Iterator[Fault]:
    """Lengths, and rows that are empty or not finite; a fault of the file ends the look at it."""
    entry = store.index.shards[shard]
    path = store.folder / entry.file
    if has_hashes and path.exists() and hash_file(path) != entry.sha256:
        yield Fault(str(path), None, "its SHA-256 is not that of the index: it has changed")
        return
    try:
        store.check_shard(shard)
    except CheckpointError as error:
        yield Fault(str(path), None, str(error).removeprefix(str(path)).lstrip(": "))
        return
    for i in store.shard_samples(shard):
        try:
            sample = store.sample(i)
        except CheckpointError as error:
            yield sample_fault(store, i, str(error).split(": ", 1)[-1])
            continue
        what = _row_fault(sample.features, store.index.layer_ids)
        if what is not None:
            yield sample_fault(store, i, what)


def _row_fault(features: BFloat16[Tensor, "r f"], layer_ids: Sequence[int]) -> str | None:
    """The first row that no target gives."""
    if not features.numel():
        return None
    sizes = features.view(len(features), len(layer_ids), -1).abs().amax(-1)  # [r, layers]
    for is_bad, word in ((~sizes.isfinite(), "not finite"), (sizes == 0, "all zero")):
        if is_bad.any():
            row, layer = is_bad.nonzero()[0].tolist()
            return (
                f"row {row} of layer {layer_ids[layer]} is {word} "
                f"({int(is_bad.any(1).sum())} such rows)"
            )
    return None


def place_faults(store: FeatureStore, sound: Sequence[int]) -> Iterator[Fault]:
    """Samples whose states are not those of their tokens, by two looks that cost no pass."""
    step = max(1, len(sound) // _NUM_REFERENCE)
    reference = [i for i in sound[::step] if len(store.sample(i).features) > 1]
    if not reference:
        return
    early = min(range(len(store.layer_ids)), key=lambda j: store.layer_ids[j])
    part = slice(early * store.index.hidden_size, (early + 1) * store.index.hidden_size)
    # The first row is left out: it attends to nothing, and is much larger in many models.
    means = TokenMeans(*zip(*(_inner(store.sample(i), part) for i in reference), strict=True))
    own, firsts = set(reference), _usual_first_rows(store, reference)
    scores = {i: means.score(*_inner(store.sample(i), part), is_own=i in own) for i in sound}
    fits = sorted(score[0] for score in scores.values() if score is not None)
    least = _MIN_FIT_SHARE * fits[len(fits) // 2] if fits else 0.0
    for i in sound:
        sample, score = store.sample(i), scores[i]
        usual = firsts.get(int(sample.token_ids[0]))
        if usual is not None and len(sample.features) and _differ(sample.features[0], usual):
            yield sample_fault(
                store, i, "its first row is not the one its first token has elsewhere"
            )
        elif score is not None and score[1] > score[0]:
            yield sample_fault(
                store, i, "its rows fit the tokens beside them better: shifted by one?"
            )
        elif score is not None and score[0] < least:
            yield sample_fault(
                store, i, "its rows do not fit its tokens: swapped with another sample?"
            )


def _inner(sample: FeatureSample, part: slice) -> tuple[Tensor, Tensor]:
    return sample.token_ids[1:-1], sample.features[1:, part]


def _usual_first_rows(store: FeatureStore, reference: Sequence[int]) -> dict[int, Tensor]:
    """By first token, the middle of the first rows: they depend on that token alone."""
    rows: dict[int, list[Tensor]] = defaultdict(list)
    for i in reference:
        sample = store.sample(i)
        rows[int(sample.token_ids[0])].append(sample.features[0].float())
    return {
        token: torch.stack(found).median(0).values
        for token, found in rows.items()
        if len(found) > 2
    }


def _differ(row: Tensor, usual: Tensor) -> bool:
    return relative_difference(row.float()[None], usual[None], 1) > TOLERANCE


def relative_difference(a: Tensor, b: Tensor, num_layers: int) -> float:
    """The largest relative distance of a row's state of one layer."""
    if not a.numel():
        return 0.0
    a, b = (t.view(len(t), num_layers, -1) for t in (a, b))
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-6)).max())


def sample_fault(store: FeatureStore, i: int, what: str) -> Fault:
    """A fault of sample `i`, with the file it is in."""
    return Fault(store.file_of(i), store.answers[i].id, what)
