"""Lines over a few places: positions of a block, or numbers of prompts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockdraft.report.cells import Series
from blockdraft.report.svg import LETTER, LINE, Chart, Drawing, Scale, ticks

WIDTH, HEIGHT = 360, 216
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 12, 40


@dataclass(frozen=True)
class Line:
    """Values at places 0, 1, ..; None leaves a gap. Dashed lines have no dots."""

    series: Series
    values: Sequence[float | None]
    label: str = ""
    is_dashed: bool = False


def line_chart(
    name: str,
    title: str,
    places: Sequence[str],
    lines: Sequence[Line],
    *,
    axis: str,
    form: Callable[[float], str],
    most: float | None = None,
    reference: tuple[float, str] | None = None,
) -> Chart:
    """Draw lines from 0 up; a legend below names them.

    Args:
        places: labels of the horizontal axis, `axis` below them.
        most: top of the vertical axis; else what the values need.
    """
    values = [v for line in lines for v in line.values if v is not None]
    top = max([*values, reference[0] if reference else 0.0, 1e-9]) if most is None else most
    marks = ticks(0.0, top, 4)
    up = Scale(0.0, marks[-1], HEIGHT - _BOTTOM, _TOP)
    across = Scale(0.0, max(1.0, len(places) - 1.0), _LEFT + 8, WIDTH - _RIGHT - 8)
    draw = Drawing()
    for value in marks:
        draw.line(_LEFT, up(value), WIDTH - _RIGHT, up(value), "grid")
        draw.text(_LEFT - 6, up(value) + 4, form(value), "tick", "end")
    for i, place in enumerate(places):
        draw.text(across(i), HEIGHT - _BOTTOM + LINE, place, "tick", "middle")
    draw.text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, axis, "tick", "middle")
    if reference:
        draw.line(_LEFT, up(reference[0]), WIDTH - _RIGHT, up(reference[0]), "even")
        draw.text(WIDTH - _RIGHT, up(reference[0]) - 4, reference[1], "tick", "end")
    for line in sorted(lines, key=lambda line: not line.is_dashed):
        _line(draw, line, across, up, places, form)
    height = _legend(draw, lines)
    alt = "; ".join(_said(line, form) for line in lines)
    return Chart(name, title, f"{title}: {alt}", WIDTH, height, draw.parts)


def _line(
    draw: Drawing,
    line: Line,
    across: Scale,
    up: Scale,
    places: Sequence[str],
    form: Callable[[float], str],
) -> None:
    number, key = line.series.colour, line.series.key
    again = " again" if line.series.is_again else ""
    kind = f"line l{number} {key}{' dashed' if line.is_dashed else again}"
    for piece in _pieces(line.values):
        points = " ".join(f"{across(i):.1f},{up(value):.1f}" for i, value in piece)
        draw.add("polyline", kind, points=points)
        if line.is_dashed:
            continue
        for i, value in piece:
            tip = f"{line.label or line.series.label}, {places[i]}: {form(value)}"
            draw.add("circle", f"dot s{number} {key}", tip, cx=across(i), cy=up(value), r=3.6)


def _said(line: Line, form: Callable[[float], str]) -> str:
    values = ", ".join("none" if value is None else form(value) for value in line.values)
    return f"{line.label or line.series.label} {values}"


def _pieces(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Runs of values without a gap."""
    found: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append((i, value))
    return [piece for piece in found if piece]


def _legend(draw: Drawing, lines: Sequence[Line]) -> float:
    """Names of the lines in rows; returns the height of the chart with them."""
    x, y = float(_LEFT), HEIGHT + 8.0
    for line in lines:
        label = line.label or line.series.label
        width = 28 + LETTER * len(label) + 12
        if x + width > WIDTH and x > _LEFT:
            x, y = float(_LEFT), y + LINE + 2
        number, key = line.series.colour, line.series.key
        dashed = " dashed" if line.is_dashed else " again" if line.series.is_again else ""
        draw.line(x, y - 4, x + 20, y - 4, f"line l{number} {key}{dashed}")
        draw.text(x + 26, y, label, f"tick {key}")
        x += width
    return y + 8
