"""Whose states are these? Recorded hidden states against every layer of the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.data.feature_faults import TOLERANCE
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.targets.base import Target
from blockdraft.training.doctor.findings import Finding, fault, ok, warning
from blockdraft.training.doctor.subject import Subject

_REGENERATE = "regenerate the features, and train on those"


def check_taps(
    subject: Subject, store: FeatureStore, chosen: Sequence[int], target: Target
) -> list[Finding]:
    """All looks at recorded states.

    Args:
        chosen: samples that are computed anew, with every layer.
    """
    findings = list(_index_findings(subject, store))
    if any(finding.level == "fault" for finding in findings):
        return findings
    recorded = [store.sample(i).features.float() for i in chosen]
    layers = tuple(range(target.info.num_layers))
    again = OnlineFeatures([store.answers[i] for i in chosen], target, layers)
    own = [sample.features.float() for sample in again.batch(range(len(chosen)))]
    width = target.info.hidden_size
    for column, layer in enumerate(store.layer_ids):
        part = slice(column * width, (column + 1) * width)
        rows = torch.cat([each[:, part] for each in recorded])
        mine = [torch.cat([each[:, i * width : (i + 1) * width] for each in own]) for i in layers]
        findings.append(_column_finding(rows, mine, layer))
    return findings


def _index_findings(subject: Subject, store: FeatureStore) -> Iterator[Finding]:
    index, source = store.index, subject.source
    if index.fingerprint != source.fingerprint:
        what = f"recorded from {index.target} (weights {index.fingerprint[:12]}), not from"
        what += f" {source.name} ({source.fingerprint[:12]})"
        yield fault("features", what, _REGENERATE)
        return
    missing = [i for i in subject.config.target_layer_ids if i not in store.layer_ids]
    if missing:
        what = f"the drafter taps layers {missing}, which the features lack (they hold"
        what += f" {list(store.layer_ids)}): it was not trained on them"
        yield warning("taps", what, "give the features that it was trained on")


def _column_finding(rows: Tensor, own: Sequence[Tensor], layer: int) -> Finding:
    """Is a column of the recorded states that of its layer, and if not, which is it?"""
    name = f"recorded states of layer {layer}"
    bad = (~rows.isfinite()).any(-1) | (rows == 0).all(-1)
    if bool(bad.any()):
        what = f"{name}: {int(bad.sum())} of {len(rows)} rows are all zero or not finite"
        return fault("features", what, _REGENERATE)
    apart = [distance(rows, each) for each in own]
    best = min(range(len(own)), key=apart.__getitem__)
    if apart[layer] <= TOLERANCE:
        return ok("taps", f"{name} are the target's own ({apart[layer]:.1%} apart)")
    if apart[best] <= TOLERANCE:
        what = f"the features say layer {layer}, but these are layer {best}'s ({apart[best]:.1%}"
        what += f" apart, against {apart[layer]:.0%})"
        return fault("taps", what, "make the label and the drafter's target_layer_ids agree")
    # Samples stand one after another: at their seams alone the neighbour is another one's.
    for rows_apart, word in (
        (distance(rows[:-1], own[layer][1:]), "after"),
        (distance(rows[1:], own[layer][:-1]), "before"),
    ):
        if rows_apart <= TOLERANCE:
            what = f"{name} are shifted by one: row j holds the state of the token {word} token j"
            return fault("features", what, _REGENERATE)
    unit = [torch.nn.functional.normalize(each, dim=-1) for each in (rows, own[-1])]
    what = f"{name} are no layer's of this target (nearest: layer {best}, {apart[best]:.0%} apart)"
    if layer == len(own) - 1 and float((unit[0] * unit[1]).sum(-1).median()) > 0.5:
        what += "; is the final norm in them? States are taken before it"
    return fault("features", what, _REGENERATE)


def distance(a: Float[Tensor, "n m"], b: Float[Tensor, "n m"]) -> float:
    """Median relative distance of rows: a few odd rows do not hide what the rest is."""
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-6)).median())
