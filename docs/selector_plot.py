"""The plot of docs/findings/selector.md: acceptance length against the number of candidates."""

from __future__ import annotations

import math
from typing import Any

from blockdraft.report.svg import Chart, Drawing, Scale, ticks

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 176, 32, 48
LABELS = {"oracle": "right one, if it is there", "walk": "walk of the selector"}
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .grid { stroke: #d0d7de } .curve { fill: none; stroke-width: 2 } .range { stroke-width: 1 }
  .walk { stroke: #0969da } .oracle { stroke: #57606a; stroke-dasharray: 5 4 }
  .range.oracle { stroke-dasharray: none }
  text.walk { fill: #0969da; font-weight: 600; stroke: none }
  text.oracle { fill: #57606a; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .grid { stroke: #3d444d }
    .walk { stroke: #58a6ff } .oracle { stroke: #9198a1 }
    text.walk { fill: #58a6ff } text.oracle { fill: #9198a1 }
  }
"""


def selector_svg(result: dict[str, Any]) -> str:
    """Two curves with their 95 % intervals; candidates on a logarithmic axis."""
    cells = result["rows"]["candidates"]
    counts = sorted(map(int, cells))
    most = max(cell[name]["tau_pooled_ci95"][1] for cell in cells.values() for name in LABELS)
    marks = ticks(1.0, most)
    x_of = Scale(0, math.log2(counts[-1]), LEFT, WIDTH - RIGHT)
    y_of = Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    drawing = Drawing()
    for mark in marks:
        drawing.line(LEFT, y_of(mark), WIDTH - RIGHT, y_of(mark), "grid")
        drawing.text(LEFT - 8, y_of(mark) + 4, f"{mark:g}", anchor="end")
    for n in counts:
        drawing.text(x_of(math.log2(n)), HEIGHT - BOTTOM + 18, str(n), anchor="middle")
    drawing.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "candidates of a slot", anchor="middle")
    drawing.text(LEFT - 8, TOP - 16, "τ", anchor="end")
    for name, label in LABELS.items():
        points = []
        for n in counts:
            x, own = x_of(math.log2(n)), cells[str(n)][name]
            low, high = own["tau_pooled_ci95"]
            drawing.line(x, y_of(low), x, y_of(high), f"range {name}")
            points.append(f"{x:.1f},{y_of(own['tau_pooled']):.1f}")
        drawing.add("polyline", f"curve {name}", points=" ".join(points))
        last = cells[str(counts[-1])][name]["tau_pooled"]
        drawing.text(WIDTH - RIGHT + 8, y_of(last) + 4, label, name)
    alt = "Tokens a cycle commits against the number of candidates that a slot has"
    chart = Chart("selector", "", alt, WIDTH, HEIGHT, drawing.parts)
    return chart.svg('xmlns="http://www.w3.org/2000/svg"', STYLE) + "\n"
