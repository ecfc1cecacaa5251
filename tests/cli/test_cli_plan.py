"""`blockdraft plan`: tables, JSON and plot; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Ran


@pytest.fixture
def plan(cli: Cli, target_folder: Path) -> Any:
    def run(*args: object) -> Ran:
        sizes = ("--rows", "1,4", "--contexts", "12", "--concurrency", "1,2", "--repeats", 1)
        return cli("plan", "--target", target_folder, "--dtype", "float32", *sizes, *args)

    return run


def test_tables_json_and_plot(plan: Any, tmp_path: Path) -> None:
    out, svg = tmp_path / "deep" / "P.json", tmp_path / "deep" / "P.svg"
    ran = plan("--drafter", "ngram", "--acceptance", "0.4,0.8", "--out", out, "--svg", svg)
    assert ran.code == 0, ran.err
    assert "acceptance 0.40: best number of drafted tokens" in ran.out
    found = json.loads(out.read_text())
    assert found["rows"] == [1, 4]
    assert found["provenance"]["drafter"]["name"] == "ngram"
    assert found["bandwidth_gb_s"] > 0.1
    assert {gain["acceptance"] for gain in found["gains"]} == {
        "acceptance 0.40",
        "acceptance 0.80",
    }
    assert svg.read_text().startswith("<svg ")


def test_acceptance_of_a_measured_run_and_of_a_tau(plan: Any, tmp_path: Path) -> None:
    result = tmp_path / "R.json"
    row = {"task": "a", "method": "ngram", "temperature": 0}
    counts = {
        "accepted_by_position": [5, 2, 1],
        "drafted_by_position": [10, 10, 10],
        "cycles": 10,
    }
    result.write_text(json.dumps({"rows": [{**row, **counts}]}))
    ran = plan("--drafter", "ngram", "--from", result, "--tau", 3.0)
    assert ran.code == 0, ran.err
    assert "a, ngram, T 0: best number" in ran.out
    assert "acceptance 0.68" in ran.out  # seven drafts: 1 + r + .. + r^7 = 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "a"), "--task and --method choose rows of --from; give that too"),
        (("--acceptance", "x"), "--acceptance is 'x'; give numbers separated by commas"),
        (("--acceptance", "2"), "acceptance is 2.0; it must be 0 to 1"),
        (
            ("--drafter", "none", "--tau", 2),
            "--tau says little without a block: give --drafter or --num-draft-tokens",
        ),
    ],
)
def test_wrong_usage(plan: Any, options: tuple[object, ...], message: str) -> None:
    ran = plan(*options)
    assert (ran.code, ran.out, ran.error) == (2, "", f"error: {message}")
