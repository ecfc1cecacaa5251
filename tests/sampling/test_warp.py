"""The warped law against a plain step-by-step computation in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.sampling import choose, nonfinite_rows, probabilities
from blockdraft.types import SamplingParams

INF = float("inf")
NAN = float("nan")


def params(**settings: float) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, **settings})  # type: ignore[arg-type]


ALL = [
    params(),
    params(temperature=0.3),
    params(temperature=3.0),
    params(top_k=1),
    params(top_k=5),
    params(top_k=10**6),
    params(top_p=0.5),
    params(top_p=0.95),
    params(top_p=0.999, temperature=2.0),
    params(top_p=1e-9),
    params(min_p=0.05),
    params(min_p=1.0),
    params(top_k=50, top_p=0.9, min_p=0.1, temperature=0.8),
    params(top_p=0.9, min_p=0.02),
    SamplingParams(),
]


def step_by_step(logits: Tensor, p: SamplingParams) -> Tensor:
    """The documented order, one step after another, with a full stable sort."""
    logits = logits.double()
    if p.is_greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    values, ids = torch.sort(logits / p.temperature, dim=-1, descending=True, stable=True)
    if p.top_k:
        values[:, p.top_k :] = -INF
    probs = torch.softmax(values, -1)
    if p.top_p < 1.0:
        mass_before = probs.cumsum(-1) - probs
        probs = torch.where(mass_before < p.top_p, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    probs = torch.where(probs >= p.min_p * probs.amax(-1, keepdim=True), probs, 0.0)
    probs = probs / probs.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, ids, probs)


@pytest.mark.parametrize("vocab", [5, 300, 9000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0, 40.0])
def test_equal_to_the_steps_one_after_another(vocab: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for p in ALL:
        logits = spread * torch.randn(3, vocab, generator=generator)
        probs = probabilities(logits, [p] * 3)
        expected = step_by_step(logits, p)
        assert probs.dtype == torch.float32
        torch.testing.assert_close(probs.double(), expected, rtol=2e-6, atol=1e-12, msg=str(p))
        representable = expected > 1e-37  # float32 knows nothing below
        assert torch.equal((probs > 0)[representable], (expected > 0)[representable]), p
        assert not probs[expected == 0.0].any(), p
        torch.testing.assert_close(probs.sum(-1), torch.ones(3), rtol=1e-6, atol=0.0)


def test_float64_logits_give_a_float64_law() -> None:
    logits = torch.randn(4, 9, dtype=torch.float64)
    for p in ALL:
        probs = probabilities(logits, [p] * 4)
        torch.testing.assert_close(probs, step_by_step(logits, p), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("flatness", [0.02, 1.0, 3.0, 4.0, 8.0])
def test_few_candidates_give_what_a_full_sort_gives(
    flatness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Top-p over a large vocabulary, settled early or late: the same numbers, bit for bit."""
    generator = torch.Generator().manual_seed(6)
    logits = flatness * torch.randn(4, 20_000, generator=generator)
    logits[:, ::3] = logits[:, ::3].bfloat16().float()  # with ties
    for p in (params(top_p=0.3), params(top_p=0.95), params(top_p=0.999, min_p=1e-4)):
        fast = probabilities(logits, [p] * 4)
        with monkeypatch.context() as patched:
            patched.setattr("blockdraft.sampling.warp._NUM_CANDIDATES", ())
            assert torch.equal(fast, probabilities(logits, [p] * 4))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """BC-22: mixed parameters in one batch give each row its own solo result, bit for bit."""
    logits = 4.0 * torch.randn(len(ALL), 40_000, generator=torch.Generator().manual_seed(8))
    together = probabilities(logits, ALL)
    same = probabilities(logits, [ALL[0]] * len(ALL))
    for row, p in enumerate(ALL):
        assert torch.equal(together[row : row + 1], probabilities(logits[row : row + 1], [p])), p
        assert torch.equal(same[row : row + 1], probabilities(logits[row : row + 1], [ALL[0]]))


def test_ties_at_an_edge_keep_the_lowest_ids() -> None:
    logits = torch.zeros(1, 10)
    logits[0, 7] = 1.0
    kept = probabilities(logits, [params(top_k=3)])[0].nonzero()[:, 0].tolist()
    assert kept == [0, 1, 7]
    even = probabilities(torch.zeros(1, 8), [params(top_p=0.5)])[0]
    assert even.tolist() == [0.25] * 4 + [0.0] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-6, 1e-12, 0.0])
def test_small_temperatures_say_what_greedy_says(dtype: torch.dtype, temperature: float) -> None:
    """BC-15: logits up to 1e4 either way, at temperatures above and below the greedy limit."""
    generator = torch.Generator().manual_seed(2)
    logits = ((torch.rand(6, 500, generator=generator) - 0.5) * 2e4).to(dtype)
    logits[:, 3] = 1e4
    logits[:, 4] = -1e4
    for extra in ({}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.1}):
        probs = probabilities(logits, [params(temperature=temperature, **extra)] * 6)
        assert not probs.isnan().any()
        best = logits == logits.amax(-1, keepdim=True)  # ties share the mass
        torch.testing.assert_close((probs * best).sum(-1), torch.ones(6))


@pytest.mark.parametrize("temperature", [-1.0, NAN, INF])
def test_an_impossible_temperature_is_an_error(temperature: float) -> None:
    """BC-15."""
    with pytest.raises(ConfigError, match="temperature"):
        SamplingParams(temperature=temperature)


def test_greedy_is_one_hot_at_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, -1.0], [3.0, 3.0, 3.0, 3.0]])
    assert probabilities(logits, [SamplingParams()] * 2).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert choose(logits).tolist() == [1, 0]


@pytest.mark.parametrize("p", ALL)
def test_impossible_tokens_stay_impossible(p: SamplingParams) -> None:
    logits = torch.randn(2, 50)
    logits[:, 10:] = -INF
    probs = probabilities(logits, [p] * 2)
    assert not probs[:, 10:].any()
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))


def test_the_logits_are_not_changed() -> None:
    logits = torch.randn(2, 600)
    before = logits.clone()
    for p in ALL:
        probabilities(logits, [p] * 2)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_nonfinite_row_leaves_its_neighbours_alone(bad: float) -> None:
    """BC-23: and it gives no token a probability that could be drawn."""
    logits = torch.randn(3, 5000)
    logits[1, 77] = bad
    for p in ALL[:-1]:
        probs = probabilities(logits, [p] * 3)
        clean = probabilities(logits[[0, 2]], [p] * 2)
        assert torch.equal(probs[[0, 2]], clean)
        assert not bool(probs[1].sum() > 0.0)


def test_rows_and_params_must_agree() -> None:
    with pytest.raises(ValueError, match="2 rows of logits and 1 params"):
        probabilities(torch.randn(2, 5), [SamplingParams()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nonfinite_rows_are_named(dtype: torch.dtype) -> None:
    """BC-23: NaN anywhere, +inf anywhere, -inf everywhere; -inf somewhere is a mask."""
    logits = torch.randn(7, 130).to(dtype)
    logits[1, 129] = NAN
    logits[2, 0] = INF
    logits[3] = -INF
    logits[4, :129] = -INF
    logits[5] = NAN
    logits[6, 3], logits[6, 4] = INF, -INF
    assert nonfinite_rows(logits) == [False, True, True, True, False, True, True]
