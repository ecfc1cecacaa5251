"""Tables of the rows: every figure, sortable, and copied with full precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from blockdraft.report.cells import Cells, Series
from blockdraft.report.document import escape
from blockdraft.report.load import Row
from blockdraft.report.row_faults import GAINS

#: What a cell is filled with: a figure of a row, or None.
Fill = Callable[[Row], Any]


@dataclass(frozen=True)
class Column:
    """One column: its head, its value in a row, and how that is written.

    `form` is a format specification, or "interval".
    """

    head: str
    fill: Fill
    form: str = ".2f"


def _key(head: str, key: str, form: str = ".2f") -> Column:
    return Column(head, lambda row: row.get(key), form)


def _inner(head: str, key: str, inner: str, form: str = ".1f") -> Column:
    return Column(head, lambda row: (row.get(key) or {}).get(inner), form)


def _size(head: str, key: str) -> Column:
    return Column(head, lambda row: row[key] / 2**20 if row.get(key) else None, ".0f")


#: Tables by title; the first columns of each are those that name the row.
TABLES: dict[str, Sequence[Column]] = {
    "Acceptance": (
        _key("prompts", "num_prompts", "d"),
        _key("cycles", "cycles", "d"),
        _key("τ", "tau"),
        _key("95 %", "tau_ci95", "interval"),
        _key("τ pooled", "tau_pooled"),
        _key("95 %", "tau_pooled_ci95", "interval"),
        _key("drafted", "drafted", "d"),
        _key("accepted", "accepted", "d"),
        _key("top-1 τ", "top1_tau"),
        _key("selector τ", "selector_tau"),
        _key("oracle τ", "oracle_tau"),
        _key("headroom recovered", "headroom_recovered", ".1%"),
    ),
    "Speed": (
        _key("tokens/s", "tokens_per_s", ".1f"),
        _key("decode tokens/s", "decode_tokens_per_s", ".1f"),
        _key("speed-up", "speedup"),
        _key("95 %", "speedup_ci95", "interval"),
        _key("median", "speedup_median"),
        _key("decoding", "decode_speedup"),
        _key("predicted", "predicted_speedup"),
        _inner("draft ms", "ms_per_cycle", "draft", ".2f"),
        _inner("select ms", "ms_per_cycle", "select", ".2f"),
        _inner("verify ms", "ms_per_cycle", "verify", ".2f"),
        _inner("other ms", "ms_per_cycle", "other", ".2f"),
        _key("mean batch", "mean_batch"),
    ),
    "Latency and memory": (
        _inner("first token ms p50", "ttft_ms", "p50"),
        _inner("p95", "ttft_ms", "p95"),
        _inner("p99", "ttft_ms", "p99"),
        _inner("between tokens ms p50", "itl_ms", "p50"),
        _inner("p95", "itl_ms", "p95"),
        _inner("p99", "itl_ms", "p99"),
        _size("peak MiB", "peak_memory_bytes"),
        _size("cache MiB", "cache_bytes"),
    ),
    "Text": (
        _key("answers", "num_answers", "d"),
        _key("tokens", "num_tokens", "d"),
        _key("errors", "num_errors", "d"),
        _key("differ from plain", "num_diverged", "d"),
        _key("share", "divergence_rate", ".1%"),
        _key("accuracy", "accuracy", ".1%"),
        _key("longest repeat", "mean_longest_repeat", ".1f"),
        _key("distinct 4-grams", "distinct_4grams", ".3f"),
    ),
}


def tables(cells: Cells) -> str:
    """All tables that have something in them."""
    return "".join(_table(cells, title, columns) for title, columns in TABLES.items())


def _table(cells: Cells, title: str, columns: Sequence[Column]) -> str:
    found = list(cells)
    used = [c for c in columns if any(c.fill(row) is not None for *_, row in found)]
    if not used:
        return ""
    heads = "".join(_head(name, is_left=i < 2) for i, name in enumerate(_names(cells)))
    heads += "".join(_head(column.head) for column in used)
    rows = "".join(
        f'<tr class="{series.key}" data-t="{view.temperature:g}" data-c="{view.concurrency}">'
        + _cell(task, task, "l")
        + _cell(series.label, series.label, "l")
        + _cell(view.concurrency, view.concurrency)
        + _cell(f"{view.temperature:g}", view.temperature)
        + "".join(_cell(shown(c.fill(row), c.form), _raw(c.fill(row))) for c in used)
        + "</tr>"
        for series, task, view, row in found
    )
    return _with_button(title, f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>")


def _with_button(title: str, inside: str) -> str:
    return f"""<section class="card table"><div class="head-row"><h3>{escape(title)}</h3>
<button class="copy">Copy as TSV</button></div>
<div class="scroll-x"><table class="sortable">{inside}</table></div></section>"""


def _names(cells: Cells) -> Sequence[str]:
    return ("task", "method", "at once", "T")


def _head(name: str, is_left: bool = False) -> str:
    kind = ' class="l"' if is_left else ""
    return f'<th{kind} scope="col"><button class="sort">{escape(name)}</button></th>'


def _cell(text: object, raw: object, kind: str = "num") -> str:
    return f'<td class="{kind}" data-v="{escape(raw)}">{escape(text)}</td>'


def _raw(value: Any) -> object:
    if value is None:
        return ""
    return "–".join(map(str, value)) if isinstance(value, list | tuple) else value


def shown(value: Any, form: str) -> str:
    """A figure as tables write it."""
    if value is None:
        return "–"
    if form == "interval":
        return f"{value[0]:.2f}–{value[1]:.2f}"
    return format(value, form)


def side_by_side(cells: Cells) -> str:
    """Cells that several runs measured, each run's figures beside each other; "" if none."""
    by_method: dict[str, list[Series]] = {}
    for series in cells.series:
        by_method.setdefault(series.method, []).append(series)
    rows = []
    for method, group in by_method.items():
        for task in cells.tasks:
            for view in cells.views:
                found = [cells.row(series, task, view) for series in group]
                if sum(row is not None for row in found) < 2:
                    continue
                by_run = dict(zip((s.run for s in group), found, strict=True))
                own = [by_run.get(run.name) for run in cells.runs]
                name = group[0].label.removesuffix(f" · {group[0].run}")
                start = (
                    _cell(task, task, "l")
                    + _cell(name, method, "l")
                    + _cell(view.concurrency, view.concurrency)
                    + _cell(f"{view.temperature:g}", view.temperature)
                )
                key = f'data-t="{view.temperature:g}" data-c="{view.concurrency}"'
                rows.append(f"<tr {key}>{start}{_compared(own)}</tr>")
    if not rows:
        return ""
    heads = "".join(_head(name, is_left=i < 2) for i, name in enumerate(_names(cells)))
    names = [run.name for run in cells.runs]
    for figure in ("τ", "tokens/s", "speed-up"):
        heads += "".join(_head(f"{figure} {name}") for name in names)
    heads += "".join(_head(f"tokens/s {name} / {names[0]}") for name in names[1:])
    inside = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return _with_button("Side by side", inside)


def pairs(cells: Cells) -> str:
    """Gains of methods over those before them on the same prompts; "" if none were measured."""
    rows = []
    for series, task, view, row in cells:
        for other, gain in (row.get("against") or {}).items():
            values = [(gain.get(n), gain.get(f"{n}_ci95")) for n in GAINS]
            rows.append(
                f'<tr class="{series.key}" data-t="{view.temperature:g}" '
                f'data-c="{view.concurrency}">'
                + _cell(task, task, "l")
                + _cell(series.label, series.label, "l")
                + _cell(PurePath(other).name or other, other, "l")
                + _cell(view.concurrency, view.concurrency)
                + _cell(f"{view.temperature:g}", view.temperature)
                + "".join(
                    _cell(shown(ratio, ".2f"), _raw(ratio))
                    + _cell(shown(span, "interval"), _raw(span))
                    for ratio, span in values
                )
                + "</tr>"
            )
    if not rows:
        return ""
    names = ("task", "method", "against", "at once", "T")
    heads = "".join(_head(name, is_left=i < 3) for i, name in enumerate(names))
    heads += "".join(map(_head, ("τ ratio", "95 %", "speed ratio", "95 %")))
    inside = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return _with_button("Methods against each other", inside)


def _compared(rows: Sequence[Row | None]) -> str:
    cells = []
    for key, form in (("tau", ".2f"), ("tokens_per_s", ".1f"), ("speedup", ".2f")):
        values = [None if row is None else row.get(key) for row in rows]
        cells += [_cell(shown(value, form), _raw(value)) for value in values]
    rates = [None if row is None else row.get("tokens_per_s") for row in rows]
    for rate in rates[1:]:
        ratio = rate / rates[0] if rate and rates[0] else None
        cells.append(_cell(shown(ratio, ".2f"), _raw(ratio)))
    return "".join(cells)
