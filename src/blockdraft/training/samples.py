"""Which answers are trained on, which are kept apart, and how they reach the stream."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blockdraft.data.anchors import anchor_range
from blockdraft.data.answers import Answer
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.errors import ConfigError
from blockdraft.training.recipe import DataRecipe


class Features(Protocol):
    """Shards, or features that are recomputed: both give samples by number."""

    @property
    def answers(self) -> Sequence[Answer]:
        """The answer of each sample."""
        ...

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Layers whose states stand side by side in a row."""
        ...

    def batch(self, indices: Sequence[int], /) -> list[FeatureSample]:
        """Several samples."""
        ...


@dataclass(frozen=True, kw_only=True)
class Split:
    """Samples by number, and what became of the rest.

    Attributes:
        training: trained on.
        heldout: figures are made from these.
        num_cut: of the training samples, those longer than `max_len`.
        num_looping, num_short: left out, for looping, and for having no room for a block.
        num_apart: answers to held-out prompts that the figures do not need.
    """

    training: tuple[int, ...]
    heldout: tuple[int, ...]
    num_cut: int
    num_looping: int
    num_short: int
    num_apart: int


def split_answers(answers: Sequence[Answer], recipe: DataRecipe) -> Split:
    """Divide the answers by their prompts.

    Raises: ConfigError if nothing is left to train on.
    """
    training: list[int] = []
    apart: list[int] = []
    left_out: Counter[str] = Counter()
    for i, answer in enumerate(answers):
        num_tokens = min(len(answer.all_ids), recipe.max_len)
        if not anchor_range(len(answer.prompt_ids), num_tokens):
            left_out["short"] += 1
        elif answer.is_looping and recipe.drop_looping:
            left_out["looping"] += 1
        else:
            place = prompt_place(answer.id)
            (apart if place < recipe.heldout_share else training).append(i)
    if not training:
        raise ConfigError(
            f"no answer of {len(answers)} is left to train on ({left_out['short']} have no room"
            f" for a block within max_len {recipe.max_len}, {left_out['looping']} loop,"
            f" {len(apart)} are held out); regenerate more answers"
        )
    heldout = sorted(apart, key=lambda i: (prompt_place(answers[i].id), answers[i].id))
    heldout = heldout[: recipe.num_heldout]
    return Split(
        training=tuple(training),
        heldout=tuple(heldout),
        num_cut=sum(len(answers[i].all_ids) > recipe.max_len for i in training),
        num_looping=left_out["looping"],
        num_short=left_out["short"],
        num_apart=len(apart) - len(heldout),
    )


def prompt_place(answer_id: str) -> float:
    """A place in [0, 1) for the prompt of an answer (`{prompt}@{variant}#{sample}`)."""
    prompt = answer_id.rsplit("@", 1)[0]
    digest = hashlib.sha256(prompt.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def draft_vocabulary(
    answers: Sequence[Answer], size: int, always: Sequence[int], never: Sequence[int], total: int
) -> tuple[list[int], float]:
    """The tokens that can be drafted, ascending, and the share of the answers' tokens they are.

    The most frequent ones; where the answers hold fewer, the lowest ids (bytes and short words in
    vocabularies of merges) fill up.

    Args:
        size: tokens wanted.
        always: tokens that are in whatever their number (ends of text).
        never: tokens that are not (the mask).
        total: tokens of the target.
    Raises: ConfigError if so many tokens do not exist.
    """
    if not len(set(always)) <= size <= total - len(set(never)):
        raise ConfigError(
            f"drafter.draft_vocab_size is {size}; it must be {len(set(always))} to"
            f" {total - len(set(never))}, or 0 for the whole vocabulary"
        )
    counts = Counter(token for answer in answers for token in answer.token_ids)
    ranked = sorted(set(range(total)) - set(never) - set(always), key=lambda i: (-counts[i], i))
    ids = sorted([*set(always), *ranked[: size - len(set(always))]])
    covered = sum(counts[i] for i in ids)
    return ids, covered / max(1, counts.total())


class TrainingSamples:
    """The stream's source: cut to `max_len`, with the columns of the drafter's own taps.

    Raises: ConfigError if a tap is not among the features.
    """

    def __init__(
        self, features: Features, layer_ids: Sequence[int], hidden_size: int, max_len: int
    ) -> None:
        missing = sorted(set(layer_ids) - set(features.layer_ids))
        if missing:
            raise ConfigError(
                f"the drafter taps target layers {missing}, which the features lack (they hold"
                f" {list(features.layer_ids)}); regenerate them or set drafter.target_layer_ids"
            )
        self._features, self._max_len, self._width = features, max_len, hidden_size
        places = [features.layer_ids.index(each) for each in layer_ids]
        self._places = None if tuple(layer_ids) == features.layer_ids else places

    def batch(self, indices: Sequence[int]) -> list[FeatureSample]:
        """The samples at these places."""
        return [self._sample(each) for each in self._features.batch(indices)]

    def _sample(self, found: FeatureSample) -> FeatureSample:
        rows = found.features[: self._max_len - 1]
        if self._places is not None:
            rows = rows.view(len(rows), -1, self._width)[:, self._places].flatten(1)
        return FeatureSample(found.token_ids[: self._max_len], found.prompt_len, rows, found.id)
