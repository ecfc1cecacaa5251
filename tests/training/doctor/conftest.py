"""A drafter that was really trained, on a tiny target, with the data it was trained on."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from blockdraft.cli.app import main
from blockdraft.targets.load import LoadedTarget, load_target
from blockdraft.targets.sources import resolve
from blockdraft.training.doctor.examine import Recorded, examine, open_recorded
from blockdraft.training.doctor.findings import Report
from blockdraft.training.doctor.subject import Subject, open_subject
from tests.cli.tiny_target import write_target

_ANSWERS = """
target = "{target}"
out = "{answers}"
max_tokens = 40
dtype = "float32"
[features]
layer_ids = [1, 4, 6]
[[sources]]
name = "words"
file = "{prompts}"
"""
_TRAIN = """
target = "{target}"
target_dtype = "float32"
[drafter]
num_layers = 1
block_size = 4
target_layer_ids = [1, 4, 6]
selector_rank = 8
selector_top_k = 4
mask_token_id = 271
[data]
features = "{answers}/shards"
drop_looping = false
heldout_share = 0.0
num_anchors = 16
check_share = 0.0
[optimizer]
lr = 4e-3
head_lr = 4e-3
ema_decay = 0.0
[schedule]
max_steps = 90
[batch]
sequences_per_step = 8
sequences_per_pass = 8
[run]
out = "{run}"
device = "cpu"
precision = "float32"
save_every = 0
evaluate_every = 0
"""


@dataclass(frozen=True)
class Trained:
    """Folders of the target, its answers and the drafter; the target in memory."""

    target: Path
    answers: Path
    drafter: Path
    loaded: LoadedTarget

    def subject(self, folder: Path | None = None, target: Path | None = None) -> Subject:
        """A checkpoint, this one's unless another is given."""
        source = resolve(str(target or self.target), progress=lambda _: None)
        return open_subject(str(folder or self.drafter), source)

    def recorded(self, folder: Path | None = None) -> Recorded:
        """The shards that it was trained on, or those of another folder."""
        found = open_recorded((folder or self.answers) / "shards", None, 8)
        assert found is not None
        return found

    def examine(self, subject: Subject | None = None, recorded: Recorded | None = None) -> Report:
        """The examination of a checkpoint and its data."""
        data = recorded or self.recorded()
        prompts = [list(answer.prompt_ids) for answer in data.samples]
        return examine(
            subject or self.subject(),
            self.loaded,
            prompts,
            data,
            max_tokens=32,
            log=lambda _: None,
        )


def run_cli(*arguments: object) -> None:
    """A command that must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["blockdraft", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("doctor")
    target, answers, run = write_target(folder / "tiny"), folder / "answers", folder / "run"
    prompts = folder / "prompts.jsonl"
    rows = [{"id": f"p{i}", "turns": [f"word {i} and {i * i}"]} for i in range(12)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"target": target, "answers": answers, "prompts": prompts, "run": run}
    for name, text in (("regenerate", _ANSWERS), ("train", _TRAIN)):
        recipe = folder / f"{name}.toml"
        recipe.write_text(text.format(**places))
        run_cli(name, recipe)
    loaded = load_target(str(target), dtype="float32", log=lambda _: None)
    return Trained(target, answers, run / "drafter", loaded)


@pytest.fixture
def drafter(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be spoiled."""
    return Path(shutil.copytree(trained.drafter, tmp_path / "drafter"))


@pytest.fixture
def answers(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the data, to be spoiled."""
    return Path(shutil.copytree(trained.answers, tmp_path / "answers"))


Edit = Callable[..., None]


@pytest.fixture
def edit(drafter: Path) -> Edit:
    """Changes keys of the copy's config.json, in the table where they stand."""

    def change(**changes: object) -> None:
        file = drafter / "config.json"
        config = json.loads(file.read_text())
        for key, value in changes.items():
            tables = [config, config["dflash_config"], config["rope_parameters"]]
            places = [place for place in tables if key in place]
            assert places, key
            for place in places:
                place[key] = value
        file.write_text(json.dumps(config))

    return change
