"""Random streams: every uniform is a function of (seed, stream key, position, purpose).

There is no generator state to carry, copy or roll back. A request draws the same numbers alone
and in a batch, in one block and token by token, and a rejected draft leaves no trace: whatever is
drawn again at a position is a function of that position alone.

Why a draw may be looked at again after a rejection: the uniforms of a position influence at most
the token committed there, and the cycle that rejects an earlier token commits nothing at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float64
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype="<u8")
_KEY_STEPS = np.arange(_ROUNDS, dtype="<u4").reshape(-1, 1, 1) * np.array(
    [[0x9E3779B9], [0xBB67AE85]], dtype="<u4"
)
_POSITION_BITS = 32


class Purpose(IntEnum):
    """What a uniform is for. Draws of two purposes are independent, also at one position."""

    DRAFT = 0  #: choosing a drafted token from q
    ACCEPT = 1  #: the coin that accepts or rejects it
    RESIDUAL = 2  #: the token after a rejection
    BONUS = 3  #: the token after a wholly accepted draft; with nothing drafted, a plain token


def philox4x32(
    counters: npt.NDArray[np.uint32], keys: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Philox4x32-10: ten rounds of a keyed bijection on 128-bit counters.

    Args:
        counters: four 32-bit words each, [4, n].
        keys: two 32-bit words each, [2, n] (or [2, 1] for one key).
    Returns: four random 32-bit words each, [4, n].
    Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
    """
    even, odd = counters[0::2], counters[1::2]  # words 0 and 2 are multiplied, 1 and 3 mixed in
    # Two buffers take turns: the low halves of one round are still read while the next multiplies.
    products = [np.empty(even.shape, dtype="<u8") for _ in range(2)]
    halves = [product.view("<u4").reshape(*even.shape, 2)[::-1] for product in products]
    for index, round_keys in enumerate(keys + _KEY_STEPS):
        product, half = products[index % 2], halves[index % 2]
        np.multiply(even, _MULTIPLIERS, out=product)
        even = half[..., 1] ^ odd
        even ^= round_keys
        odd = half[..., 0]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniforms(
    seeds: Sequence[int],
    stream_keys: Sequence[int],
    positions: npt.NDArray[np.int64],
    purpose: Purpose,
) -> Float64[Tensor, "b n"]:
    """Uniforms in [0, 1) for one purpose; see `uniforms_for`."""
    return uniforms_for(seeds, stream_keys, positions, (purpose,))[0]


def uniforms_for(
    seeds: Sequence[int],
    stream_keys: Sequence[int],
    positions: npt.NDArray[np.int64],
    purposes: Sequence[Purpose],
) -> Float64[Tensor, "p b n"]:
    """Uniforms in [0, 1), multiples of 2**-53, for several purposes at the same positions.

    One call for all the purposes of a cycle costs little more than a call for one.

    Args:
        seeds: seed of each request, 0..2**64-1: the Philox key.
        stream_keys: of each request, 0..2**64-1; separates requests with equal seeds.
        positions: token positions [b, n], 0..2**32-1; position of the token that is drawn.
        purposes: what the draws are for.
    Raises: ValueError if the shapes disagree or a position is out of range; OverflowError if a
        seed or stream key is.
    """
    check_positions(seeds, stream_keys, positions)
    shape = (len(purposes), *positions.shape)
    counters, keys = np.empty((4, *shape), dtype="<u4"), np.empty((2, *shape), dtype="<u4")
    counters[0] = positions
    counters[1] = np.array(purposes, dtype="<u4").reshape(-1, 1, 1)
    counters[2:] = _words(stream_keys)
    keys[:] = _words(seeds)
    words = philox4x32(counters.reshape(4, -1), keys.reshape(2, -1))
    return torch.from_numpy(_as_unit(words).reshape(shape))


def check_positions(
    seeds: Sequence[int], stream_keys: Sequence[int], positions: npt.NDArray[np.int64]
) -> None:
    """Raises: ValueError if the shapes disagree or a position is out of range."""
    num_rows = len(seeds)
    if positions.ndim != 2 or len(positions) != num_rows or len(stream_keys) != num_rows:
        raise ValueError(
            f"{num_rows} seeds, {len(stream_keys)} stream keys and positions of shape "
            f"{positions.shape}; give one seed, one stream key and one row of positions a request"
        )
    if np.any(positions >> _POSITION_BITS):
        raise ValueError(f"positions must be 0 to 2**{_POSITION_BITS} - 1; got {positions}")


def _words(numbers: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Low and high words of 64-bit numbers, [2, 1, b, 1]."""
    words: npt.NDArray[np.uint32] = np.array(numbers, dtype="<u8").view("<u4")
    return words.reshape(-1, 2).T.reshape(2, 1, -1, 1)


def _as_unit(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """The top 53 of a counter's first 64 random bits, as a fraction."""
    bits = (words[0].astype("<u8") << np.uint64(21)) | (words[1] >> np.uint32(11))
    fractions: npt.NDArray[np.float64] = bits * 2.0**-53
    return fractions
