"""Which charts a result gives, and what a reader should know of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft.report.cells import Cells, Series, View
from blockdraft.report.charts.bars import Bar, bar_chart
from blockdraft.report.charts.lines import Line, line_chart
from blockdraft.report.charts.scatter import Point, scatter_chart
from blockdraft.report.charts.stacks import Stack, stack_chart
from blockdraft.report.load import Row
from blockdraft.report.svg import Chart

#: Candidates that the oracle chooses among, as recall is reported.
_ORACLE = "16"

_NO_DRAFTING = "No drafting method was measured."
_ONE_LOAD = "Only one number of prompts at once was measured; evaluate with --concurrency 1,4,16."


@dataclass(frozen=True)
class Figure:
    """A chart, and for which choice of the reader it is shown; None: for every one."""

    chart: Chart
    temperature: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Section:
    """Figures of one question; `empty` is said where there are none.

    A wide section has several charts beside each other, and takes a whole row of the page.
    """

    title: str
    intro: str
    empty: str
    figures: Sequence[Figure]
    is_wide: bool = False


def sections(cells: Cells) -> list[Section]:
    """Every section, in the order of the page."""
    return [*_of_tasks(cells), *_of_clock(cells), *_of_loads(cells)]


def _of_tasks(cells: Cells) -> Iterator[Section]:
    yield Section(
        "Speed-up by task",
        "Times plain decoding in the same run, prompts included, with 95 % intervals. "
        "Left of the line at 1 drafting does not pay.",
        "No drafting method was measured beside plain decoding.",
        list(_of_views(cells, _speedup)),
    )
    yield Section(
        "Tokens a cycle",
        "Acceptance length τ: tokens that one pass of the target commits, the correction or "
        "bonus included; mean over requests with 95 % intervals. The oracle's and top-1's are of "
        "the cycles that a block drafter drafted: with +ngram those that were not looked up.",
        _NO_DRAFTING,
        list(_of_views(cells, _tau)),
    )
    yield Section(
        "Acceptance by position",
        "Of the cycles that came to a position, the share that accepted it: how a block decays "
        "towards its end. Dashed, the oracle: the right token is among the 16 best candidates, "
        "where a block drafter drafted.",
        _NO_DRAFTING,
        list(_of_views(cells, _by_position)),
        is_wide=True,
    )


def _of_clock(cells: Cells) -> Iterator[Section]:
    yield Section(
        "Where a cycle's time goes",
        "Milliseconds of one cycle by part. Behind the bar their sum, and what a token costs: "
        "the sum over τ.",
        "These results hold no clock of our own cycles (servers do not tell).",
        list(_of_views(cells, _costs)),
    )
    yield Section(
        "Predicted against measured",
        "Speed-up of decoding as T_plain · τ / (T_draft + T_verify + T_other) predicts it from "
        "the measured parts, beside what the clock says. Points far off the line mean that the "
        "parts do not tell the whole story.",
        "These results hold no predictions.",
        list(_prediction(cells)),
    )


def _of_loads(cells: Cells) -> Iterator[Section]:
    yield Section(
        "Throughput against load",
        "Tokens per second of all prompts together, prompts' passes included.",
        _ONE_LOAD,
        list(_loads(cells, _throughput)),
        is_wide=True,
    )
    yield Section(
        "Speed-up against load",
        "More prompts at once fill the pass of the target, and drafting has less to gain: below "
        "the line at 1 plain decoding is faster.",
        _ONE_LOAD,
        list(_loads(cells, _gain)),
        is_wide=True,
    )


def slug(view: View) -> str:
    """The part of a file name that tells a view."""
    return f"t{view.temperature:g}_c{view.concurrency}"


def _of_views(cells: Cells, charts: Callable[[Cells, View], Iterator[Chart]]) -> Iterator[Figure]:
    for view in cells.views:
        for chart in charts(cells, view):
            yield Figure(chart, view.temperature, view.concurrency)


def _groups(
    cells: Cells, view: View, series: Sequence[Series], make: Callable[[Series, Row, str], Any]
) -> list[tuple[str, list[Any]]]:
    """What `make` gives of each measured cell that it has something for, by task."""
    groups = []
    for task in cells.tasks:
        rows = [(each, cells.row(each, task, view)) for each in series]
        made = [make(each, row, task) for each, row in rows if row is not None]
        kept = [one for one in made if one is not None]
        if kept:
            groups.append((task, kept))
    return groups


def _speedup(cells: Cells, view: View) -> Iterator[Chart]:
    def bar(series: Series, row: Row, task: str) -> Bar:
        note = "outputs differ: refused" if row.get("speedup_refused") else "no plain run"
        return Bar(series, row.get("speedup"), row.get("speedup_ci95"), note=note)

    groups = _groups(cells, view, cells.drafting, bar)
    if groups:
        yield bar_chart(
            f"speedup_{slug(view)}",
            f"Speed-up over plain decoding ({view.title})",
            groups,
            form=lambda value: f"{value:.2f}×",
            reference=(1.0, "plain"),
        )


def _tau(cells: Cells, view: View) -> Iterator[Chart]:
    def bar(series: Series, row: Row, task: str) -> Bar:
        given = {"oracle": row.get("oracle_tau"), "top-1": row.get("top1_tau")}
        marks = {name: value for name, value in given.items() if value is not None}
        value = row.get("tau") if row.get("tau") is not None else row.get("tau_pooled")
        return Bar(series, value, row.get("tau_ci95"), marks, note="not told")

    groups = _groups(cells, view, cells.drafting, bar)
    if not groups:
        return
    known = {name for _, group in groups for each in group for name in each.marks}
    meaning = {
        "oracle": "the best choice among 16 candidates would commit so many",
        "top-1": "each slot's best candidate alone would commit so many",
    }
    yield bar_chart(
        f"tau_{slug(view)}",
        f"Tokens a cycle ({view.title})",
        groups,
        form=lambda value: f"{value:.2f}",
        reference=(1.0, "plain"),
        key=[(name, text) for name, text in meaning.items() if name in known],
    )


def _by_position(cells: Cells, view: View) -> Iterator[Chart]:
    for task in cells.tasks:
        lines = []
        for series in cells.drafting:
            row = cells.row(series, task, view)
            if row is None or not row.get("conditional_acceptance_by_position"):
                continue
            lines.append(Line(series, row["conditional_acceptance_by_position"]))
            recall = (row.get("recall_by_position") or {}).get(_ORACLE)
            if recall:
                lines.append(Line(series, recall, f"{series.label}: oracle", is_dashed=True))
        if lines:
            width = max(len(line.values) for line in lines)
            yield line_chart(
                f"acceptance_{task}_{slug(view)}",
                f"{task}: acceptance by position",
                [str(j + 1) for j in range(width)],
                lines,
                axis="position in the block",
                form=lambda value: f"{value:.0%}",
                most=1.0,
            )


def _costs(cells: Cells, view: View) -> Iterator[Chart]:
    def stack(series: Series, row: Row, task: str) -> Stack | None:
        parts = row.get("ms_per_cycle")
        return Stack(series, parts, row.get("tau_pooled")) if parts else None

    groups = _groups(cells, view, cells.series, stack)
    if groups:
        yield stack_chart(f"cycle_{slug(view)}", f"Time of a cycle ({view.title})", groups)


def _loads(cells: Cells, chart_of: Callable[[Cells, str, float], Chart | None]) -> Iterator[Figure]:
    if len(cells.concurrencies) < 2:
        return
    for temperature in cells.temperatures:
        for task in cells.tasks:
            chart = chart_of(cells, task, temperature)
            if chart is not None:
                yield Figure(chart, temperature)


def _throughput(cells: Cells, task: str, temperature: float) -> Chart | None:
    lines = _lines(cells, cells.series, task, temperature, "tokens_per_s")
    if not lines:
        return None
    return line_chart(
        f"throughput_{task}_t{temperature:g}",
        f"{task}: tokens/s",
        [str(each) for each in cells.concurrencies],
        lines,
        axis="prompts at once",
        form=lambda value: f"{value:.0f}",
    )


def _gain(cells: Cells, task: str, temperature: float) -> Chart | None:
    lines = _lines(cells, cells.drafting, task, temperature, "speedup")
    if not lines:
        return None
    return line_chart(
        f"load_{task}_t{temperature:g}",
        f"{task}: speed-up",
        [str(each) for each in cells.concurrencies],
        lines,
        axis="prompts at once",
        form=lambda value: f"{value:.2g}×",
        reference=(1.0, "break-even"),
    )


def _lines(
    cells: Cells, series: Sequence[Series], task: str, temperature: float, key: str
) -> list[Line]:
    """A figure over the loads; series that have none of it are left out."""
    views = [View(temperature, each) for each in cells.concurrencies]
    every = [Line(one, [cells.value(one, task, view, key) for view in views]) for one in series]
    return [line for line in every if any(value is not None for value in line.values)]


def _prediction(cells: Cells) -> Iterator[Figure]:
    for temperature in cells.temperatures:
        points = []
        for series, task, view, row in cells:
            measured = row.get("decode_speedup") or row.get("speedup")
            predicted = row.get("predicted_speedup")
            if series.is_plain or view.temperature != temperature or not (measured and predicted):
                continue
            points.append(
                Point(series, predicted, measured, f"{task}, {series.label}, {view.title}")
            )
        if points:
            title = "Predicted and measured speed-up of decoding"
            chart = scatter_chart(f"prediction_t{temperature:g}", title, points)
            yield Figure(chart, temperature)
