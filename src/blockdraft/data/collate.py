"""Samples and their anchors as one batch of packed blocks.

Context rows of all samples stand one after another, and so do blocks. A block belongs to one
sample, and what it sees is decided by token position, so no block ever crosses a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from blockdraft.data.feature_shards import FeatureSample
from blockdraft.layers.block_layout import block_positions


@dataclass(frozen=True)
class BlockBatch:
    """What a drafter is trained on in one step.

    Attributes:
        features: context rows of all samples, the first `context_lens[i]` positions of sample i.
        context_lens: context rows of each sample.
        block_counts: blocks of each sample.
        anchors: position of each block's first row in its sample.
        token_ids: committed token at each block row's position; -1 beyond the sample's end.
        is_valid: rows that predict a token of the answer; never row 0.
        sample_ids: for messages.
        teacher: the target's last hidden state (before the final norm) that each row's token was
            chosen from; None where losses do not look at the target's distribution.
    """

    features: Float[Tensor, "s f"]
    context_lens: tuple[int, ...]
    block_counts: tuple[int, ...]
    anchors: Int64[Tensor, "n"]
    token_ids: Int64[Tensor, "n t"]
    is_valid: Bool[Tensor, "n t"]
    sample_ids: tuple[str, ...]
    teacher: Float[Tensor, "n t m"] | None = None

    @property
    def num_slots(self) -> int:
        """Rows that are trained."""
        return int(self.is_valid.sum())

    def to(self, device: torch.device | str) -> BlockBatch:
        """The same batch on a device."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) for k, v in values.items() if _is_tensor(v)}
        return replace(self, **moved)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def collate(
    samples: Sequence[FeatureSample],
    anchors: Sequence[Int64[Tensor, "a"]],
    block_size: int,
    teacher_width: int = 0,
) -> BlockBatch:
    """Pack samples; those without an anchor are left out.

    Args:
        teacher_width: last columns of the features that are the teacher's, not the drafter's.
    Raises: ValueError if no sample has an anchor, or features are missing before one.
    """
    pairs = [(s, a) for s, a in zip(samples, anchors, strict=True) if len(a)]
    if not pairs:
        raise ValueError("no sample of this batch has room for a block")
    lens = [int(a[-1]) for _, a in pairs]
    for (sample, _), length in zip(pairs, lens, strict=True):
        if len(sample.features) < length:
            raise ValueError(f"{sample.id} has {len(sample.features)} feature rows of {length}")
    tokens, valid = zip(*(_block_tokens(s, a, block_size) for s, a in pairs), strict=True)
    width = pairs[0][0].features.shape[1] - teacher_width
    return BlockBatch(
        features=torch.cat([s.features[:n, :width] for (s, _), n in zip(pairs, lens, strict=True)]),
        context_lens=tuple(lens),
        block_counts=tuple(len(a) for _, a in pairs),
        anchors=torch.cat([a for _, a in pairs]),
        token_ids=torch.cat(tokens),
        is_valid=torch.cat(valid),
        sample_ids=tuple(s.id for s, _ in pairs),
        teacher=_teacher(pairs, block_size, width) if teacher_width else None,
    )


def _teacher(
    pairs: Sequence[tuple[FeatureSample, Int64[Tensor, "a"]]], block_size: int, first: int
) -> Float[Tensor, "n t m"]:
    """The token at a position was chosen from the state of the position before it."""
    rows = []
    for sample, anchors in pairs:
        before = block_positions(anchors, block_size) - 1
        rows.append(sample.features[before.clamp(0, len(sample.features) - 1), first:])
    return torch.cat(rows)


def _block_tokens(
    sample: FeatureSample, anchors: Int64[Tensor, "n"], block_size: int
) -> tuple[Int64[Tensor, "n t"], Bool[Tensor, "n t"]]:
    positions = block_positions(anchors, block_size)
    n = len(sample.token_ids)
    inside = positions < n
    tokens = sample.token_ids[positions.clamp(max=n - 1)].masked_fill(~inside, -1)
    valid = inside & (positions >= sample.prompt_len)
    valid[:, 0] = False
    return tokens, valid
