"""The card of a shipped drafter: made from files alone, and from such as belong together."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from blockdraft.config import as_plain
from blockdraft.data.answers import Answer, AnswerFile
from blockdraft.interop.zlab import checkpoint_fingerprint, write_zlab
from blockdraft.training.checkpoint import CheckpointFolder
from blockdraft.training.recipe import DataRecipe, TrainRecipe
from tests.drafters.tiny import random_tensors, tiny_drafter_config

ROOT = Path(__file__).resolve().parents[2]
SOURCES = """
note = "Overlap was removed."
languages = "English"
[bars]
gsm8k = 2.8
mbpp = 3.0
humaneval = 2.4
[sources]
svamp = { licence = "MIT", from = "arkilpatel/SVAMP" }
mbpp_train = { licence = "CC BY 4.0", from = "mbpp" }
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_card", ROOT / "docs" / "write_card.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))  # as where the script is run
        spec.loader.exec_module(module)
    return module


def answer(number: int, source: str, num_tokens: int, temperature: float = 0.0) -> Answer:
    return Answer(
        id=f"{source}/{number}@0#0",
        source=source,
        temperature=temperature,
        seed=0,
        prompt_ids=(1, 2),
        token_ids=tuple(range(num_tokens)),
        finish_reason="stop",
        is_looping=False,
    )


def row(task: str, method: str, tau: float | None, **more: Any) -> dict[str, Any]:
    figures = {
        "num_prompts": 40,
        "concurrency": 1,
        "temperature": 0.0,
        "tau_ci95": None if tau is None else [tau - 0.1, tau + 0.1],
        "tau_pooled": tau,
        "mean_longest_repeat": 21.4,
        "speedup": 1.5,
        "conditional_acceptance_by_position": [0.7, 0.61, None],
    }
    return {"task": task, "method": method, "tau": tau, **figures, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Everything that a card is made of."""
    config = tiny_drafter_config("dflash2")
    target = {"target_name": "tiny", "target_fingerprint": "f" * 64, "trained_steps": "300"}
    write_zlab(tmp_path / "tiny-dflash2", config, random_tensors(config), target)
    data = DataRecipe(answers="/home/me/answers.jsonl", max_len=77)
    state = {"recipe": json.dumps(as_plain(TrainRecipe(data=data))), "facts": {}}
    CheckpointFolder(tmp_path / "run" / "checkpoints", keep=2).write(300, state)
    log = [{"step": s, "loss": 1.0, "elapsed_s": e, "slots_per_s": 900.0} for s, e in _CLOCK]
    log += [{"step": 300, "heldout": {"decoded/length": 2.345}}, {"step": 300, "event": "done"}]
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in log))
    answers = AnswerFile(tmp_path / "answers" / "answers.jsonl")
    answers.append([answer(i, "svamp", 100) for i in range(12)])
    answers.append([answer(0, "mbpp_train", 1500, 0.7), answer(1, "mbpp_train", 500)])
    (tmp_path / "answers" / "answers.meta.json").write_text('{"max_tokens": 256}')
    (tmp_path / "sources.toml").write_text(SOURCES)
    rows = [row("gsm8k", "mine", 2.91), row("gsm8k", "ngram", 1.4), row("mbpp", "mine", 2.5)]
    rows += [row("gsm8k", "mine", 9.9, temperature=1.0), row("gsm8k", "mine", 9.9, concurrency=8)]
    weights = checkpoint_fingerprint(tmp_path / "tiny-dflash2")
    drafters = {"mine": {"fingerprint": weights}, "ngram": {"name": "ngram"}, "plain": None}
    about = {
        "drafter": drafters,
        "dtype": "bfloat16",
        "kernels": "native",
        "machine": {"cpu": "a cpu", "threads": 2},
        "time": "2026-11-30T10:00:00+00:00",
    }
    result = {"provenance": about, "settings": {"max_tokens": 96}, "rows": rows}
    (tmp_path / "R.json").write_text(json.dumps(result))
    return tmp_path


#: Seconds of a run of an hour, resumed for half an hour.
_CLOCK = ((100, 1800.0), (200, 3600.0), (250, 900.0), (300, 1800.0))


def run(script: ModuleType, folder: Path, *more: str) -> int:
    arguments = [folder / "tiny-dflash2", "--run", folder / "run", "--answers", folder / "answers"]
    arguments += ["--evaluation", folder / "R.json", "--sources", folder / "sources.toml"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["write_card.py", *map(str, arguments), *more])
        return int(script.main())


def card(script: ModuleType, folder: Path) -> str:
    assert run(script, folder) == 0
    return (folder / "tiny-dflash2" / "README.md").read_text("utf-8")


def test_figures_stand_beside_their_control_and_bar(script: ModuleType, folder: Path) -> None:
    text = card(script, folder)
    assert "| gsm8k | 40 | **2.91** | 2.81-3.01 | 2.91 | 1.40 | 21 | 1.50 | 2.8 reached |" in text
    assert "| mbpp | 40 | **2.50** | 2.40-2.60 | 2.50 | - | 21 | 1.50 | 3 not reached |" in text
    assert "Not reached: mbpp." in text
    assert "Not measured: humaneval." in text
    assert "| gsm8k | 0.70 | 0.61 | - |" in text
    assert "| 9.9" not in text
    assert "The bar is the τ that this drafter was asked to reach" in text


def test_limits_are_those_of_the_figures_and_of_the_data(script: ModuleType, folder: Path) -> None:
    result = json.loads((folder / "R.json").read_text())
    result["rows"] += [
        row("gsm8k", "mine", 2.0, concurrency=16, speedup=0.5),
        row("mbpp", "mine", 3.0, concurrency=16, speedup=0.7),
        row("mbpp", "mine", 1.1, temperature=1.0, speedup=0.9),
    ]
    (folder / "R.json").write_text(json.dumps(result))
    text = card(script, folder).split("## Limits")[1].split("## Training")[0]
    assert "- Worst of these tasks: mbpp, τ 2.50." in text
    assert "- 16 requests at once, greedy: τ 2.50, 0.60 times plain speed." in text
    assert "- One request at a time, at temperature 1: τ 5.50, 1.20 times plain speed." in text
    assert "8 requests at once" not in text
    assert "Trained on English. Of the target's " in text
    assert "at most 77 tokens, answers of at most 256; measured on answers of at most 96" in text


def test_run_data_and_checkpoint(script: ModuleType, folder: Path) -> None:
    text = card(script, folder)
    assert "300 of 2,000 steps of 8 sequences in 1.5 hours (900 trained slots a second)" in text
    assert "decoded/length 2.35" in text or "decoded/length 2.34" in text
    assert "data.max_len = 77" in text
    assert "14 answers, 3,200 tokens. Overlap was removed." in text
    lines = re.findall(r"^\| (?:svamp|mbpp_train) .*$", text, re.MULTILINE)
    assert lines == [
        "| mbpp_train | 2 | 2,000 | 0, 0.7 | CC BY 4.0 | mbpp |",
        "| svamp | 12 | 1,200 | 0 | MIT | arkilpatel/SVAMP |",
    ]
    assert checkpoint_fingerprint(folder / "tiny-dflash2") in text
    assert "f" * 64 in text
    assert str(folder) not in text
    assert "/home/me" not in text


def test_the_control_has_no_bars(script: ModuleType, folder: Path) -> None:
    config = tiny_drafter_config("dflash")
    write_zlab(folder / "tiny-dflash2", config, random_tensors(config))
    result = json.loads((folder / "R.json").read_text())
    weights = checkpoint_fingerprint(folder / "tiny-dflash2")
    result["provenance"]["drafter"]["mine"]["fingerprint"] = weights
    (folder / "R.json").write_text(json.dumps(result))
    text = card(script, folder)
    assert "| mbpp | 40 | **2.50** | 2.40-2.60 | 2.50 | - | 21 | 1.50 | - |" in text
    assert "reached" not in text
    assert "The bar" not in text


def test_check_notices_a_change(script: ModuleType, folder: Path) -> None:
    assert run(script, folder, "--check") == 1
    text = card(script, folder)
    assert run(script, folder, "--check") == 0
    (folder / "tiny-dflash2" / "README.md").write_text(text.replace("2.91", "3.91"))
    assert run(script, folder, "--check") == 1


def test_parts_that_do_not_belong_together(
    script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script, folder, "--method", "ngram") == 1
    assert "ngram of the evaluation is not this checkpoint" in capsys.readouterr().err
    AnswerFile(folder / "answers" / "answers.jsonl").append([answer(0, "mystery", 3)])
    assert run(script, folder) == 1
    assert "no licence is known of mystery" in capsys.readouterr().err
    config = tiny_drafter_config("dflash2")
    write_zlab(folder / "tiny-dflash2", config, random_tensors(config, seed=1))
    assert run(script, folder) == 1
    assert "the evaluation is of other weights" in capsys.readouterr().err


def test_the_table_of_sources_has_every_set_of_the_recipe() -> None:
    import tomllib

    recipes = ROOT / "recipes" / "smollm2-135m"
    sets = tomllib.loads((recipes / "answers.toml").read_text())["sources"]
    table = tomllib.loads((recipes / "sources.toml").read_text())["sources"]
    assert {each["name"] for each in sets} <= set(table)
    for each in table.values():
        assert "SA" not in each["licence"]
        assert "NC" not in each["licence"]
