"""Reported log-probabilities: of the raw logits, in float32, best first."""

from __future__ import annotations

import pytest
import torch

from blockdraft.sampling import TokenLogprob, token_logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_n", [0, 1, 5, 300])
def test_equal_to_log_softmax(dtype: torch.dtype, top_n: int) -> None:
    logits = 5.0 * torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    logits = logits.to(dtype)
    ids = torch.tensor([0, 299, 17, int(logits[3].argmax())])
    expected = torch.log_softmax(logits.double(), -1)
    for row, reported in enumerate(token_logprobs(logits, ids, top_n)):
        assert reported.token_id == int(ids[row])
        assert reported.logprob == pytest.approx(float(expected[row, ids[row]]), abs=1e-5)
        values, best = torch.sort(expected[row], descending=True, stable=True)
        assert [token_id for token_id, _ in reported.top] == best[:top_n].tolist()
        top = torch.tensor([logprob for _, logprob in reported.top], dtype=torch.float64)
        torch.testing.assert_close(top, values[:top_n], rtol=0.0, atol=1e-5)
        better = logits[row] > logits[row, ids[row]]
        assert reported.rank == int(better.sum()) + 1


def test_the_parts_of_a_report() -> None:
    logits = torch.tensor([[0.0, 0.0, -float("inf")]])
    (reported,) = token_logprobs(logits, torch.tensor([1]), top_n=2)
    half = reported.logprob
    assert half == pytest.approx(-0.6931472)
    assert reported == TokenLogprob(token_id=1, logprob=half, rank=1, top=((0, half), (1, half)))


def test_large_logits_stay_finite() -> None:
    (reported,) = token_logprobs(torch.tensor([[1e4, -1e4]]), torch.tensor([1]), top_n=2)
    assert reported.logprob == -2e4
    assert reported.top == ((0, 0.0), (1, -2e4))


@pytest.mark.parametrize("top_n", [-1, 11])
def test_an_impossible_number_is_an_error(top_n: int) -> None:
    with pytest.raises(ValueError, match="0 to 10"):
        token_logprobs(torch.randn(1, 10), torch.tensor([0]), top_n)
