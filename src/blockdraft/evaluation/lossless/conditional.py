"""Law of the next token after every text that enough continuations share, against the target's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from blockdraft.evaluation.lossless.gtest import GTest, g_test
from blockdraft.evaluation.lossless.law import LawAfter, is_clear, reference_law
from blockdraft.targets.base import Target
from blockdraft.types import SamplingParams

#: Texts that fewer continuations share are not tested: they would see gross errors only.
MIN_VISITS = 100

#: Most texts tested after one context, those with most continuations first.
MAX_TEXTS = 16


@dataclass(frozen=True)
class PrefixTest:
    """The tokens counted after `suffix` (generated tokens behind a context), tested."""

    suffix: tuple[int, ...]
    result: GTest


def conditional_tests(
    target: Target,
    prefix: Sequence[int],
    sequences: Sequence[Sequence[int]],
    params: SamplingParams,
    share: float,
) -> list[PrefixTest]:
    """Test the next token's law after the prefix and after each frequent beginning.

    Given how many requests reached a text, the tokens behind it are independent draws from the
    target's law, if nothing is wrong. Which texts are tested depends on those numbers alone, so
    the tests are valid together, and independent.

    Args:
        sequences: sampled continuations of the prefix; an end may cut one short.
        params: they were sampled with.
        share: how far rounding moves logits (`rounding.edge_share`); texts at which that may
            change the set of possible tokens are left out.
    """
    after: dict[tuple[int, ...], Counter[int]] = {}
    for sequence in sequences:
        for i, token_id in enumerate(sequence):
            after.setdefault(tuple(sequence[:i]), Counter())[token_id] += 1
    visits = {suffix: counts.total() for suffix, counts in after.items()}
    tested = sorted((-n, suffix) for suffix, n in visits.items() if n >= MIN_VISITS)[:MAX_TEXTS]
    laws = LawAfter(target, prefix, room=max((len(suffix) for _, suffix in tested), default=0))
    return [
        PrefixTest(suffix, g_test(_counts(after[suffix], law), law))
        for _, suffix in tested
        for logits in [laws.logits(suffix)]
        if is_clear(logits, params, share)
        for law in [reference_law(logits, params)]
    ]


def _counts(counter: Counter[int], law: Float64[Tensor, "v"]) -> Float64[Tensor, "v"]:
    counts = torch.zeros_like(law)
    counts[list(counter)] = torch.tensor(list(counter.values()), dtype=law.dtype)
    return counts
