"""Horizontal bars in groups: one group a task, one bar a series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blockdraft.report.cells import Series
from blockdraft.report.svg import LINE, Chart, Drawing, Scale, clip, ticks

WIDTH = 430
_LABEL, _VALUE, _ROW, _HEAD = 112, 56, 20, 26


@dataclass(frozen=True)
class Bar:
    """One bar. Without a value, `note` stands in its place.

    Attributes:
        interval: its 95 % interval.
        marks: other values on its row, by class.
    """

    series: Series
    value: float | None
    interval: Sequence[float] | None = None
    marks: dict[str, float] = field(default_factory=dict)
    note: str = ""


def bar_chart(
    name: str,
    title: str,
    groups: Sequence[tuple[str, Sequence[Bar]]],
    *,
    form: Callable[[float], str],
    reference: tuple[float, str] | None = None,
    key: Sequence[tuple[str, str]] = (),
) -> Chart:
    """Draw groups of bars.

    Args:
        form: writes a value.
        reference: a value that a line marks, and its label.
        key: classes of marks and what they mean.
    """
    bars = [bar for _, group in groups for bar in group]
    most = max([_reach(bar) for bar in bars] + [reference[0] if reference else 0.0, 1e-9])
    values = ticks(0.0, most)
    at = Scale(0.0, values[-1], _LABEL, WIDTH - _VALUE)
    bottom = 8.0 + sum(_HEAD + _ROW * len(group) for _, group in groups)
    draw = Drawing()
    for value in values:
        draw.line(at(value), 8, at(value), bottom, "grid")
        draw.text(at(value), bottom + LINE, f"{value:g}", "tick", "middle")
    column = WIDTH if any(bar.marks for bar in bars) else None
    y = 8.0
    for label, group in groups:
        draw.text(0, y + 17, clip(label, WIDTH), "head")
        y += _HEAD
        for bar in group:
            _bar(draw, at, y, bar, form, label, column)
            y += _ROW
    height: float = bottom + LINE + 6
    if reference:
        draw.line(at(reference[0]), 8, at(reference[0]), bottom, "even")
        draw.text(at(reference[0]), height + 8, reference[1], "tick", "middle")
        height += LINE
    height = _key(draw, key, height)
    return Chart(name, title, f"{title}: {_said(groups, form)}", WIDTH, height, draw.parts)


def _reach(bar: Bar) -> float:
    return max([bar.value or 0.0, *(bar.interval or ()), *bar.marks.values()])


def _bar(
    draw: Drawing,
    at: Scale,
    y: float,
    bar: Bar,
    form: Callable[[float], str],
    group: str,
    column: float | None,
) -> None:
    """A row; its value stands behind the bar, or in a column where marks would be taken for it."""
    number, key = bar.series.colour, bar.series.key
    draw.text(_LABEL - 8, y + 14, clip(bar.series.label, _LABEL - 8), f"label {key}", "end")
    if bar.value is None:
        draw.text(_LABEL + 6, y + 14, bar.note or "not measured", f"note {key}")
        return
    tip = _tip(bar, form, group)
    again = " again" if bar.series.is_again else ""
    width = max(0.5, at(bar.value) - _LABEL)
    kind = f"bar s{number} {key}{again}"
    draw.add("rect", kind, tip, x=float(_LABEL), y=y + 3, width=width, height=14, rx=2)
    end = at(bar.value)
    if bar.interval:
        low, high = bar.interval
        draw.line(at(low), y + 10, at(high), y + 10, f"whisker {key}")
        end = max(end, at(high))
    for kind, value in bar.marks.items():
        _mark(draw, kind, at(value), y + 10, key)
    if column is None:
        draw.text(end + 6, y + 14, form(bar.value), f"value {key}")
    else:
        draw.text(column, y + 14, form(bar.value), f"value {key}", "end")


def _mark(draw: Drawing, kind: str, x: float, y: float, key: str) -> None:
    if kind == "oracle":
        corners = ((x - 4.5, y), (x, y - 4.5), (x + 4.5, y), (x, y + 4.5))
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in corners)
        draw.add("polygon", f"mark {key}", points=points)
    else:
        draw.line(x, y - 8, x, y + 8, f"mark {key}")


def _key(draw: Drawing, key: Sequence[tuple[str, str]], height: float) -> float:
    """What the marks mean, a line each; returns the new height."""
    for kind, meaning in key:
        _mark(draw, kind, 6, height + 6, "")
        draw.text(17, height + 10, meaning, "tick")
        height += LINE + 2
    return height + (4 if key else 0)


def _tip(bar: Bar, form: Callable[[float], str], group: str) -> str:
    assert bar.value is not None
    lines = [f"{group}, {bar.series.label}: {form(bar.value)}"]
    if bar.interval:
        lines.append(f"95 % interval {form(bar.interval[0])} to {form(bar.interval[1])}")
    lines += [f"{kind}: {form(value)}" for kind, value in bar.marks.items()]
    return "\n".join(lines)


def _said(groups: Sequence[tuple[str, Sequence[Bar]]], form: Callable[[float], str]) -> str:
    return "; ".join(
        f"{label} "
        + ", ".join(f"{b.series.label} {form(b.value)}" for b in group if b.value is not None)
        for label, group in groups
    )
