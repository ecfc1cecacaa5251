"""Every chart as SVG and PNG, for papers: light colours, no page around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from blockdraft.errors import UnsupportedError
from blockdraft.report.cells import Cells
from blockdraft.report.document import asset
from blockdraft.report.load import Run
from blockdraft.report.sections import sections
from blockdraft.report.svg import Chart
from blockdraft.report.write import write_bytes, write_text

#: Pixels of a PNG for one of the drawing: about 300 dots an inch in a column of a paper.
_ZOOM = 3

#: Pixels around a drawing.
_MARGIN = 8

_FONT = "DejaVu Sans, Verdana, Arial, Helvetica, sans-serif"
_FONT_FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.fonts",
    "~/.local/share/fonts",
    "/Library/Fonts",
    "/System/Library/Fonts",
    "C:/Windows/Fonts",
)


def write_figures(runs: Sequence[Run], folder: Path) -> int:
    """Write every chart of the page; returns how many there are.

    Raises: UnsupportedError if there is no font to write the PNGs' labels with.
    """
    charts = [figure.chart for section in sections(Cells(runs)) for figure in section.figures]
    style = paper_style()
    has_fonts = _has_fonts()
    for chart in charts:
        text = chart_file(chart, style)
        stem = re.sub(r"[^\w.-]+", "_", chart.name)
        write_text(folder / f"{stem}.svg", text)
        if has_fonts:
            write_bytes(folder / f"{stem}.png", _png(text))
    if not has_fonts:
        raise UnsupportedError(
            f"no font was found in {', '.join(_FONT_FOLDERS)}, so {folder} has the SVG files alone;"
            " install one (fonts-dejavu-core on Debian) for the PNG files"
        )
    return len(charts)


def chart_file(chart: Chart, style: str) -> str:
    """A chart as an SVG file of its own."""
    size = f'width="{chart.width + 2 * _MARGIN:g}" height="{chart.height + 2 * _MARGIN:g}"'
    svg = chart.svg(f'xmlns="http://www.w3.org/2000/svg" {size}', style, _MARGIN)
    return re.sub(r' data-tip="[^"]*"', "", svg) + "\n"


def paper_style() -> str:
    """The charts' style sheet with the light colours written out: papers know no variables."""
    first_block = asset("base.css").split("{", 1)[1].split("}", 1)[0]
    values = dict(re.findall(r"--(\w+(?:-\w+)*): ([^;]+);", first_block))
    rules = re.sub(r"var\(--([\w-]+)\)", lambda found: values[found[1]], asset("charts.css"))
    return f"text{{font-family:{_FONT};font-size:12px}}{rules}"


def _has_fonts() -> bool:
    folders = (Path(name).expanduser() for name in _FONT_FOLDERS)
    return any(
        path.suffix.lower() in (".ttf", ".otf", ".ttc")
        for folder in folders
        if folder.is_dir()
        for path in folder.rglob("*")
    )


def _png(svg: str) -> bytes:
    # Imported late: only figures need it.
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_ZOOM, background="#ffffff"))
