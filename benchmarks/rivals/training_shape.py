"""What both trainers of the throughput comparison are given: one drafter shape, one batch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

#: A DFlash 2 drafter for SmolLM2-135M: three layers of its width, its whole vocabulary.
WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 576, 1536, 9, 3, 64, 49152
LAYERS, BLOCK, TAPS, MASK = 3, 8, (1, 8, 14, 20, 27), 16
TARGET_LAYERS, THETA, EPS = 30, 1e5, 1e-5
CONV_GROUP, RANK, TOP_K, GAMMA = 16, 64, 16, 4.0


@dataclass(frozen=True)
class Sizes:
    """Sequences of a step, tokens of each (prompt included), blocks of each."""

    sequences: int
    length: int
    prompt_len: int
    anchors: int

    @property
    def num_slots(self) -> int:
        """Slots that are trained in a step: every block lies whole in its sequence."""
        return self.sequences * self.anchors * (BLOCK - 1)


def read_sizes(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Sizes]:
    """The sizes that a worker is told on its command line."""
    for name in ("sequences", "length", "prompt_len", "anchors"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, required=True)
    args = parser.parse_args()
    return args, Sizes(args.sequences, args.length, args.prompt_len, args.anchors)


def table(seed: int = 0) -> Tensor:
    """Embedding and head [v, m]: tied, as in the target."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, WIDTH, generator=generator) * 0.02


def sequences(sizes: Sizes, step: int) -> tuple[Tensor, Tensor]:
    """Token ids [n, t] and bfloat16 states [n, t, taps * m] of a step."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(20, VOCAB, (sizes.sequences, sizes.length), generator=generator)
    width = len(TAPS) * WIDTH
    states = torch.randn(sizes.sequences, sizes.length, width, generator=generator)
    return ids, states.bfloat16()
