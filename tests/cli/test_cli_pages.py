"""`report` and `trace`: what is written, and what is refused before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.report.results import made_up_result
from tests.report.traces import made_up_trace


def test_a_report_is_written(cli: Cli, tmp_path: Path) -> None:
    result, page = tmp_path / "R.json", tmp_path / "new" / "R.html"
    result.write_text(json.dumps(made_up_result(tasks=("gsm8k",))))
    ran = cli("report", result, "-o", page, "--title", "My <traffic>")
    assert (ran.code, ran.out) == (0, "")
    assert f"wrote {page}" in ran.err
    assert "<h1>My &lt;traffic&gt;</h1>" in page.read_text()
    assert [path.name for path in page.parent.iterdir()] == ["R.html"]


def test_figures_are_written(cli: Cli, tmp_path: Path) -> None:
    result = tmp_path / "R.json"
    small = made_up_result(tasks=("gsm8k",), concurrencies=(1,), temperatures=(0.0,))
    result.write_text(json.dumps(small))
    ran = cli("report", result, "--figures", tmp_path / "figures")
    assert (tmp_path / "figures" / "speedup_t0_c1.svg").is_file()
    assert ran.code == 0 or "no font was found" in ran.error


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["report", "R.json"], 2, "nothing to write"),
        (["report", "none.json", "-o", "x.html"], 2, "is not a file"),
        (["report", "R.json", "R.json", "-o", "x.html"], 2, "given twice"),
        (["report", "T.json", "-o", "x.html"], 1, "has no rows"),
        (["trace", "-o", "x.html"], 2, "give either a PROMPT"),
        (["trace", "hello", "--from", "T.json", "-o", "x.html"], 2, "give either a PROMPT"),
        (["trace", "hello"], 2, "nothing to write"),
        (["trace", "", "-o", "x.html"], 2, "the prompt is empty"),
        (["trace", "--from", "T.json", "--seed", "1", "-o", "x.html"], 2, "--seed: of no use with"),
        (["trace", "--from", "R.json", "-o", "x.html"], 1, "is no trace"),
        (["trace", "--from", "old.json", "-o", "x.html"], 1, "of version 0"),
        (["trace", "--from", "part.json", "-o", "x.html"], 1, "has no cycles, tokens"),
    ],
)
def test_mistakes_are_one_line(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = made_up_trace(2)
    part = {key: value for key, value in trace.items() if key not in ("cycles", "tokens")}
    files = {"R": made_up_result(), "T": trace, "old": trace | {"version": 0}, "part": part}
    for name, content in files.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    ran = cli(*args)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.error
    assert not Path("x.html").exists()


def test_a_trace_is_recorded_and_shown_again(
    cli: Cli, target_folder: Path, drafter_folder: Path, tmp_path: Path
) -> None:
    common = ("--target", target_folder, "--dtype", "float32", "--max-tokens", 12)
    first, again = tmp_path / "T.html", tmp_path / "again.html"
    for drafter in (drafter_folder, "ngram", "none"):
        ran = cli(
            *("trace", "hello", *common, "--drafter", drafter),
            *("-o", first, "--json", tmp_path / "T.json"),
        )
        assert ran.code == 0, ran.err
        assert cli("trace", "--from", tmp_path / "T.json", "-o", again).code == 0
        assert again.read_text() == first.read_text()
        trace = json.loads((tmp_path / "T.json").read_text())
        said = json.loads(cli("generate", "hello", *common, "--no-drafter", "--json").out)
        assert trace["text"] == said["text"]


def test_a_raw_prompt_has_no_template(cli: Cli, target_folder: Path, tmp_path: Path) -> None:
    common = ("--target", target_folder, "--dtype", "float32", "--max-tokens", 3, "--no-drafter")
    cli("trace", "-", "--raw", *common, "--json", tmp_path / "T.json", stdin=b"hello\n")
    raw = json.loads((tmp_path / "T.json").read_text())
    cli("trace", "hello", *common, "--json", tmp_path / "T.json")
    chat = json.loads((tmp_path / "T.json").read_text())
    assert raw["prompt"] == chat["prompt"] == "hello"
    assert raw["prompt_tokens"] < chat["prompt_tokens"]
