"""Tasks: by name, by file, from a data folder; what is wrong is said."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.evaluation.task_sources import SOURCES
from blockdraft.evaluation.tasks import DATA_VARIABLE, load_task


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_offline_set() -> None:
    task = load_task("offline")
    assert len(task.prompts) >= 40
    assert any(len(prompt.turns) == 2 for prompt in task.prompts)
    assert task.check is None


def test_a_smaller_sample_begins_a_larger_one() -> None:
    few, many = load_task("offline", num_prompts=5), load_task("offline", num_prompts=12)
    assert few.prompts == many.prompts[:5]
    assert len({prompt.id.split("-")[0] for prompt in many.prompts}) > 3


def test_asking_for_more_than_there_is_is_said() -> None:
    notes: list[str] = []
    task = load_task("offline", num_prompts=10_000, log=notes.append)
    assert len(task.prompts) == len(load_task("offline").prompts)
    assert len(notes) == 1
    assert "fewer than the 10000 asked for" in notes[0]


def test_own_files_are_sent_as_they_are(tmp_path: Path) -> None:
    rows = [{"id": 1, "turns": ["a {b}", "c"], "answer": 5}, {"id": "x", "turns": ["d"]}]
    task = load_task(str(write(tmp_path / "mine.jsonl", rows)))
    assert task.name == "mine"
    assert [prompt.turns for prompt in task.prompts] == [("a {b}", "c"), ("d",)]
    assert [prompt.answer for prompt in task.prompts] == ["5", None]


@pytest.mark.parametrize("place", ["eval/gsm8k.jsonl", "gsm8k.jsonl"])
@pytest.mark.parametrize("by_variable", [False, True])
def test_local_copies_are_wrapped(
    tmp_path: Path, place: str, by_variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / place, [{"id": "g", "turns": ["How many {x}?"], "answer": "3"}])
    if by_variable:
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    task = load_task("gsm8k", data_dir=None if by_variable else tmp_path)
    [prompt] = task.prompts
    assert prompt.turns[0].startswith("How many {x}?\nPlease reason")
    assert prompt.turns[0].endswith("\\boxed{}.")
    assert (prompt.answer, task.check) == ("3", "number")


HUB_ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "How?", "answer": "Some steps.\n#### 1,234"},
    "math500": {"problem": "How?", "answer": "\\frac{1}{2}", "unique_id": "a/b"},
    "humaneval": {
        "prompt": "def f():\n",
        "canonical_solution": " pass",
        "task_id": "HumanEval/0",
        "test": "def check(f): pass",
        "entry_point": "f",
    },
    "mbpp": {"prompt": "Write f.", "code": "f = 1", "task_id": 11, "test_list": ["assert f"]},
    "mt-bench": {"prompt": ["One?", "Two?"], "prompt_id": 81},
}


@pytest.mark.parametrize("name", HUB_ROWS)
def test_hub_rows_become_prompts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any, **options: Any) -> list[dict[str, Any]]:
        asked.append((args[0], args[1], options["split"]))
        return [HUB_ROWS[name]]

    fake: Any = types.ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    [prompt] = load_task(name).prompts
    assert asked == [SOURCES[name].hub]
    expected = {"gsm8k": "1234", "math500": "\\frac{1}{2}", "mt-bench": None}
    if name in expected:
        assert prompt.answer == expected[name]
    assert len(prompt.turns) == (2 if name == "mt-bench" else 1)
    if name == "humaneval":
        assert prompt.extra["entry_point"] == "f"
    if name == "mbpp":
        assert prompt.id == "11"


def test_a_hub_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any, **options: Any) -> None:
        raise ConnectionError("no network\nat all")

    fake: Any = types.ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(
        CheckpointError, match=r"could not be fetched .*: no network\); give --data"
    ):
        load_task("gsm8k")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("{oops", "line 1 is not JSON"),
        ('{"id": 1}', "row 1 is no prompt"),
        ('{"id": 1, "turns": []}', "row 1 is no prompt"),
        ('{"id": 1, "turns": ["a"]}\n{"turns": ["a"]}', "row 2 is no prompt"),
        ('{"id": 1, "turns": ["a"]}\n{"id": "1", "turns": ["b"]}', "has the id '1' twice"),
        ("[1]", "row 1 is no prompt"),
    ],
)
def test_rows_that_are_no_prompts(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_task(str(path))


def test_unknown_names_and_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no task 'gsm9k': not a name \(gsm8k, "):
        load_task("gsm9k")
    with pytest.raises(ConfigError, match="num_prompts is 0"):
        load_task("offline", num_prompts=0)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_task("gsm8k", data_dir=tmp_path / "none")
    with pytest.raises(ConfigError, match="is on no hub; give --data-dir"):
        load_task("long-context", data_dir=tmp_path)
