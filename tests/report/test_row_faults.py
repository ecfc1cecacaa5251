"""A result whose values are of the wrong kind is named with its row, never half a page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import CheckpointError
from blockdraft.report.load import load_runs, load_trace
from blockdraft.report.page import report_page
from blockdraft.report.trace_page import page_of_file
from tests.report.results import made_up_result
from tests.report.traces import made_up_trace

BAD: tuple[Any, ...] = (math.inf, math.nan, {}, [], None, "", "x", 1.5, 10**400, True, {"p50": "x"})


def _page(path: Path, result: dict[str, Any]) -> str | None:
    """The page, or None where the file is refused; anything else fails the test."""
    path.write_text(json.dumps(result))
    try:
        runs = load_runs([path])
    except CheckpointError:
        return None
    return report_page(runs)


@pytest.mark.parametrize("place", [0, -1])
def test_a_page_is_made_or_the_file_refused(tmp_path: Path, place: int) -> None:
    whole = made_up_result(tasks=("gsm8k",), concurrencies=(1,), temperatures=(0.0,))
    path = tmp_path / "R.json"
    assert _page(path, whole)
    refused = 0
    for key, value in whole["rows"][place].items():
        inner = (
            [{**value, name: bad} for name in value for bad in BAD]
            if isinstance(value, dict)
            else []
        )
        for bad in (*BAD, *inner):
            rows = list(whole["rows"])
            rows[place] = {**rows[place], key: bad}
            refused += _page(path, whole | {"rows": rows}) is None
    for name in ("provenance", "settings"):
        for bad in BAD:
            refused += _page(path, whole | {name: bad}) is None
    for name in ("target", "machine"):
        for bad in BAD:
            refused += _page(path, whole | {"provenance": {name: bad}}) is None
    assert refused > 100


def test_a_row_s_fault_is_told(tmp_path: Path) -> None:
    result = made_up_result(tasks=("gsm8k",), concurrencies=(1,))
    result["rows"][2]["tau"] = "3.6"
    (tmp_path / "R.json").write_text(json.dumps(result))
    with pytest.raises(CheckpointError, match=r"R\.json: row 2 has a tau that is not a number"):
        load_runs([tmp_path / "R.json"])


def test_gains_over_other_methods_have_a_table(tmp_path: Path) -> None:
    whole = made_up_result(tasks=("gsm8k",), concurrencies=(1,), temperatures=(0.0,))
    path = tmp_path / "R.json"
    page = _page(path, whole)
    assert page is not None
    assert "Methods against each other" not in page
    gain = {"tau_ratio": 1.234, "tau_ratio_ci95": [1.1, 1.4], "num_prompts": 20}
    whole["rows"][-1]["against"] = {"runs/dflash<1>": gain | {"speed_ratio": None}}
    page = _page(path, whole)
    assert page is not None
    table = page.split("Methods against each other")[1].split("</section>")[0]
    for word in (">dflash&lt;1&gt;<", ">1.23<", ">1.10\u20131.40<", ">\u2013<"):
        assert word in table
    for bad in (
        7,
        {"x": 7},
        {"x": gain | {"tau_ratio": [1, 2]}},
        {"x": gain | {"tau_ratio_ci95": 1}},
    ):
        whole["rows"][-1]["against"] = bad
        assert _page(path, whole) is None


@pytest.mark.parametrize("key", ["cycles", "params", "provenance", "speculation"])
def test_half_a_trace_is_named(tmp_path: Path, key: str) -> None:
    path = tmp_path / "T.json"
    path.write_text(json.dumps(made_up_trace(2) | {key: 7}))
    with pytest.raises(CheckpointError, match=r"T\.json is no whole trace .*; record it again"):
        page_of_file(load_trace(path), path)
