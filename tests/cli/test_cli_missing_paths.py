"""A path where nothing is, is wrong usage (2); a file that holds the wrong thing, a failure (1)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

USAGE, FAILURE = 2, 1

RECIPES = {
    "answers": 'target = "{target}"\nout = "out"\n[[sources]]\nname = "p"\nfile = "p.jsonl"\n',
    "features": 'target = "{target}"\n[data]\nfeatures = "nowhere"\n[run]\nout = "run"\n',
    "training": 'target = "{target}"\n[data]\nanswers = "nowhere.jsonl"\n[run]\nout = "run"\n',
}

ROW = {
    "id": "a",
    "source": "s",
    "temperature": 0.0,
    "seed": 1,
    "prompt_ids": [1, 2],
    "token_ids": [3, 4],
    "finish_reason": "stop",
    "is_looping": False,
}

#: {target} is a model's folder, {drafter} a drafter's; files of WRONG and RECIPES lie about.
MISSING = (
    "generate hi --target ./nowhere",
    "generate hi --target nowhere.gguf",
    "generate hi --target {target} --drafter ./nowhere",
    "generate hi --target {target} --drafter ./nowhere+ngram",
    "demo --target ./nowhere",
    "demo --target {target} --drafter ./nowhere",
    "evaluate --out R.json --target ./nowhere",
    "evaluate --out R.json --target {target} --methods plain,./nowhere",
    "evaluate --out R.json --target {target} --tasks nowhere.jsonl",
    "evaluate --out R.json --target {target} --tasks gsm8k --data-dir nowhere",
    "check-lossless --target ./nowhere",
    "check-lossless --target {target} --drafter ./nowhere",
    "check-lossless --target {target} --task nowhere.jsonl",
    "check-lossless --target {target} --task gsm8k --data-dir nowhere",
    "plan --target ./nowhere",
    "plan --target {target} --drafter ./nowhere",
    "plan --target {target} --from nowhere.json",
    "plan --target {target} --from {target}",
    "report nowhere.json -o R.html",
    "report {target} -o R.html",
    "trace hi -o T.html --target ./nowhere",
    "trace hi -o T.html --target {target} --drafter ./nowhere",
    "trace --from nowhere.json -o T.html",
    "pull ./nowhere",
    "pull nowhere.gguf",
    "inspect ./nowhere",
    "inspect {drafter}/config.json",
    "doctor --target ./nowhere",
    "doctor --target {target} --drafter ./nowhere",
    "doctor --target {target} --drafter {drafter} --features nowhere",
    "doctor --target {target} --drafter {drafter} --answers nowhere.jsonl",
    "doctor --target {target} --drafter {drafter} --answers {target}",
    "init-drafter ./nowhere -o new",
    "init-drafter {target} -o new --draft-vocab-ids nowhere",
    "regenerate nowhere.toml",
    "regenerate answers.toml",
    "regenerate answers.toml --unpack nowhere.npz",
    "train nowhere.toml",
    "train features.toml",
    "train training.toml",
    "train training.toml --set drafter.start_from=nowhere",
)

WRONG = (
    "evaluate --out R.json --target {target} --tasks wrong",
    "check-lossless --target {target} --task wrong",
    "plan --target {target} --from wrong",
    "report wrong -o R.html",
    "trace --from wrong -o T.html",
    "inspect {target}",
    "generate hi --target {target} --drafter empty",
    "doctor --target {target} --drafter empty",
    "doctor --target {target} --drafter {drafter} --features empty",
    "doctor --target {target} --drafter {drafter} --answers wrong",
    "regenerate answers.toml --unpack wrong",
    "regenerate answers.toml --pack kept.npz",
    "train features.toml --set data.features=empty",
    "evaluate --out R.json --target {target} --tasks deep",
    "check-lossless --target {target} --task deep",
    "plan --target {target} --from deep",
    "report deep -o R.html",
    "trace --from deep -o T.html",
    "inspect deep_folder",
    "generate hi --target deep_folder",
    "generate hi --target {target} --drafter deep_folder",
    "doctor --target {target} --drafter {drafter} --features deep_folder",
    "doctor --target {target} --drafter {drafter} --answers deep",
    "doctor --target {target} --drafter {drafter} --answers deep_folder/fine.jsonl",
    "doctor --target {target} --drafter {drafter} --answers infinite",
    "regenerate deep.toml",
    "train training.toml --set data.answers=deep",
    "train training.toml --set data.answers=infinite",
    "train training.toml --set data.answers=wrong",
)


@pytest.fixture
def words(
    target_folder: Path, drafter_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    """Goes into a folder with recipes, a file that is nothing known, and an empty folder."""
    work = tmp_path / "work"
    (work / "empty").mkdir(parents=True)
    (work / "wrong").write_text("nothing\n")
    for name, text in RECIPES.items():
        (work / f"{name}.toml").write_text(text.format(target=target_folder))
    deep = "[" * 100_000 + "\n"
    for name in ("deep", "p.jsonl", "config.json", "index.json", "answers.meta.json"):
        path = work / name if name == "deep" else work / "deep_folder" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(deep)
    (work / "deep_folder" / "fine.jsonl").write_text(json.dumps(ROW) + "\n")
    (work / "infinite").write_text(json.dumps(ROW | {"seed": math.inf}) + "\n")
    recipe = 'data_dir = "."\n' + RECIPES["answers"].format(target=target_folder)
    (work / "deep.toml").write_text(recipe.replace("p.jsonl", "deep_folder/p.jsonl"))
    monkeypatch.chdir(work)
    monkeypatch.delenv("BLOCKDRAFT_DATA", raising=False)
    return {"target": target_folder, "drafter": drafter_folder}


@pytest.mark.parametrize("line", MISSING)
def test_a_path_where_nothing_is_is_wrong_usage(
    cli: Cli, words: dict[str, Path], line: str
) -> None:
    ran = cli(*(word.format(**words) for word in line.split()))
    assert (ran.code, ran.out) == (USAGE, ""), ran.err
    assert "nowhere" in ran.error or str(words["target"]) in ran.error or ".json" in ran.error
    assert not any(Path(made).exists() for made in ("R.json", "R.html", "T.html", "new", "run"))


@pytest.mark.parametrize("line", WRONG)
def test_a_file_that_is_something_else_is_a_failure(
    cli: Cli, words: dict[str, Path], line: str
) -> None:
    ran = cli(*(word.format(**words) for word in line.split()))
    assert (ran.code, ran.out) == (FAILURE, ""), ran.err
    if "deep" in line or "infinite" in line:
        where = ("deep_folder/", "deep:1 ", "deep ", "deep,", "infinite:1 ")
        assert any(word in ran.error for word in where), ran.error
        assert len(ran.error) < 250
