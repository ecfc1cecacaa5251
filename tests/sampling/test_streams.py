"""Random streams: the published vectors, and that draws depend on their own key only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blockdraft.sampling.streams import Purpose, philox4x32, uniforms, uniforms_for

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint32)


def philox_by_the_book(counter: list[int], key: list[int]) -> list[int]:
    """The round function of the paper in plain integers."""
    mask = 2**32 - 1
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * counter[0], 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: str, key: str, result: str) -> None:
    np.testing.assert_array_equal(philox4x32(words(counter), words(key)), words(result))


def test_philox_is_the_same_for_many_counters_at_once() -> None:
    rng = np.random.default_rng(0)
    counters = rng.integers(0, 2**32, (4, 50), dtype=np.uint32)
    keys = rng.integers(0, 2**32, (2, 50), dtype=np.uint32)
    expected = [
        philox_by_the_book([int(w) for w in counters[:, i]], [int(w) for w in keys[:, i]])
        for i in range(50)
    ]
    np.testing.assert_array_equal(philox4x32(counters, keys).T, np.array(expected))


def test_a_uniform_is_the_documented_function_of_its_key() -> None:
    seed, stream_key, position = 2**63 + 5, 2**40 + 9, 1234
    u = uniforms([seed], [stream_key], np.array([[position]]), Purpose.RESIDUAL)
    counter = [position, int(Purpose.RESIDUAL), stream_key % 2**32, stream_key >> 32]
    first, second, *_ = philox_by_the_book(counter, [seed % 2**32, seed >> 32])
    assert float(u) == ((first << 32 | second) >> 11) / 2**53


def test_draws_do_not_depend_on_neighbours_or_on_the_call() -> None:
    """BC-19: alone, in a batch, in one call for several purposes, at overlapping positions."""
    positions = np.arange(100, 108)[None] + np.array([[0], [3], [50]])
    batch = uniforms_for([42, 1, 2], [0, 7, 0], positions, list(Purpose))
    alone = uniforms_for([42], [0], positions[:1], list(Purpose))
    assert torch.equal(batch[:, :1], alone)
    for index, purpose in enumerate(Purpose):
        assert torch.equal(uniforms([42], [0], positions[:1], purpose), alone[index])
    later = uniforms([42], [0], positions[:1, 3:], Purpose.DRAFT)
    assert torch.equal(later, alone[0, :, 3:])


def test_everything_in_the_key_matters() -> None:
    base = uniforms([1], [2], np.array([[3]]), Purpose.DRAFT)
    others = [
        uniforms([2], [2], np.array([[3]]), Purpose.DRAFT),
        uniforms([1 + 2**32], [2], np.array([[3]]), Purpose.DRAFT),
        uniforms([1], [3], np.array([[3]]), Purpose.DRAFT),
        uniforms([1], [2 + 2**32], np.array([[3]]), Purpose.DRAFT),
        uniforms([1], [2], np.array([[4]]), Purpose.DRAFT),
        *(uniforms([1], [2], np.array([[3]]), p) for p in Purpose if p != Purpose.DRAFT),
    ]
    values = {float(u) for u in [base, *others]}
    assert len(values) == 1 + len(others)


def test_uniforms_are_53_bits_in_the_half_open_interval() -> None:
    u = uniforms(range(200), [0] * 200, np.arange(500)[None].repeat(200, 0), Purpose.ACCEPT)
    assert u.dtype == torch.float64
    assert float(u.min()) >= 0.0
    assert float(u.max()) < 1.0
    scaled = u * 2.0**53
    assert torch.equal(scaled, scaled.round())
    assert bool((scaled.long() % 2 == 1).any())  # the last bit is used


def test_uniforms_are_uniform_and_purposes_uncorrelated() -> None:
    positions = np.arange(50_000)[None]
    u = uniforms_for([9], [0], positions, list(Purpose))[:, 0]
    counts = torch.stack([torch.histc(row.float(), 20, 0.0, 1.0) for row in u])
    statistic = ((counts - 2500.0) ** 2 / 2500.0).sum(-1)  # chi-square, 19 degrees of freedom
    assert float(statistic.max()) < 43.8  # exceeded with probability 0.001
    correlations = torch.corrcoef(u) - torch.eye(4, dtype=torch.float64)
    assert float(correlations.abs().max()) < 0.02  # 4.5 standard deviations


def test_no_positions_give_no_draws() -> None:
    assert uniforms([1, 2], [0, 0], np.zeros((2, 0), np.int64), Purpose.DRAFT).shape == (2, 0)


@pytest.mark.parametrize("position", [-1, 2**32])
def test_a_position_out_of_range_is_an_error(position: int) -> None:
    with pytest.raises(ValueError, match="positions"):
        uniforms([1], [0], np.array([[position]]), Purpose.DRAFT)


def test_disagreeing_shapes_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 seeds, 1 stream keys"):
        uniforms([1, 2], [0], np.array([[1]]), Purpose.DRAFT)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_an_error(seed: int) -> None:
    with pytest.raises(OverflowError):
        uniforms([seed], [0], np.array([[1]]), Purpose.DRAFT)
