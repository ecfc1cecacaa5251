"""Drawing: elements, text and scales. Colours are classes, so one drawing serves page and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from blockdraft.report.document import escape

#: Height of a line of text, and the width of a letter of the labels on average, in pixels.
LINE, LETTER = 15, 6.4


@dataclass(frozen=True)
class Chart:
    """A drawing. `name` is its file name; `alt` says in words what it shows."""

    name: str
    title: str
    alt: str
    width: float
    height: float
    parts: Sequence[str]

    def svg(self, more: str = "", style: str = "", margin: float = 0) -> str:
        """The element; `more` are attributes, `style` a sheet to put inside."""
        wide, high = self.width + 2 * margin, self.height + 2 * margin
        box = f"{-margin:g} {-margin:g} {wide:g} {high:g}"
        sheet = f"<style>{style}</style>" if style else ""
        return (
            f'<svg viewBox="{box}" role="img" '
            f'aria-label="{escape(self.alt)}" {more}>{sheet}{"".join(self.parts)}</svg>'
        )


@dataclass
class Drawing:
    """Collects elements; coordinates are pixels from the upper left corner."""

    parts: list[str] = field(default_factory=list)

    def add(self, tag: str, kind: str = "", tip: str = "", **attributes: object) -> None:
        """An element with classes `kind`; `tip` is shown where it is touched."""
        given = {"class": kind, "data-tip": tip, **attributes}
        shown = " ".join(
            f'{name.replace("_", "-")}="{_value(value)}"'
            for name, value in given.items()
            if value != ""
        )
        self.parts.append(f"<{tag} {shown}/>")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "") -> None:
        """One line of text, its base line at y."""
        at = f' text-anchor="{anchor}"' if anchor else ""
        name = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{at}{name}>{escape(text)}</text>')

    def line(self, x0: float, y0: float, x1: float, y1: float, kind: str) -> None:
        """A straight line."""
        self.add("line", kind, x1=x0, y1=y0, x2=x1, y2=y1)


def _value(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else escape(value)


@dataclass(frozen=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values from `low` to the first at or above `high`, about `most` of them."""
    span = max(high - low, 1e-9)
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]


def clip(text: str, width: float) -> str:
    """Text that fits a width; what does not is cut with an ellipsis."""
    most = max(2, int(width / LETTER))
    return text if len(text) <= most else text[: most - 1] + "…"
