"""What choosing costs: a block of one row, after a prompt of 256 tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.findings.asked import open_drafter
from benchmarks.findings.choosers import CHOOSERS
from benchmarks.harness import alternate, milliseconds
from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.engine.llm import LLM
from blockdraft.kernels.threads import torch_on_one_thread

CONTEXT_LEN = 256

#: Calls of which one measurement is the median.
REPEATS = 50


def measure_times(llm: LLM, place: str, counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Medians of alternating rounds, in ms.

    Returns: by the number of candidates, the drafter's pass, choosing as decoding does it (greedy,
        one row), and the scores of all edges; and, at the shipped number, each way to choose in
        PyTorch once the edges are scored.
    """
    drafters = {n: open_drafter(place, llm.target, selector_top_k=n) for n in counts}
    shipped = open_drafter(place, llm.target)
    assert isinstance(shipped, DFlash2Drafter)
    with torch.inference_mode(), torch_on_one_thread(llm.target.has_own_threads):
        context, batch = _place(shipped, llm)
        runs: dict[str, Callable[[], object]] = {}
        drafted = shipped.model.draft(context, batch)
        for n, drafter in drafters.items():
            assert isinstance(drafter, DFlash2Drafter)
            runs[f"pass {n}"] = _bound(shipped.model.draft, context, batch, n)
            runs[f"select {n}"] = _bound(drafter.select, drafted, batch)
            runs[f"edges {n}"] = _bound(drafter.lattice, drafted, batch.anchor_ids)
        scores = shipped.lattice(drafted, batch.anchor_ids).scores
        for name, choose in CHOOSERS.items():
            runs[f"choose {name}"] = _bound(choose, scores)
        times = alternate({name: milliseconds(run, REPEATS) for name, run in runs.items()}, rounds)
    return _by_kind(times)


def _bound(function: Callable[..., object], *args: object) -> Callable[[], object]:
    return lambda: function(*args)


def _place(drafter: DFlash2Drafter, llm: LLM) -> tuple[Any, DraftBatch]:
    """A context of made-up features: what they are changes no time."""
    generator = torch.Generator().manual_seed(0)
    size = drafter.model.config.feature_size
    features = torch.randn(1, CONTEXT_LEN, size, generator=generator).to(llm.target.info.dtype)
    context = drafter.new_context(1, CONTEXT_LEN + 1)
    context.append(features, 0, [0], [CONTEXT_LEN])
    batch = DraftBatch(
        anchor_ids=torch.tensor([1]),
        positions=(CONTEXT_LEN,),
        token_ids=[[1] * (CONTEXT_LEN + 1)],
        max_lens=(drafter.num_draft_tokens,),
        temperatures=(0.0,),
    )
    return context, batch


def _by_kind(times: dict[str, dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in times.items():
        kind, of = name.split()
        found.setdefault(f"{kind}_ms", {})[of] = value
    return found
