"""Two panels as SVG: cost of a pass against its rows, speed-up against drafted tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from blockdraft.evaluation.plan.plan import Plan

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 460, 340, 52, 12, 46
_TOP = 58  # title and legend stand above the lines
_GRID = 4  # steps of the grid
_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#57534e")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c1917}.t{font-weight:600}"
    ".g{stroke:#e7e5e4}.e{stroke:#78716c;stroke-dasharray:5 4}"
    "@media(prefers-color-scheme:dark){text{fill:#f5f5f4}.g{stroke:#44403c}.e{stroke:#a8a29e}}"
)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Panel:
    """Lines of one panel. `level`: a dashed line with a name; None draws none."""

    title: str
    x_label: str
    series: Sequence[tuple[str, Points]]
    level: tuple[str, float] | None
    left: float

    @property
    def most(self) -> tuple[float, float]:
        every = [point for _, points in self.series for point in points]
        tops = [y for _, y in every] + ([self.level[1]] if self.level is not None else [])
        step = _step(max(tops, default=1.0))
        return max((x for x, _ in every), default=1.0), step * _GRID

    def at(self, x: float, y: float) -> tuple[float, float]:
        most_x, most_y = self.most
        width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return (
            self.left + _LEFT + width * x / most_x,
            _TOP + height * (1.0 - y / most_y),
        )

    def draw(self) -> Iterator[str]:
        most_x, most_y = self.most
        yield _text(self.left + _LEFT, 18, self.title, "t")
        for i in range(_GRID + 1):
            y = most_y * i / _GRID
            yield self._across(y, "g")
            yield _text(self.left + _LEFT - 6, self.at(0.0, y)[1] + 4, f"{y:.3g}", "", "end")
        for x in _apart({x for _, points in self.series for x, _ in points}, most_x / 12):
            yield _text(self.at(x, 0.0)[0], _HEIGHT - _BOTTOM + 16, f"{x:g}", "", "middle")
        yield _text(self.at(most_x / 2, 0.0)[0], _HEIGHT - 8, self.x_label, "", "middle")
        if self.level is not None:
            name, level = self.level
            yield self._across(level, "e")
            yield _text(self.at(most_x, 0.0)[0], self.at(0.0, level)[1] - 5, name, "", "end")
        for i, (name, points) in enumerate(self.series):
            yield from self._line(name, points, i)

    def _across(self, y: float, kind: str) -> str:
        (x0, y0), (x1, _) = self.at(0.0, y), self.at(self.most[0], y)
        return f'<line class="{kind}" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y0:.1f}" y2="{y0:.1f}"/>'

    def _line(self, name: str, points: Points, i: int) -> Iterator[str]:
        colour = _COLOURS[i % len(_COLOURS)]
        places = [self.at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        x, y = self.left + _LEFT + 140 * (i % 3), 36.0 + 16 * (i // 3)
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 15, y, name)


def _step(most: float) -> float:
    """A round distance of grid lines: `_GRID` of them reach beyond `most`."""
    least = most / _GRID
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        n * power for n in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0) if n * power >= least
    )


def _apart(values: set[float], least: float) -> list[float]:
    """Those that labels have room for, the greatest first in line."""
    kept: list[float] = []
    for value in sorted(values, reverse=True):
        if not kept or kept[-1] - value >= least:
            kept.append(value)
    return kept


def plan_svg(plan: Plan) -> str:
    """The whole drawing; the speed-up panel shows the first acceptance, a line for each load."""
    costs = [
        (f"{curve.context} cached tokens", list(zip(curve.rows, curve.verify_ms, strict=True)))
        for curve in plan.curves
    ]
    read_ms = plan.ceilings.read_ms
    level = None if read_ms is None else ("reading the weights", read_ms)
    panels = [_Panel("Pass of the target, ms", "rows of a pass", costs, level, 0.0)]
    if plan.gains:
        first = plan.gains[0].acceptance
        loads = dict.fromkeys(gain.costs.concurrency for gain in plan.gains)
        series = [
            (
                f"{load} at once",
                [
                    (float(g.costs.num_draft_tokens), g.speedup)
                    for g in plan.gains
                    if g.acceptance == first and g.costs.concurrency == load
                ],
            )
            for load in loads
        ]
        panels.append(
            _Panel(f"Speed-up, {first}", "drafted tokens", series, ("plain", 1.0), _WIDTH)
        )
    width = _WIDTH * len(panels)
    body = "".join(part for panel in panels for part in panel.draw())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'width="{width}" height="{_HEIGHT}" role="img">'
        f"<title>Cost of passes and speed-up</title><style>{_STYLE}</style>{body}</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
