"""The reach of convolutions: tiny drafters trained, stopped, resumed and measured; the page."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.findings.convolution import main
from benchmarks.findings.convolution_heldout import Decoded, block_figures, decoded_figures
from benchmarks.findings.convolution_runs import Experiment, Variant, trained, variants
from blockdraft.config import build_recipe, load_recipe
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.data.regenerate import regenerate
from blockdraft.errors import ConfigError
from blockdraft.interop.zlab import read_zlab, write_zlab
from blockdraft.targets.sources import resolve
from blockdraft.training.assemble import assemble, read_data
from blockdraft.training.evaluations import fixed_batches, teacher_forced
from blockdraft.training.module import DrafterModule
from blockdraft.training.recipe import TrainRecipe
from tests.cli.tiny_target import write_target
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.training.tiny_training import SINGLE

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
target_dtype = "float32"
[drafter]
num_layers = 2
target_layer_ids = [1, 6]
selector_rank = 4
selector_top_k = 4
mask_token_id = 270
[data]
drop_looping = false
heldout_share = 0.3
num_anchors = 4
[optimizer]
name = "muon"
[batch]
sequences_per_step = 4
sequences_per_pass = 2
[run]
device = "cpu"
precision = "float32"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, and shards of its answers."""
    place = tmp_path_factory.mktemp("convolution")
    lines = [{"id": f"p{i}", "turns": [f"word {i} and {i * i}"]} for i in range(12)]
    prompts = place / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = {
        "target": str(write_target(place / "tiny")),
        "out": str(place / "answers"),
        "max_tokens": 24,
        "dtype": "float32",
        "features": {"layer_ids": [1, 6]},
        "sources": [{"name": "words", "file": str(prompts)}],
    }
    regenerate(build_recipe(asked, AnswersRecipe), log=lambda _: None)
    (place / "train.toml").write_text(RECIPE)
    return place


def arguments(place: Path, work: Path, *more: object) -> list[str]:
    """Of the script, on the tiny target; `more` comes last."""
    given = {
        "--features": place / "answers" / "shards",
        "--recipe": place / "train.toml",
        "--out": work / "result.json",
        "--work": work,
        "--steps": 3,
        "--decoded": 2,
        "--tokens": 12,
    }
    words = [str(word) for pair in given.items() for word in pair]
    settings = (f"target={place / 'tiny'}", "drafter.draft_vocab_size=64", "run.log_every=1")
    words += [word for setting in settings for word in ("--set", setting)]
    return [*words, "--blocks", "4", "--kernels", "2", "3", *map(str, more)]


@pytest.fixture(scope="module")
def work(place: Path) -> Path:
    """Two drafters, of which the first was stopped and gone on with, measured."""
    work = place / "work"
    stop = ("--set", "run.stop_after_minutes=1e-9")
    assert main(arguments(place, work, *stop)) == 1
    assert not (work / "result.json").exists()
    assert main(arguments(place, work)) == 0
    return work


def result(work: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((work / "result.json").read_text())
    return found


def test_variants_are_compared_with_their_neighbours() -> None:
    found = [each.name for each in variants([8, 16], [2, 3], [0, 1])]
    first = ["block8-kernel2-seed0", "block8-kernel3-seed0"]
    longer = ["block16-kernel2-seed0", "block16-kernel3-seed0"]
    again = ["block8-kernel2-seed1", "block8-kernel3-seed1"]  # the first block size alone
    assert found == [*first, *longer, *again]


def test_the_result_has_every_drafter(work: Path) -> None:
    found = result(work)
    two, three = found["rows"]
    assert [two["reach"], three["reach"]] == [1, 2]
    assert two["training"]["num_slots"] == three["training"]["num_slots"] > 0
    assert two["training"]["data"] == three["training"]["data"]
    sizes = [each["training"]["num_conv_parameters"] for each in (two, three)]
    assert sizes[1] == 1.5 * sizes[0] > 0
    for row in (two, three):
        assert row["training"]["num_steps"] == 3
        assert row["training"]["wall_s"] > 0
        assert row["training"]["commit"]
        assert row["heldout"]["num_answers"] == row["training"]["num_heldout"] >= 2
        for choice in ("unary", "selector", "oracle"):
            own = row["heldout"][choice]
            assert 1 <= own["length"] <= 4
            assert len(own["right_by_position"]) == 3
            assert own["length_ci95"][0] <= own["length"] <= own["length_ci95"][1]
        assert 1 <= row["decoded"]["tau_pooled"] <= 4
        assert row["decoded"]["num_answers"] == 2
    assert two["heldout"]["unary"]["over_base"] == 1
    ratio = three["heldout"]["unary"]["length"] / two["heldout"]["unary"]["length"]
    assert three["heldout"]["unary"]["over_base"] == pytest.approx(ratio)
    assert two["decoded"]["texts_sha256"] == three["decoded"]["texts_sha256"]


def test_the_result_says_what_was_done_and_not_where(place: Path, work: Path) -> None:
    found = result(work)
    assert found["settings"]["recipe"]["drafter"]["selector_rank"] == 4
    assert found["settings"]["recipe"]["data"]["features"].startswith("tiny, index ")
    names = [each["source"] for each in found["provenance"]["drafter"]]
    assert names == [row["name"] for row in found["rows"]]
    # A target in a folder says so itself; there are no other paths.
    found["provenance"]["target"].pop("source")
    assert str(place) not in json.dumps(found)


def test_stopped_and_resumed_it_is_the_same_drafter(place: Path, work: Path) -> None:
    name, straight = "block4-kernel2-seed0", place / "straight"
    assert main(arguments(place, straight, "--only", name)) == 0
    assert [each.name for each in straight.iterdir()] == [name]
    here, there = (read_zlab(each / name / "drafter")[1] for each in (work, straight))
    assert all(here[key].equal(there[key]) for key in here)
    events = (work / name / "log.jsonl").read_text()
    assert "resumed at step 1 of 3" in events
    slots = [trained(each / name)["num_slots"] for each in (work, straight)]
    assert slots[0] == slots[1]


def test_a_finished_run_is_not_touched(place: Path, work: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert main(arguments(place, work, "--only", "block4-kernel2-seed0")) == 0
    assert files == {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--steps", 4), "schedule .*use another --work"),
        (("--set", "data.num_anchors=3"), "holds a run with data"),
        (("--only", "block4"), "is none of block4-kernel2-seed0, block4-kernel3-seed0"),
        (("--set", "drafter.method=dflash"), "it has no convolutions"),
    ],
)
def test_mistakes_are_refused(
    place: Path, work: Path, more: tuple[object, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        main(arguments(place, work, *more))


def test_figures_are_those_of_training(place: Path, work: Path) -> None:
    """One answer at a time, from the written drafter: what training's own evaluation says."""
    sets = (f"target={place / 'tiny'}", f"data.features={place / 'answers' / 'shards'}")
    shape = ("drafter.block_size=4", "drafter.draft_vocab_size=64", "data.num_heldout=1000")
    recipe = load_recipe(place / "train.toml", TrainRecipe, (*sets, *shape))
    assembled = assemble(recipe, SINGLE, lambda _: None, has_check=False)
    config, tensors = read_zlab(work / "block4-kernel2-seed0" / "drafter")
    embedding = assembled.parts.module._embedding
    assert isinstance(embedding, torch.Tensor)
    module = DrafterModule.from_tensors(config, tensors, embedding)
    data = read_data(recipe, resolve(recipe.target), lambda: pytest.fail("no target is needed"))
    batches = fixed_batches(recipe, data.samples, data.split.heldout, 0)
    expected = teacher_forced(assembled.parts.objective, batches, torch.device("cpu"))(0, module)
    found = result(work)["rows"][0]["heldout"]
    assert found["loss"] == pytest.approx(expected["heldout/loss"], rel=1e-5)
    for name in ("unary", "selector", "oracle"):
        assert found[name]["length"] == pytest.approx(expected[f"heldout/{name}_length"])
        for i, share in enumerate(found[name]["right_by_position"], 1):
            assert share == pytest.approx(expected[f"heldout/{name}_by_position/{i}"])


def test_recipes_differ_in_what_is_compared_alone(tmp_path: Path) -> None:
    config = tiny_drafter_config("dflash")
    start = tmp_path / "start"
    write_zlab(start, config, random_tensors(config), {"trained_steps": "7"})
    experiment = Experiment(recipe=TrainRecipe(), work=tmp_path / "work", start_from=start)
    assert experiment.start_name.startswith("dflash, its last run 7 steps, ")
    wide = config.block_size + 4
    one, two = (
        experiment.recipe_of(Variant(block_size=block, kernel_size=kernel, seed=1))
        for block, kernel in ((config.block_size, 2), (wide, 3))
    )
    assert one.drafter.start_from == str(start)
    copy, tensors = read_zlab(two.drafter.start_from)
    assert copy == dataclasses.replace(config, block_size=wide)
    assert all(tensors[name].equal(each) for name, each in random_tensors(config).items())
    same: dict[str, Any] = {"block_size": 2, "conv_kernel_size": 1, "start_from": ""}
    drafters = [dataclasses.replace(each.drafter, **same) for each in (one, two)]
    assert drafters[0] == drafters[1]
    assert one.run.seed == two.run.seed == 1
    assert (one.data, one.optimizer, one.schedule) == (two.data, two.optimizer, two.schedule)


def sums(lengths: list[float], blocks: list[float]) -> list[dict[str, torch.Tensor]]:
    """Of answers with these tokens and blocks, for every choice alike; blocks of 2 rows."""
    found = []
    for length, count in zip(lengths, blocks, strict=True):
        each = {"loss": torch.tensor(2.0), "weight": torch.tensor(1.0)}
        for name in ("unary", "selector", "oracle"):
            each[f"{name}_length"] = torch.tensor(length)
            each[f"{name}_length_count"] = torch.tensor(count)
            each[f"{name}_by_position"] = torch.tensor([length - count])
            each[f"{name}_by_position_count"] = torch.tensor([count])
        found.append(each)
    return found


def test_figures_by_hand() -> None:
    own, base = sums([6.0, 4.0], [4.0, 3.0]), sums([5.0, 4.0], [4.0, 3.0])
    found = block_figures(own, base)
    assert (found["num_answers"], found["num_blocks"], found["loss"]) == (2, 7, 2.0)
    assert found["oracle"]["length"] == pytest.approx(10 / 7)
    assert found["oracle"]["over_base"] == pytest.approx(10 / 9)
    assert found["oracle"]["right_by_position"] == pytest.approx([3 / 7])
    # Drawn together: both answers, or one of them twice.
    assert found["oracle"]["over_base_ci95"] == pytest.approx((1.0, 6 / 5))
    assert block_figures(own, None)["unary"]["over_base"] is None
    fast, slow = (
        Decoded(committed=(8, 8), cycles=cycles, texts_sha256="a", drafter={})
        for cycles in ((4, 4), (4, 8))
    )
    assert decoded_figures(fast, slow)["over_base"] == pytest.approx(1.5)
    assert decoded_figures(slow, None)["tau_pooled"] == pytest.approx(16 / 12)


def test_the_page_is_made_from_the_result(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    script = importlib.import_module("update_figures")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    empty = "# T\n<!-- figures: findings_convolution -->\n<!-- end figures -->\nend\n"
    assert script.rewrite(empty) == empty
    wide = result(work)
    # A drafter of longer blocks, with nothing to compare with.
    other = json.loads(json.dumps(wide["rows"][0])) | {"block_size": 6, "seed": 1}
    for choice in ("unary", "selector", "oracle"):
        other["heldout"][choice]["right_by_position"] = [0.5] * 5
        other["heldout"][choice] |= {"over_base": None, "over_base_ci95": None}
    file = tmp_path / "findings_convolution.json"
    file.write_text(json.dumps(wide | {"rows": [other, *wide["rows"]]}))
    text = script.rewrite(empty)
    assert text.startswith("# T\n")
    assert text.endswith("<!-- end figures -->\nend\n")
    assert script.rewrite(text) == text
    table = [line for line in text.splitlines() if line.startswith("|")]
    cells = [line.count("|") for line in table]
    assert set(cells[:5]) == {16}
    assert set(cells[5:]) == {10}
    assert len(table) == 2 + 3 + 2 + 9
    assert [line.split(" | ")[:4] for line in table[2:5]] == [
        ["| 4", "2", "1", "0"],
        ["| 4", "3", "2", "0"],
        ["| 6", "2", "1", "1"],
    ]
    assert "All drafters wrote the same texts." in text
    file.unlink()
    with pytest.raises(FileNotFoundError):  # figures that nothing backs
        script.rewrite(text)
