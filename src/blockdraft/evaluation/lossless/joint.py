"""Law of several tokens at once, where top-k leaves so few that all texts can be written out.

Conditional laws could all be right and requests still depend on each other or on what was drafted
elsewhere; the joint law of the first n tokens leaves no room for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockdraft.evaluation.lossless.gtest import GTest, g_test
from blockdraft.evaluation.lossless.law import LawAfter, is_clear, reference_law
from blockdraft.targets.base import Target
from blockdraft.types import SamplingParams


@dataclass(frozen=True, kw_only=True)
class JointLaw:
    """Every text of the next tokens with its probability.

    Attributes:
        texts: token sequences; one that ends early is shorter.
        probs: of each, sum 1.
        is_clear: rounding cannot change which texts there are.
    """

    texts: tuple[tuple[int, ...], ...]
    probs: tuple[float, ...]
    is_clear: bool


def joint_law(
    target: Target,
    prefix: Sequence[int],
    params: SamplingParams,
    num_tokens: int,
    share: float,
) -> JointLaw:
    """Write out all texts of up to `num_tokens` tokens; top_k ** (num_tokens - 1) passes at most.

    Args:
        share: how far rounding moves logits (`rounding.edge_share`).
    Raises: ValueError if top_k is off: the texts would be too many.
    """
    if params.top_k < 1:
        raise ValueError("top_k is 0; the joint law is written out for a few tokens a place")
    laws = LawAfter(target, prefix, room=num_tokens)
    ends = set() if params.ignore_eos else set(target.info.end_ids)
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    texts: dict[tuple[int, ...], float] = {}
    clear = True
    for _ in range(num_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for text, mass in open_texts.items():
            logits = laws.logits(text)
            clear = clear and is_clear(logits, params, share)
            law = reference_law(logits, params)
            for token_id in law.nonzero()[:, 0].tolist():
                into = texts if token_id in ends else longer
                into[(*text, token_id)] = mass * float(law[token_id])
        open_texts = longer
    texts |= open_texts
    return JointLaw(texts=tuple(texts), probs=tuple(texts.values()), is_clear=clear)


def joint_test(law: JointLaw, sequences: Sequence[Sequence[int]]) -> GTest:
    """Test sampled texts against their joint law; a text the law does not have is impossible."""
    counter = Counter(tuple(sequence) for sequence in sequences)
    known = [float(counter.pop(text, 0)) for text in law.texts]
    probs = torch.tensor([*law.probs, 0.0], dtype=torch.float64)
    counts = torch.tensor([*known, float(counter.total())], dtype=torch.float64)
    return g_test(counts, probs / probs.sum())
