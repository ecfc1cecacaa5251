"""Predicted against measured: points beside the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.report.cells import Series
from blockdraft.report.svg import LETTER, LINE, Chart, Drawing, Scale, ticks

WIDTH, HEIGHT = 400, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 26, 44


@dataclass(frozen=True)
class Point:
    """One cell: what the model of costs predicts, and what the clock said."""

    series: Series
    predicted: float
    measured: float
    label: str


def scatter_chart(name: str, title: str, points: Sequence[Point]) -> Chart:
    """Points over equal axes; on the diagonal the prediction is right."""
    values = [v for point in points for v in (point.predicted, point.measured)]
    marks = ticks(min([*values, 1.0]), max([*values, 1.0]))
    across = Scale(marks[0], marks[-1], _LEFT, WIDTH - _RIGHT)
    up = Scale(marks[0], marks[-1], HEIGHT - _BOTTOM, _TOP)
    draw = Drawing()
    for value in marks:
        draw.line(_LEFT, up(value), WIDTH - _RIGHT, up(value), "grid")
        draw.line(across(value), _TOP, across(value), HEIGHT - _BOTTOM, "grid")
        draw.text(_LEFT - 6, up(value) + 4, f"{value:g}", "tick", "end")
        draw.text(across(value), HEIGHT - _BOTTOM + LINE, f"{value:g}", "tick", "middle")
    draw.text((_LEFT + WIDTH) / 2, HEIGHT - 8, "predicted speed-up", "tick", "middle")
    draw.text(_LEFT, 13, "measured speed-up", "tick")
    draw.line(across(marks[0]), up(marks[0]), across(marks[-1]), up(marks[-1]), "even")
    for point in points:
        number, key = point.series.colour, point.series.key
        gap = point.measured / point.predicted - 1
        pair = f"predicted {point.predicted:.2f}, measured {point.measured:.2f}"
        tip = f"{point.label}\n{pair} ({gap:+.1%})"
        x, y = across(point.predicted), up(point.measured)
        draw.add("circle", f"dot s{number} {key}", tip, cx=x, cy=y, r=5)
    height = _legend(draw, list(dict.fromkeys(point.series for point in points)))
    alt = "; ".join(f"{p.label} {p.predicted:.2f} and {p.measured:.2f}" for p in points)
    return Chart(name, title, f"{title}: {alt}", WIDTH, height, draw.parts)


def _legend(draw: Drawing, series: Sequence[Series]) -> float:
    x, y = float(_LEFT), HEIGHT + 10.0
    for each in series:
        width = 18 + LETTER * len(each.label) + 12
        if x + width > WIDTH and x > _LEFT:
            x, y = float(_LEFT), y + LINE + 2
        draw.add("circle", f"dot s{each.colour} {each.key}", cx=x + 5, cy=y - 4, r=5)
        draw.text(x + 16, y, each.label, f"tick {each.key}")
        x += width
    return y + 8
