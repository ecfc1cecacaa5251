"""`blockdraft report`: one self-contained page of result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockdraft.cli import options


def report(
    results: Annotated[
        list[Path], typer.Argument(help="JSON files of `evaluate`; several are compared.")
    ],
    out: options.HtmlFile = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write every chart to, as SVG and PNG, for papers; made if missing."
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Head of the page. If not given: the target's name.")
    ] = None,
) -> None:
    """Show results: speed-up, acceptance, costs, concurrency, tables, provenance."""
    from blockdraft.errors import ConfigError
    from blockdraft.report.figures import write_figures
    from blockdraft.report.load import load_runs
    from blockdraft.report.page import report_page
    from blockdraft.report.write import write_text

    if out is None and figures is None:
        raise ConfigError("nothing to write; give -o PAGE.html or --figures FOLDER, or both")
    runs = load_runs(results)
    if out is not None:
        write_text(out, report_page(runs, title))
        options.note(f"wrote {out}; open it in a browser")
    if figures is not None:
        num = write_figures(runs, figures)
        options.note(f"wrote {num} charts to {figures}, each as SVG and PNG")
