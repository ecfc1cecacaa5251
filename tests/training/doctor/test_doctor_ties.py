"""A few near ties are no fault, however few blocks there are; more of them are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from blockdraft.training.doctor.compare import compare_loop
from blockdraft.types import Cycle


@pytest.mark.parametrize(
    ("dtype", "num_apart", "level"),
    [
        (torch.bfloat16, 0, "ok"),
        (torch.bfloat16, 2, "ok"),
        (torch.bfloat16, 3, "fault"),
        (torch.float32, 1, "fault"),
    ],
)
def test_blocks_that_end_elsewhere(dtype: torch.dtype, num_apart: int, level: str) -> None:
    trained = SimpleNamespace(accepted_len=torch.full((10,), 2))
    cycles = [Cycle(7, 2 - 2 * (i < num_apart), (1,)) for i in range(10)]
    finding, figures = compare_loop(cast(Any, trained), [cycles], dtype)
    assert finding.level == level
    assert figures["cycles_agree"] == pytest.approx(1 - num_apart / 10)
