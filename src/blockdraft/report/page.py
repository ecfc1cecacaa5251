"""The page of one or several results."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.report.cells import Cells, Series, View, at_once
from blockdraft.report.document import THEME_BUTTON, document, escape
from blockdraft.report.facts import fact_list, flat
from blockdraft.report.load import Run
from blockdraft.report.sections import Figure, Section, sections
from blockdraft.report.tables import pairs, side_by_side, tables


def report_page(runs: Sequence[Run], title: str | None = None) -> str:
    """One HTML file that shows the runs; `title` heads it, else the target's name."""
    cells = Cells(runs)
    title = title or _title(runs)
    first = cells.views[0]
    parts = "".join(_section(section, first) for section in sections(cells))
    body = f"""<main>{_header(cells, title)}</main>
{_controls(cells)}
<main><div class="blocks">{parts}</div>
<h2 class="apart">Tables</h2>
<p class="soft">A click on a head sorts. A copy has the rows that are shown, with full precision.
<label class="all" hidden><input type="checkbox" id="all"> every temperature and load</label></p>
{side_by_side(cells)}{pairs(cells)}{tables(cells)}
<h2 class="apart">Where this comes from</h2>
{"".join(map(_provenance, runs))}</main>"""
    styles, scripts = ("charts.css", "report.css"), ("report.js",)
    return document(title=title, body=body, styles=styles, scripts=scripts)


def _title(runs: Sequence[Run]) -> str:
    names = [(run.provenance.get("target") or {}).get("name") for run in runs]
    known = list(dict.fromkeys(name for name in names if name))
    return f"Block drafting on {', '.join(known)}" if known else "Block drafting"


def _header(cells: Cells, title: str) -> str:
    tiles = "".join(_tile(cells, series) for series in cells.drafting)
    lines = "".join(f"<p class='soft'>{escape(_about(run))}</p>" for run in cells.runs)
    return f"""<header class="top"><div><h1>{escape(title)}</h1>{lines}
<ul class="tiles">{tiles}</ul></div>
{THEME_BUTTON}</header>"""


def _about(run: Run) -> str:
    about = run.provenance
    machine = about.get("machine") or {}
    parts = [
        run.name,
        about.get("dtype"),
        f"{about['kernels']} kernels" if about.get("kernels") else None,
        machine.get("gpu") or machine.get("cpu"),
        _threads(machine["threads"]) if machine.get("threads") else None,
        str(about.get("time", ""))[:10],
    ]
    return " · ".join(str(part) for part in parts if part)


def _threads(num: int) -> str:
    return "1 thread" if num == 1 else f"{num} threads"


def _tile(cells: Cells, series: Series) -> str:
    """A method's speed-up where it was measured first: the mean over tasks, as in README."""
    for view in cells.views:
        rows = [cells.row(series, task, view) for task in cells.tasks]
        gains = [row["speedup"] for row in rows if row and row.get("speedup")]
        taus = [row["tau"] for row in rows if row and row.get("tau")]
        if not gains and not taus:
            continue
        gain = sum(gains) / len(gains) if gains else None
        head = f"{gain:.2f}×" if gain else "–"
        tau = f", τ {sum(taus) / len(taus):.2f}" if taus else ""
        what = f"{_tasks(len(gains or taus))}{tau}; {view.title}"
        return (
            f'<li class="t{series.colour}"><b>{head}</b><strong>{escape(series.label)}</strong>'
            f"<span>{escape(what)}</span></li>"
        )
    return ""


def _tasks(num: int) -> str:
    return "one task" if num == 1 else f"mean of {num} tasks"


def _controls(cells: Cells) -> str:
    """Choices of what the charts show; none where there is nothing to choose."""
    parts = []
    if len(cells.temperatures) > 1:
        values = [(f"{t:g}", "greedy" if t == 0 else f"T = {t:g}") for t in cells.temperatures]
        parts.append(_select("temperature", "temperature", values))
    if len(cells.concurrencies) > 1:
        values = [(str(c), at_once(c)) for c in cells.concurrencies]
        parts.append(_select("concurrency", "load", values))
    chips = "".join(
        f'<button class="chip t{series.colour}" data-key="{series.key}" '
        f'aria-pressed="true"><i></i>{escape(series.label)}</button>'
        for series in cells.series
    )
    return f"""<div class="bar"><div class="bar-inner controls">{"".join(parts)}
<span class="chips" role="group" aria-label="Methods shown">{chips}</span></div></div>"""


def _select(name: str, label: str, values: Sequence[tuple[str, str]]) -> str:
    options = "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in values)
    select = f'<select id="{name}" aria-label="{label}">{options}</select>'
    return f"<label><span>{label}</span>{select}</label>"


def _section(section: Section, first: View) -> str:
    figures = "".join(_figure(figure, first) for figure in section.figures)
    empty = f'<p class="soft">{escape(section.empty)}</p>' if not figures else ""
    wide = " wide" if section.is_wide else ""
    return f"""<section class="block{wide}"><h2>{escape(section.title)}</h2>
<p class="soft intro">{escape(section.intro)}</p>{empty}
<div class="figures">{figures}</div></section>"""


def _figure(figure: Figure, first: View) -> str:
    """Charts of other choices than the first are there, hidden."""
    chart = figure.chart
    is_shown = figure.temperature in (None, first.temperature) and (
        figure.concurrency in (None, first.concurrency)
    )
    keys = "" if figure.temperature is None else f' data-t="{figure.temperature:g}"'
    keys += "" if figure.concurrency is None else f' data-c="{figure.concurrency}"'
    hidden = "" if is_shown else " hidden"
    svg = chart.svg('class="chart"')
    return (
        f'<figure class="card"{keys}{hidden}>'
        f"<figcaption>{escape(chart.title)}</figcaption>{svg}</figure>"
    )


def _provenance(run: Run) -> str:
    settings, about = fact_list(flat(run.settings)), fact_list(flat(run.provenance))
    return f"""<details class="card"><summary>{escape(run.name)}</summary>
<h3>Settings</h3>{settings}<h3>Provenance</h3>{about}</details>"""
