"""`blockdraft regenerate` at the command line: summary, progress, resuming, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockdraft.cli.regenerate import rate_text
from blockdraft.data.answers import read_answers
from blockdraft.data.regenerate import Summary
from tests.cli.conftest import Cli

RECIPE = """
target = "{target}"
out = "{folder}/out"
data_dir = "{folder}"
dtype = "float32"
max_tokens = {max_tokens}
batch_size = 4
[features]
layer_ids = [0, 2]
shard_samples = 3
reserve_gib = 0
[[sources]]
name = "p"
file = "p.jsonl"
"""


@pytest.fixture
def recipe(target_folder: Path, tmp_path: Path) -> Path:
    rows = [{"id": f"p/{i}", "turns": [f"say hello {i}"]} for i in range(10)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(target=target_folder, folder=tmp_path, max_tokens=6))
    return path


def test_answers_are_made_and_summed_up(cli: Cli, recipe: Path) -> None:
    ran = cli("regenerate", recipe, "--set", "max_samples=4")
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    assert (summary["num_planned"], summary["num_answered"], summary["num_left"]) == (4, 4, 0)
    answers = read_answers(recipe.parent / "out" / "answers.jsonl")
    assert len(answers) == 4
    assert summary["num_tokens"] == sum(len(answer.token_ids) for answer in answers)
    assert "hidden states: 256 bytes a token" in ran.err
    assert "4/4 answers, " in ran.err
    again = json.loads(cli("regenerate", recipe).out)
    assert (again["num_resumed"], again["num_answered"]) == (4, 6)


def test_answers_are_packed_and_unpacked(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    assert cli("regenerate", recipe).code == 0
    packed = tmp_path / "kept.npz"
    assert json.loads(cli("regenerate", recipe, "--pack", packed).out)["num_answers"] == 10
    ran = cli("regenerate", recipe, "--unpack", packed, "--set", f"out={tmp_path}/again")
    assert json.loads(ran.out)["num_answers"] == 10
    made = [tmp_path / name / "answers.jsonl" for name in ("out", "again")]
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "targt=x"], "the recipe's key targt does not exist; did you mean target?"),
        (["--set", "data_dir=/none"], "/none/p.jsonl does not exist"),
        (["--set", "features.layer_ids=[8]"], "has layers 0 to 7"),
        (["--pack", "a", "--unpack", "b"], "contradict each other"),
    ],
)
def test_what_is_wrong_is_one_line(cli: Cli, recipe: Path, args: list[str], message: str) -> None:
    ran = cli("regenerate", recipe, *args)
    assert ran.code == 2
    assert message in ran.error


def test_a_full_disk_is_a_failure(cli: Cli, recipe: Path) -> None:
    ran = cli("regenerate", recipe, "--set", "features.reserve_gib=1e9")
    assert ran.code == 1
    assert json.loads(ran.out)["stopped_by"] == "disk"
    assert "are kept as reserve" in ran.err


def test_sigterm_saves_what_is_there(recipe: Path, target_folder: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.format(target=target_folder, folder=tmp_path, max_tokens=200))
    command = [sys.executable, "-c", "from blockdraft.cli.app import main; main()", "regenerate"]
    command += [str(recipe), "--set", "features.shard_samples=2", "--set", "batch_size=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        shards = tmp_path / "out" / "shards"
        deadline = time.monotonic() + 60
        while not list(shards.glob("*.safetensors")) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    num_saved = len(read_answers(tmp_path / "out" / "answers.jsonl"))
    assert 2 <= num_saved < 10


def test_the_rate_counts_this_run_alone() -> None:
    summary = Summary(out="o", num_planned=1000, num_resumed=500, num_answered=100)
    summary.seconds, summary.tokens_per_s = 1000.0, 1234.4
    assert rate_text(summary) == "1,234 tokens/s, 1:06:40 left"
    assert rate_text(Summary(out="o", num_planned=3)) == "0 tokens/s, 0:00:00 left"
