"""BC-10, BC-11, BC-12: 50,000 one-block runs with the real random streams, as a loop uses them.

p and q of each position are fixed and independent of the other positions, so the law of every
position and of every pair is known. All numbers are seeded: a test passes always or never.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from blockdraft.sampling import Purpose, draw, probabilities, uniforms_for
from blockdraft.types import SamplingParams
from blockdraft.verification import accept_sampled

NUM_RUNS = 50_000
K = 3
FIRST = 17  # position of the first drafted token
PLAUSIBLE = 1e-3
IMPOSSIBLE = 1e-9


@dataclass(frozen=True)
class Setup:
    """p [k+1, v] of each position; q on its support [k, c]; what verification is told of q."""

    p: Tensor
    q_ids: Tensor
    q_probs: Tensor
    recorded: Tensor | None = None
    residual_purpose: Purpose = Purpose.RESIDUAL


def run(setup: Setup) -> tuple[Tensor, Tensor]:
    """One block a run, then plain tokens up to k + 1: tokens [n, k+1], accepted lengths [n]."""
    seeds, keys = [42] * NUM_RUNS, range(NUM_RUNS)
    positions = np.arange(FIRST, FIRST + K + 1)[None].repeat(NUM_RUNS, 0)
    u = dict(zip(Purpose, uniforms_for(seeds, list(keys), positions, list(Purpose)), strict=True))
    slots = [draw(setup.q_probs[j].expand(NUM_RUNS, -1), u[Purpose.DRAFT][:, j]) for j in range(K)]
    drafts = torch.stack([setup.q_ids[j][slot] for j, slot in enumerate(slots)], 1)
    recorded = setup.q_probs if setup.recorded is None else setup.recorded
    verdict = accept_sampled(
        drafts,
        [K] * NUM_RUNS,
        setup.p.expand(NUM_RUNS, -1, -1),
        setup.q_ids.expand(NUM_RUNS, -1, -1),
        recorded.expand(NUM_RUNS, -1, -1),
        u[Purpose.ACCEPT][:, :K],
        u[setup.residual_purpose][:, 0],
        u[Purpose.BONUS][:, 0],
    )
    accepted = torch.tensor(verdict.accepted_len)
    tokens = torch.stack(
        [draw(setup.p[j].expand(NUM_RUNS, -1), u[Purpose.BONUS][:, j]) for j in range(K + 1)], 1
    )
    tokens[:, :K] = torch.where(torch.arange(K) < accepted[:, None], drafts, tokens[:, :K])
    tokens[torch.arange(NUM_RUNS), accepted] = torch.tensor(verdict.next_ids)
    return tokens, accepted


def p_value(tokens: Tensor, law: Tensor) -> float:
    """Of Pearson's chi-square test; impossible tokens make it 0."""
    counts = torch.bincount(tokens, minlength=len(law)).double()
    if bool((counts[law == 0.0] > 0).any()):
        return 0.0
    counts, expected = counts[law > 0.0], law[law > 0.0].double() * len(tokens)
    if len(counts) == 1:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def p_values(setup: Setup) -> list[float]:
    """Of each position, each pair of neighbours, and the token after a rejection."""
    tokens, accepted = run(setup)
    p = setup.p.double()
    vocab = p.shape[-1]
    values = [p_value(tokens[:, j], p[j]) for j in range(K + 1)]
    for j in range(K):
        pairs = tokens[:, j] * vocab + tokens[:, j + 1]
        values.append(p_value(pairs, torch.outer(p[j], p[j + 1]).flatten()))
    for j in range(K):
        after = tokens[accepted == j, j + 1]
        values.append(p_value(after, p[j + 1]))
    return values


def random_setup(p_params: SamplingParams, q_params: SamplingParams, vocab: int = 8) -> Setup:
    generator = torch.Generator().manual_seed(3)
    p = probabilities(torch.randn(K + 1, vocab, generator=generator), [p_params] * (K + 1))
    q = probabilities(torch.randn(K, vocab, generator=generator), [q_params] * K)
    return Setup(p, torch.arange(vocab).expand(K, -1), q)


PLAIN = SamplingParams(temperature=1.0)
WARPED = SamplingParams(temperature=0.7, top_k=3, top_p=0.8)


def test_every_position_and_pair_has_the_law_of_the_target() -> None:
    """BC-10."""
    assert min(p_values(random_setup(PLAIN, PLAIN))) > PLAUSIBLE


def test_one_stream_for_drafts_and_residuals_is_caught() -> None:
    """BC-10, the mutation."""
    setup = replace(random_setup(PLAIN, PLAIN), residual_purpose=Purpose.DRAFT)
    assert min(p_values(setup)) < IMPOSSIBLE


def test_one_stream_for_coins_and_residuals_is_caught() -> None:
    setup = replace(random_setup(PLAIN, PLAIN), residual_purpose=Purpose.ACCEPT)
    assert min(p_values(setup)) < IMPOSSIBLE


def test_with_warping_the_q_really_drawn_from_passes() -> None:
    """BC-11: q after warping, on a support where it sums to 1."""
    setup = random_setup(WARPED, WARPED)
    torch.testing.assert_close(setup.q_probs.sum(-1), torch.ones(K))
    assert min(p_values(setup)) > PLAUSIBLE


def test_with_warping_the_q_before_warping_is_caught() -> None:
    """BC-11, the mutation."""
    setup = random_setup(WARPED, WARPED)
    unwarped = random_setup(WARPED, PLAIN).q_probs
    assert min(p_values(replace(setup, recorded=unwarped))) < IMPOSSIBLE


def test_an_argmax_proposal_with_a_one_hot_q_passes() -> None:
    """BC-12 (a)."""
    setup = random_setup(PLAIN, PLAIN)
    best = setup.q_probs.argmax(-1, keepdim=True)
    assert min(p_values(replace(setup, q_ids=best, q_probs=torch.ones(K, 1)))) > PLAUSIBLE


def test_a_q_on_16_candidates_passes() -> None:
    """BC-12 (b)."""
    setup = random_setup(PLAIN, PLAIN, vocab=24)
    probs, ids = setup.q_probs.topk(16)
    probs = probs / probs.sum(-1, keepdim=True)
    assert min(p_values(replace(setup, q_ids=ids, q_probs=probs))) > PLAUSIBLE


def test_a_drafter_that_is_the_target_is_always_accepted() -> None:
    """BC-12, BC-14: q = p."""
    setup = random_setup(PLAIN, PLAIN)
    setup = replace(setup, q_probs=setup.p[:K])
    assert bool((run(setup)[1] == K).all())
    assert min(p_values(setup)[: 2 * K + 1]) > PLAUSIBLE
