"""What if it was trained otherwise than its files say? The variant that drafts better tells.

Files can be wrong together. The weights cannot: a drafter that was trained on the states of one
layer earlier is accepted more often when it is given those.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.interop.new_drafter import find_mask_token
from blockdraft.layers.rope import RopeConfig
from blockdraft.targets.base import Target
from blockdraft.targets.load import source_info
from blockdraft.training.doctor.findings import Finding, fault, ok
from blockdraft.training.doctor.paths import TrainingPath
from blockdraft.training.doctor.replay import Decoded
from blockdraft.training.doctor.subject import Subject

#: How much better a variant must be, in tokens a block and as a share, to be believed.
_MARGIN, _SHARE = 0.1, 0.08


@dataclasses.dataclass(frozen=True)
class Variant:
    """Another way the drafter may have been trained."""

    check: str
    words: str
    config: DFlashConfig


def check_probes(
    subject: Subject, decoded: Decoded, target: Target, base: TrainingPath
) -> tuple[list[Finding], dict[str, float]]:
    """Tokens a block as the files say, and with each variant; those that are better are faults."""
    lengths = {"as it says": mean_len(decoded, target, base)}
    findings = []
    for variant in variants(subject):
        path = TrainingPath(subject, variant.config, base.tables)
        found = lengths[variant.words] = mean_len(decoded, target, path)
        if found > lengths["as it says"] * (1 + _SHARE) + _MARGIN:
            what = (
                f"{found:.2f} tokens a block with {variant.words}, {lengths['as it says']:.2f} as"
            )
            what += " the checkpoint says: it was trained so"
            findings.append(fault(variant.check, what, "correct config.json, or train anew"))
    if not findings:
        what = f"none of {len(lengths) - 1} other settings (taps, mask, RoPE, ...) drafts better"
        findings.append(ok("config", what))
    return findings, lengths


def variants(subject: Subject) -> Iterator[Variant]:
    """The usual mistakes that are possible here."""
    config = subject.config
    for step, word in ((-1, "earlier"), (1, "later")):
        taps = tuple(layer + step for layer in config.target_layer_ids)
        if all(0 <= layer < config.num_target_layers for layer in taps):
            yield _variant(config, "taps", f"taps one layer {word}", target_layer_ids=taps)
    if len(config.target_layer_ids) > 1:
        taps = config.target_layer_ids[::-1]
        yield _variant(config, "taps", "taps in reverse order", target_layer_ids=taps)
    flipped = tuple(not each for each in config.causal)
    word = "causal blocks" if flipped[0] else "blocks whose rows see each other"
    yield _variant(config, "window", word, causal=flipped)
    if any(window is not None for window in config.windows):
        yield _variant(config, "window", "no window", windows=(None,) * config.num_layers)
    yield from _rope_variants(subject)
    yield from _mask_variants(subject)


def _variant(config: DFlashConfig, check: str, words: str, **changes: object) -> Variant:
    return Variant(check, words, dataclasses.replace(config, **changes))  # type: ignore[arg-type]


def _rope_variants(subject: Subject) -> Iterator[Variant]:
    try:
        theirs = RopeConfig.from_dict(subject.source.config)
    except UnsupportedError:
        return
    if theirs != subject.config.rope:
        words = f"the target's RoPE (theta {theirs.theta:g})"
        yield _variant(subject.config, "rope", words, rope=theirs)


def _mask_variants(subject: Subject) -> Iterator[Variant]:
    source, config = subject.source, subject.config
    usual, drafted = {0, *source.end_ids}, subject.tensors.get(DRAFT_VOCAB_IDS)
    with contextlib.suppress(ConfigError):  # this target may have no free token
        usual.add(find_mask_token(source.codec(), source_info(source).vocab_size, source.end_ids))
    # No checkpoint can be written whose mask may be drafted.
    never = {config.mask_token_id, *([] if drafted is None else drafted.tolist())}
    for mask in sorted(usual - never):
        yield _variant(config, "mask", f"mask token {mask}", mask_token_id=mask)


@torch.no_grad()
def mean_len(decoded: Decoded, target: Target, path: TrainingPath) -> float:
    """Tokens a block on the training path: accepted drafts and the one that follows."""
    rows, _ = path.run(decoded.blocks(target, path.config.target_layer_ids))
    return 1 + float(rows.accepted_len.float().mean())
