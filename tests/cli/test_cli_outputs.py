"""Files to write: folders that are missing are made, and what cannot be is said before the work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.report.results import made_up_result
from tests.report.traces import made_up_trace

#: No model is there: whoever looks for one first says so.
LINES = (
    "evaluate --target ./nowhere --out {out}",
    "check-lossless --target ./nowhere --out {out}",
    "plan --target ./nowhere --out {out}",
    "plan --target ./nowhere --svg {out}",
    "report nowhere.json -o {out}",
    "trace hi --target ./nowhere -o {out}",
    "trace hi --target ./nowhere --json {out}",
    "regenerate nowhere.toml --pack {out}",
)


@pytest.mark.parametrize("line", LINES)
def test_what_cannot_be_written_is_said_first(cli: Cli, tmp_path: Path, line: str) -> None:
    (tmp_path / "file").touch()
    for out, words in (
        (tmp_path, "is a folder; give the file to write"),
        (
            tmp_path / "file" / "below",
            f"cannot be written: {tmp_path}/file is a file and no folder",
        ),
        (tmp_path / "file" / "far" / "below", f"{tmp_path}/file is a file and no folder"),
    ):
        ran = cli(*line.format(out=out).split())
        assert (ran.code, ran.out) == (2, "")
        assert str(out) in ran.error
        assert words in ran.error


@pytest.mark.parametrize("line", LINES)
def test_help_says_that_folders_are_made(cli: Cli, line: str) -> None:
    ran = cli(line.split()[0], "--help")
    assert (
        "folders that are missing are made" in " ".join(ran.out.replace("│", " ").split()).lower()
    )


def test_missing_folders_are_made(cli: Cli, target_folder: Path, tmp_path: Path) -> None:
    common = ("--target", target_folder, "--dtype", "float32")
    (tmp_path / "T.json").write_text(json.dumps(made_up_trace(2)))
    result = made_up_result(tasks=("gsm8k",), concurrencies=(1,), temperatures=(0.0,))
    (tmp_path / "R.json").write_text(json.dumps(result))
    few = ("--num-prompts", 1, "--max-tokens", 4)
    small = ("--rows", "1,4", "--contexts", 16, "--concurrency", 1, "--repeats", 1)
    lines = {
        "trace": ("--from", tmp_path / "T.json", "-o"),
        "report": (tmp_path / "R.json", "-o"),
        "evaluate": (*common, *few, "--methods", "plain,ngram", "--out"),
        "plan": (*common, "--drafter", "ngram", *small, "--out"),
    }
    for command, words in lines.items():
        out = tmp_path / command / "new" / "file"
        ran = cli(command, *words, out)
        assert ran.code == 0, ran.err
        assert [path.name for path in out.parent.iterdir()] == ["file"]
