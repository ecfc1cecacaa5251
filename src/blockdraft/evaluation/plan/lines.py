"""The plan in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockdraft.evaluation.plan.model import Gain, best_of
from blockdraft.evaluation.plan.plan import Plan


def lines(plan: Plan) -> Iterator[str]:
    """Machine, cost of passes, break-even lines, and what pays for each acceptance."""
    yield from _machine(plan)
    yield ""
    yield from _passes(plan)
    yield ""
    yield from _break_even(plan)
    labels = dict.fromkeys(gain.acceptance for gain in plan.gains)
    for label in labels:
        yield ""
        yield from _gains(label, [gain for gain in plan.gains if gain.acceptance == label])


def _machine(plan: Plan) -> Iterator[str]:
    top = plan.ceilings
    yield f"machine: reads {top.bandwidth_gb_s:.1f} GB/s, multiplies {top.gflop_s:.0f} GFLOP/s"
    if top.read_ms is not None and top.balance_rows is not None:
        one = plan.curves[0].verify_ms[plan.curves[0].rows.index(1)]
        yield (
            f"reading the weights takes {top.read_ms:.2f} ms; a pass of one row {one:.2f} ms. "
            f"Arithmetic takes as long as reading at {top.balance_rows:.0f} rows"
        )


def _passes(plan: Plan) -> Iterator[str]:
    yield "pass over n rows, ms (in passes of one row)"
    rows = plan.curves[0].rows
    table = [["cached tokens", *(str(n) for n in rows), "draft"]]
    for curve in plan.curves:
        one = curve.verify_ms[rows.index(1)]
        cells = [f"{ms:.2f} ({ms / one:.2f})" for ms in curve.verify_ms]
        drafted = "-" if curve.draft_ms is None else f"{curve.draft_ms:.2f}"
        table.append([str(curve.context), *cells, drafted])
    yield from _aligned(table)


def _break_even(plan: Plan) -> Iterator[str]:
    free = "" if plan.num_draft_tokens is not None else ", if drafting were free"
    yield f"tau above which drafting pays, by drafted tokens{free}"
    widths = sorted({cost.num_draft_tokens for cost in plan.costs})
    table = [["at once", *(str(width) for width in widths)]]
    for concurrency in dict.fromkeys(cost.concurrency for cost in plan.costs):
        at = {c.num_draft_tokens: c for c in plan.costs if c.concurrency == concurrency}
        taus = [
            (c.verify_ms + c.other_ms + (c.draft_ms or 0.0)) / c.plain_ms
            for c in (at[width] for width in widths)
        ]
        cells = [
            f"{tau:.2f}" if tau <= width + 1 else "never"
            for tau, width in zip(taus, widths, strict=True)
        ]
        table.append([str(concurrency), *cells])
    yield from _aligned(table)


def _gains(label: str, found: Sequence[Gain]) -> Iterator[str]:
    yield f"{label}: best number of drafted tokens"
    table = [["at once", "drafted", "tau", "break-even", "speed-up", "ms/token", "tokens/s"]]
    loads = list(dict.fromkeys(gain.costs.concurrency for gain in found))
    for concurrency in loads:
        best = best_of(found, concurrency)
        assert best is not None
        table.append([str(concurrency), *(_drafted(best) if best.speedup > 1.0 else _plain(best))])
    yield from _aligned(table)


def _drafted(best: Gain) -> list[str]:
    return [
        str(best.costs.num_draft_tokens),
        f"{best.tau:.2f}",
        f"{best.break_even_tau:.2f}",
        f"{best.speedup:.2f}",
        f"{best.ms_per_token:.2f}",
        f"{best.tokens_per_s:.0f}",
    ]


def _plain(best: Gain) -> list[str]:
    """No block size pays: the figures of plain decoding, and the tau that the best one needs."""
    token_ms = best.costs.plain_ms / best.costs.concurrency
    even = f"{best.break_even_tau:.2f}"
    return ["none pays", "1.00", even, "1.00", f"{token_ms:.2f}", f"{1e3 / token_ms:.0f}"]


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
