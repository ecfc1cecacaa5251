"""Stacked bars: where the time of a cycle goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.report.cells import Series
from blockdraft.report.svg import LINE, Chart, Drawing, Scale, clip, ticks

#: Parts of a cycle in their order, and the colour of each.
PARTS = {"draft": 2, "select": 5, "verify": 1, "other": 0}

WIDTH = 430
_LABEL, _VALUE, _ROW, _HEAD = 112, 112, 20, 26

#: Right edges of the two columns behind the bars.
_CYCLE, _TOKEN = WIDTH - 54, WIDTH


@dataclass(frozen=True)
class Stack:
    """Milliseconds of each part of a cycle, and the tokens that it commits."""

    series: Series
    parts: dict[str, float]
    tau: float | None

    @property
    def total(self) -> float:
        """All parts, in milliseconds."""
        return sum(self.parts.values())


def stack_chart(name: str, title: str, groups: Sequence[tuple[str, Sequence[Stack]]]) -> Chart:
    """One row a series: parts of its cycle in ms, and what a token costs."""
    most = max((stack.total for _, group in groups for stack in group), default=1.0)
    values = ticks(0.0, most)
    at = Scale(0.0, values[-1], _LABEL, WIDTH - _VALUE)
    bottom = 8 + sum(_HEAD + _ROW * len(group) for _, group in groups)
    draw = Drawing()
    for value in values:
        draw.line(at(value), 8, at(value), bottom, "grid")
        draw.text(at(value), bottom + LINE, f"{value:g}", "tick", "middle")
    draw.text(_CYCLE, 20, "a cycle", "tick", "end")
    draw.text(_TOKEN, 20, "a token", "tick", "end")
    y = 8.0
    for label, group in groups:
        draw.text(0, y + 17, clip(label, WIDTH), "head")
        y += _HEAD
        for stack in group:
            _stack(draw, at, y, stack)
            y += _ROW
    draw.text(at(values[-1]) + 14, bottom + LINE, "ms", "tick")
    x = float(_LABEL)
    for part, colour in PARTS.items():
        draw.add("rect", f"bar s{colour}", x=x, y=bottom + 26, width=11, height=11, rx=2)
        draw.text(x + 16, bottom + 36, part, "tick")
        x += 24 + 7 * len(part)
    alt = "; ".join(
        f"{label} {stack.series.label} {stack.total:.2f} ms" for label, g in groups for stack in g
    )
    return Chart(name, title, f"{title}: {alt}", WIDTH, bottom + 44, draw.parts)


def _stack(draw: Drawing, at: Scale, y: float, stack: Stack) -> None:
    key = stack.series.key
    draw.text(_LABEL - 8, y + 14, clip(stack.series.label, _LABEL - 8), f"label {key}", "end")
    cost = f"{stack.total:.2f} ms a cycle"
    if stack.tau:
        cost += f", {stack.tau:.2f} tokens: {stack.total / stack.tau:.2f} ms a token"
    split = ", ".join(f"{part} {ms:.2f}" for part, ms in stack.parts.items())
    x, start = float(_LABEL), 0.0
    for part, colour in PARTS.items():
        start += stack.parts.get(part, 0.0)
        width = max(0.0, at(start) - x)
        tip = f"{stack.series.label}: {cost}\n{split} ms"
        draw.add("rect", f"bar s{colour} {key}", tip, x=x, y=y + 3, width=width, height=14)
        x += width
    draw.text(_CYCLE, y + 14, f"{stack.total:.1f}", f"value {key}", "end")
    if stack.tau:
        draw.text(_TOKEN, y + 14, f"{stack.total / stack.tau:.2f}", f"value {key}", "end")
