"""What stands in the report page: every row, whatever a result holds or lacks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.report import figures
from blockdraft.report.cells import Cells, Series, View
from blockdraft.report.charts.bars import Bar, bar_chart
from blockdraft.report.charts.lines import Line, line_chart
from blockdraft.report.load import Run, load_runs
from blockdraft.report.page import report_page
from blockdraft.report.sections import sections
from blockdraft.report.svg import ticks
from tests.report.results import TASKS, made_up_result

SVG = "{http://www.w3.org/2000/svg}"


def run_of(result: dict[str, Any], name: str = "R") -> Run:
    return Run(name, result["rows"], result["settings"], result["provenance"])


def rects(parts: list[str] | tuple[str, ...], kind: str) -> list[dict[str, str]]:
    found = ElementTree.fromstring(f"<g>{''.join(parts)}</g>")
    return [node.attrib for node in found.iter() if kind in node.get("class", "").split()]


def test_every_row_is_in_every_table() -> None:
    result = made_up_result()
    page = report_page([run_of(result)])
    tables = re.findall(r'<table class="sortable">.*?</table>', page, re.DOTALL)
    assert len(tables) == 4
    for table in tables:
        assert table.count("<tr ") == len(result["rows"])
    for row in result["rows"]:
        assert f'data-v="{row["tokens_per_s"]}"' in page


def test_sections_have_their_charts() -> None:
    by_title = {s.title: s for s in sections(Cells([run_of(made_up_result())]))}
    views, num_tasks = 6, len(TASKS)
    assert {title: len(s.figures) for title, s in by_title.items()} == {
        "Speed-up by task": views,
        "Tokens a cycle": views,
        "Acceptance by position": views * num_tasks,
        "Where a cycle's time goes": views,
        "Predicted against measured": 2,
        "Throughput against load": 2 * num_tasks,
        "Speed-up against load": 2 * num_tasks,
    }


def test_keys_that_may_be_absent_may_be_absent() -> None:
    """A server tells little: rows of four keys still make a page that says what is missing."""
    rows = [
        {"task": "t", "method": method, "concurrency": 1, "temperature": 0.0}
        for method in ("plain", "server")
    ]
    page = report_page([Run("R", rows, {}, {})])
    assert "Block drafting" in page
    assert "evaluate with --concurrency 1,4,16" in page
    assert "These results hold no predictions." in page


def test_a_refused_speedup_is_said_and_not_drawn() -> None:
    result = made_up_result(tasks=("gsm8k",), concurrencies=(1,), temperatures=(0.0,))
    for row in result["rows"]:
        if row["method"] == "dflash2":
            row |= {"speedup": None, "speedup_ci95": None, "speedup_refused": "2 of 20 differ"}
    [figure] = sections(Cells([run_of(result)]))[0].figures
    drawn = "".join(figure.chart.parts)
    assert "outputs differ: refused" in drawn
    assert len(rects(figure.chart.parts, "bar")) == 2


def test_bars_are_as_long_as_their_values() -> None:
    series = [Series("R", f"m{i}", f"m{i}", i + 1, i) for i in range(3)]
    bars = [Bar(one, value) for one, value in zip(series, (1.0, 2.0, 4.0), strict=True)]
    chart = bar_chart("x", "x", [("task", bars)], form=str)
    widths = [float(rect["width"]) for rect in rects(chart.parts, "bar")]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert widths[2] == pytest.approx(4 * widths[0], abs=0.2)


def test_lines_stand_at_their_values_and_break_at_gaps() -> None:
    line = Line(Series("R", "m", "m", 1, 0), [1.0, 0.5, None, 0.0])
    chart = line_chart("x", "x", list("1234"), [line], axis="", form=str, most=1.0)
    ys = [float(dot["cy"]) for dot in rects(chart.parts, "dot")]
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.1)
    pieces = [p["points"].split() for p in rects(chart.parts, "line") if "points" in p]
    assert list(map(len, pieces)) == [2, 1]


def test_ticks_are_round_and_hold_the_values() -> None:
    assert ticks(0, 3.9) == [0, 1, 2, 3, 4]
    assert ticks(0, 0.83, 4) == [0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(0.68, 2.9) == [0.5, 1, 1.5, 2, 2.5, 3]
    for most in (1e-6, 0.3, 7, 123456):
        assert ticks(0, most)[-1] >= most
        assert 2 <= len(ticks(0, most)) <= 7


def test_colours_are_by_method_and_plain_is_grey() -> None:
    cells = Cells([run_of(made_up_result(), "a"), run_of(made_up_result(), "b")])
    assert [s.colour for s in cells.series] == [0, 1, 2, 3, 0, 4, 5, 6]
    assert len({s.key for s in cells.series}) == 8
    many = made_up_result(methods={f"m{i}": 2.0 for i in range(10)})
    again = [s.is_again for s in Cells([run_of(many)]).series]
    assert again == [False] * 8 + [True] * 2


def test_folders_are_shown_by_their_last_part_where_that_is_clear() -> None:
    methods = {"plain": 1.0, "runs/a/drafter": 2.0, "runs/b/drafter": 2.0, "x/last": 2.0}
    labels = [s.label for s in Cells([run_of(made_up_result(methods=methods))]).series]
    assert labels == ["plain", "runs/a/drafter", "runs/b/drafter", "last"]


def test_views_in_words() -> None:
    assert View(0.0, 1).title == "greedy, one prompt at a time"
    assert View(0.7, 4).title == "temperature 0.7, 4 prompts at once"


def test_files_that_are_no_result_are_named(tmp_path: Path) -> None:
    wrong = {
        "text": ("not json", "is not JSON"),
        "list": ("[]", "holds no JSON object"),
        "empty": ("{}", "has no rows"),
        "row": ('{"rows": [{"task": "t"}]}', "row 0 has no method, concurrency, temperature"),
    }
    for name, (content, message) in wrong.items():
        path = tmp_path / f"{name}.json"
        path.write_text(content)
        with pytest.raises(CheckpointError, match=message):
            load_runs([path])
    with pytest.raises(ConfigError, match="is not a file"):
        load_runs([tmp_path / "none.json"])
    with pytest.raises(ConfigError, match="given twice"):
        load_runs([tmp_path / "row.json", tmp_path / "row.json"])
    with pytest.raises(ConfigError, match="no result"):
        load_runs([])


def test_runs_of_one_file_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "R.json" for folder in ("old", "new")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(made_up_result(tasks=("gsm8k",))))
    assert [run.name for run in load_runs(paths)] == [str(p.with_suffix("")) for p in paths]


def test_every_chart_is_written_as_svg_and_png(tmp_path: Path) -> None:
    result = made_up_result(tasks=("gsm8k", "a/b c"), concurrencies=(1, 4), temperatures=(0.0,))
    try:
        num = figures.write_figures([run_of(result)], tmp_path / "figures")
    except UnsupportedError as error:
        pytest.skip(str(error))
    drawings = sorted((tmp_path / "figures").glob("*.svg"))
    assert len(drawings) == num == 15
    for path in drawings:
        text = path.read_text()
        assert ElementTree.fromstring(text).tag == f"{SVG}svg"
        assert "var(" not in text
        assert "data-tip" not in text
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_without_fonts_the_drawings_are_there_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_FONT_FOLDERS", (str(tmp_path / "none"),))
    result = made_up_result(tasks=("gsm8k",), concurrencies=(1,), temperatures=(0.0,))
    with pytest.raises(UnsupportedError, match="no font was found"):
        figures.write_figures([run_of(result)], tmp_path)
    assert list(tmp_path.glob("*.svg"))
    assert not list(tmp_path.glob("*.png"))


def test_pages_are_made_without_torch() -> None:
    code = (
        "import sys;"
        "from blockdraft.report import figures, page, trace_page;"
        "print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
