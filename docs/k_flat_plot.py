"""The plot of docs/findings/k_flat.md: cost of a pass against its rows, as SVG from the JSON."""

from __future__ import annotations

import math
from typing import Any

WIDTH, HEIGHT = 744, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 176, 16, 48
TICKS_MS = (5, 10, 20, 50, 100, 200)
ENGINES = {
    "stored": "blockdraft, as stored",
    "native": "blockdraft, bfloat16",
    "onednn": "oneDNN, packed",
    "torch": "PyTorch",
    "llama.cpp": "llama.cpp, bfloat16",
    "llama.cpp, file": "llama.cpp, Q4_1",
}
CLASSES = {"llama.cpp": "llama", "llama.cpp, file": "file"}
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .grid { stroke: #d0d7de } .line { fill: none; stroke-width: 2 } .range { stroke-width: 1 }
  .stored { stroke: #0969da; stroke-width: 3 } .file { stroke: #6a737d }
  .native { stroke: #0969da; stroke-dasharray: 2 3 }
  .onednn { stroke: #b35900 } .torch { stroke: #8250df }
  .llama { stroke: #1a7f37 } .limit { stroke: #57606a; stroke-dasharray: 5 4 }
  text.stored { fill: #0969da; font-weight: 600 } text.file { fill: #6a737d }
  text.native { fill: #0969da } text.onednn { fill: #b35900 }
  text.torch { fill: #8250df } text.llama { fill: #1a7f37 } text.limit { fill: #57606a }
  text.stored, text.native, text.onednn, text.torch, text.llama, text.file, text.limit {
    stroke: none
  }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .grid { stroke: #3d444d }
    .stored, .native { stroke: #58a6ff } .file { stroke: #8b949e }
    .onednn { stroke: #f0a35e } .torch { stroke: #bc8cff }
    .llama { stroke: #56d364 } .limit { stroke: #9198a1 }
    text.stored, text.native { fill: #58a6ff } text.file { fill: #8b949e }
    text.onednn { fill: #f0a35e } text.torch { fill: #bc8cff }
    text.llama { fill: #56d364 } text.limit { fill: #9198a1 }
  }
"""


def k_flat_svg(result: dict[str, Any]) -> str:
    """Least times, up to their medians; both axes logarithmic; and the roofline."""
    passes, ceilings = result["rows"]["pass_ms"], result["rows"]["ceilings"]
    counts = sorted(int(n) for n in passes["native"])
    most = max(cell["min"] for cells in passes.values() for cell in cells.values())
    plot = _Plot(counts, ceilings["stored_memory_ms"] * 0.8, most * 1.15)
    limit = [(n, roofline_ms(ceilings, n)) for n in counts]
    parts = [*plot.axes(), plot.path(limit, "limit")]
    labels = [(plot.y(limit[-1][1]), "limit", "limit")]
    for name, label in ENGINES.items():
        cells, kind = passes[name], CLASSES.get(name, name)
        points = [(n, cells[str(n)]["min"]) for n in counts]
        ranges = [(n, cells[str(n)]["min"], cells[str(n)]["median"]) for n in counts]
        parts += [plot.range(*each, kind) for each in ranges]
        parts.append(plot.path(points, kind))
        labels.append((plot.y(points[-1][1]), kind, label))
    parts += plot.labels(labels)
    title = "Time of one pass of SmolLM2-135M against the rows it checks"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join(
        [head, f"<title>{title}</title>", f"<style>{STYLE}</style>", *parts, "</svg>\n"]
    )


def roofline_ms(ceilings: dict[str, float], num_rows: int) -> float:
    """The least time of a pass: weights read once as stored, or multiplied by every row."""
    return max(ceilings["stored_memory_ms"], num_rows * ceilings["arithmetic_ms_a_row"])


class _Plot:
    """Places of points; rows on a logarithmic x axis, ms on a logarithmic y axis."""

    def __init__(self, counts: list[int], least_ms: float, most_ms: float) -> None:
        self.counts, self.least_ms, self.most_ms = counts, least_ms, most_ms

    def x(self, num_rows: int) -> float:
        share = math.log(num_rows) / math.log(self.counts[-1])
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, ms: float) -> float:
        share = math.log(min(ms, self.most_ms) / self.least_ms)
        share /= math.log(self.most_ms / self.least_ms)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> list[str]:
        parts = []
        for ms in TICKS_MS:
            if self.least_ms < ms < self.most_ms:
                y = self.y(ms)
                parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "grid"))
                parts.append(_text(LEFT - 8, y + 4, str(ms), "end"))
        below = HEIGHT - BOTTOM + 18
        parts += [_text(self.x(n), below, str(n), "middle") for n in self.counts]
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(_text(middle, HEIGHT - 8, "rows of the pass", "middle"))
        parts.append(_text(LEFT - 8, TOP + 4, "ms", "end"))
        return parts

    def path(self, points: list[tuple[int, float]], kind: str) -> str:
        places = " ".join(f"{self.x(n):.1f},{self.y(ms):.1f}" for n, ms in points)
        return f'<polyline class="line {kind}" points="{places}"/>'

    def range(self, num_rows: int, least: float, greatest: float, kind: str) -> str:
        x = self.x(num_rows)
        return _line(x, self.y(least), x, self.y(greatest), f"range {kind}")

    def labels(self, labels: list[tuple[float, str, str]]) -> list[str]:
        """At the ends of the lines, pushed apart where they would overlap."""
        parts, last = [], 0.0
        for y, kind, text in sorted(labels):
            last = max(y + 4, last + 16)
            parts.append(_text(WIDTH - RIGHT + 8, last, text, "start", kind))
        return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
