"""What if it was trained otherwise than its files say? The variant that drafts better tells.

Files can be wrong together. The weights cannot: a drafter that was trained on the states of one
layer earlier finds the true tokens likelier when it is given those.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

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

#: How much likelier the true tokens must be under a variant, in nats, and by how many standard
#: deviations over the blocks. Acceptance alone is too coarse: neighbouring layers are much alike.
_MARGIN, _DEVIATIONS = 0.02, 4.0


@dataclasses.dataclass(frozen=True)
class Variant:
    """Another way the drafter may have been trained."""

    check: str
    words: str
    config: DFlashConfig


@dataclasses.dataclass(frozen=True)
class Scores:
    """What blocks are worth under some settings, on the training path.

    Attributes:
        accepted_len: drafts of each block that would be accepted.
        logprob: mean log-probability of the true tokens in each block.
    """

    accepted_len: Int64[Tensor, "n"]
    logprob: Float[Tensor, "n"]

    @property
    def mean_len(self) -> float:
        """Tokens a block: accepted drafts and the one that follows."""
        return 1 + float(self.accepted_len.float().mean())

    def gain(self, other: Scores) -> tuple[float, float]:
        """How much likelier the true tokens are than under `other`, in nats, and in deviations."""
        gains = (self.logprob - other.logprob).double()
        mean = float(gains.mean())
        return mean, mean / max(1e-9, float(gains.std()) / len(gains) ** 0.5)


def check_probes(
    subject: Subject, decoded: Decoded, target: Target, base: TrainingPath
) -> tuple[list[Finding], dict[str, dict[str, float]]]:
    """Scores as the files say, and with each variant; those that are better are faults."""
    own = scores(decoded, target, base)
    figures = {"as it says": _figures(own, own)}
    findings = []
    for variant in variants(subject):
        found = scores(decoded, target, TrainingPath(subject, variant.config, base.tables))
        figures[variant.words] = _figures(found, own)
        nats, deviations = found.gain(own)
        if nats > _MARGIN and deviations > _DEVIATIONS:
            what = f"with {variant.words}, true tokens are {nats:.2f} nats likelier than as the"
            what += f" checkpoint says ({deviations:.0f} deviations), and"
            what += (
                f" {found.mean_len:.2f} in place of {own.mean_len:.2f} tokens a block are right:"
            )
            findings.append(
                fault(
                    variant.check, f"{what} it was trained so", "correct config.json, or train anew"
                )
            )
    if not findings:
        what = f"none of {len(figures) - 1} other settings (taps, mask, RoPE, ...) fits better"
        findings.append(ok("config", what))
    return findings, figures


def _figures(found: Scores, own: Scores) -> dict[str, float]:
    return {"length": found.mean_len, "nats_gained": found.gain(own)[0]}


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
def scores(decoded: Decoded, target: Target, path: TrainingPath) -> Scores:
    """The blocks that were decoded, under the path's settings."""
    rows, _ = path.run(decoded.blocks(target, path.config.target_layer_ids))
    assert rows.logprob is not None
    return Scores(rows.accepted_len, rows.logprob)
