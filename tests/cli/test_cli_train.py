"""`blockdraft train` on a tiny target: prompts, answers, training, and a drafter that serves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blockdraft.interop.zlab import read_provenance, read_zlab
from tests.cli.conftest import Cli

ANSWERS = """
target = "{target}"
out = "{out}"
max_tokens = 24
dtype = "float32"
[features]
layer_ids = [1, 4, 6]
[[sources]]
name = "words"
file = "{prompts}"
"""
TRAIN = """
target = "{target}"
target_dtype = "float32"
[drafter]
method = "dflash2"
num_layers = 2
block_size = 4
target_layer_ids = [1, 6]
selector_rank = 4
selector_top_k = 4
draft_vocab_size = 64
mask_token_id = 270
[data]
features = "{answers}/shards"
drop_looping = false
heldout_share = 0.2
num_anchors = 4
[schedule]
max_steps = 4
[batch]
sequences_per_step = 4
sequences_per_pass = 2
[run]
out = "{run}"
device = "cpu"
precision = "float32"
log_every = 1
save_every = 0
evaluate_every = 2
decode_every = 4
"""


@pytest.fixture
def recipe(cli: Cli, target_folder: Path, tmp_path: Path) -> Path:
    """A training recipe whose answers have been made."""
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers"
    lines = [{"id": f"p{i}", "turns": [f"word {i} and {i * i}"]} for i in range(12)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = tmp_path / "answers.toml"
    first.write_text(ANSWERS.format(target=target_folder, out=answers, prompts=prompts))
    ran = cli("regenerate", first)
    assert ran.code == 0, ran.err
    file = tmp_path / "train.toml"
    file.write_text(TRAIN.format(target=target_folder, answers=answers, run=tmp_path / "run"))
    return file


def losses(recipe: Path, run: str = "run") -> list[float]:
    lines = (recipe.parent / run / "log.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def printed(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_drafter_is_trained_and_serves(cli: Cli, recipe: Path, target_folder: Path) -> None:
    ran = cli("train", recipe)
    found = printed(ran)
    assert (found["step"], found["stopped_by"]) == (4, None)
    assert found["num_training"] + found["num_heldout"] == 12
    assert found["num_heldout"] >= 1
    assert "12 samples in 1 shards are sound" in ran.err
    config, tensors = read_zlab(found["drafter"])
    assert (config.method, config.draft_vocab_size) == ("dflash2", 64)
    assert len(tensors["draft_vocab_ids"]) == 64
    assert read_provenance(found["drafter"])["trained_steps"] == "4"
    plain, drafted = (
        cli("generate", "hello", "--target", target_folder, "--dtype", "float32", "--drafter", d)
        for d in ("none", found["drafter"])
    )
    assert plain.code == drafted.code == 0, drafted.err
    assert plain.out == drafted.out


def test_stopped_and_resumed_it_is_the_same_run(cli: Cli, recipe: Path) -> None:
    printed(cli("train", recipe, "--set", f"run.out={recipe.parent / 'straight'}"))
    stop = ("--set", "run.stop_after_minutes=1e-9")
    first = printed(cli("train", recipe, *stop))
    assert (first["step"], first["stopped_by"]) == (1, "run.stop_after_minutes")
    again = cli("train", recipe)
    assert again.code == 2
    assert "--resume" in again.error
    second = printed(cli("train", recipe, "--resume"))
    assert second["step"] == 4
    straight = [read_zlab(recipe.parent / each / "drafter")[1] for each in ("straight", "run")]
    for name, tensor in straight[0].items():
        assert tensor.equal(straight[1][name]), name
    assert len(losses(recipe)) == 4


def test_a_dry_run_tells_and_writes_nothing(cli: Cli, recipe: Path) -> None:
    found = printed(cli("train", recipe, "--dry-run", "--set", "optimizer.name=muon"))
    assert found["recipe"]["optimizer"]["name"] == "muon"
    assert found["recipe"]["data"]["max_len"] == 512  # a default, spelled out
    parts = found["parameters"]
    assert parts["all"] == sum(n for name, n in parts.items() if name != "all")
    assert found["state_bytes"]["weights"] == found["state_bytes"]["average"] == 4 * parts["all"]
    assert found["seconds_per_step"] > 0
    assert found["peak_memory_bytes"] > 2**20
    assert found["slots_per_step"] <= 4 * 4 * 3
    assert not (recipe.parent / "run").exists()


def test_held_out_figures_are_logged(cli: Cli, recipe: Path) -> None:
    ran = cli("train", recipe)
    printed(ran)
    lines = (recipe.parent / "run" / "log.jsonl").read_text().splitlines()
    found = {r["step"]: r["heldout"] for r in map(json.loads, lines) if "heldout" in r}
    assert sorted(found) == [2, 4]
    for name in ("unary_length", "selector_length", "oracle_length"):
        assert 1 <= found[2][f"heldout/{name}"] <= 4
    assert "heldout/unary_by_position/3" in found[2]
    assert "decoded/length" not in found[2]
    assert 1 <= found[4]["decoded/length"] <= 4
    assert "heldout/selector_length" in ran.err


def test_nothing_is_decoded_where_none_is_asked_for(cli: Cli, recipe: Path) -> None:
    found = printed(cli("train", recipe, "--set", "data.num_decoded=0"))
    assert (found["step"], found["stopped_by"]) == (4, None)
    lines = (recipe.parent / "run" / "log.jsonl").read_text().splitlines()
    last = [row["heldout"] for row in map(json.loads, lines) if "heldout" in row][-1]
    assert "heldout/selector_length" in last
    assert not any(name.startswith("decoded/") for name in last)


def test_losses_may_compare_with_the_target(cli: Cli, recipe: Path) -> None:
    """Recomputed features have the last layer too."""
    answers = recipe.parent / "answers" / "answers.jsonl"
    online = ("--set", 'data.features=""', "--set", f"data.answers={answers}")
    found = printed(cli("train", recipe, *online, "--set", "objective.losses={ce=0.1, tv=0.9}"))
    assert found["step"] == 4
    assert all(loss < 10 for loss in losses(recipe))


def test_dflash_goes_on_as_dflash2(cli: Cli, recipe: Path) -> None:
    more = ["--set", "drafter.method=dflash", "--set", f"run.out={recipe.parent / 'plain'}"]
    plain = printed(cli("train", recipe, *more))["drafter"]
    assert read_zlab(plain)[0].method == "dflash"
    start = ("--set", f"drafter.start_from={plain}")
    assert printed(cli("train", recipe, *start))["step"] == 4
    deeper = cli("train", recipe, *start, "--set", "drafter.num_layers=1", "--resume")
    assert deeper.code == 2
    assert "num_layers 2, and the recipe 1" in deeper.error


def test_a_draft_vocabulary_grows_and_does_not_shrink(cli: Cli, recipe: Path) -> None:
    first = printed(cli("train", recipe))["drafter"]
    had = set(read_zlab(first)[1]["draft_vocab_ids"].tolist())
    on = ("--set", f"drafter.start_from={first}", "--set", f"run.out={recipe.parent / 'on'}")
    grown = cli("train", recipe, *on, "--set", "drafter.draft_vocab_size=80")
    ids = read_zlab(printed(grown)["drafter"])[1]["draft_vocab_ids"].tolist()
    assert len(ids) == 80
    assert had < set(ids)
    whole = cli("train", recipe, *on, "--set", "drafter.draft_vocab_size=0", "--dry-run")
    assert whole.code == 0
    smaller = cli("train", recipe, *on, "--set", "drafter.draft_vocab_size=32")
    assert smaller.code == 2
    assert "draft_vocab_size is 32" in smaller.error


def test_a_draft_vocabulary_that_stays_may_lack_the_end(
    cli: Cli, recipe: Path, target_folder: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(list(range(10, 74))))
    shape = ("--layers", 2, "--block-size", 4, "--num-taps", 2, "--mask-token-id", 270)
    folder = tmp_path / "init"
    made = cli(
        "init-drafter", target_folder, "-o", folder, "--selector-rank", 4,
        "--draft-vocab-ids", ids, *shape,
    )  # fmt: skip
    assert made.code == 0
    config = read_zlab(folder)[0]
    answers = recipe.parent / "answers" / "answers.jsonl"
    settings = {
        "drafter.start_from": folder,
        "drafter.target_layer_ids": list(config.target_layer_ids),
        "drafter.selector_top_k": config.selector_top_k,
        "drafter.window": config.windows[0] or 0,
        "drafter.conv_group_size": config.conv_group_size,
        "data.features": '""',
        "data.answers": answers,
    }
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    assert cli("train", recipe, "--dry-run", *given).code == 0


def test_features_may_be_recomputed(cli: Cli, recipe: Path) -> None:
    """The same run without shards, from the answers alone."""
    answers = recipe.parent / "answers" / "answers.jsonl"
    stored = printed(cli("train", recipe, "--set", f"run.out={recipe.parent / 'stored'}"))
    online = ("--set", 'data.features=""', "--set", f"data.answers={answers}")
    found = printed(cli("train", recipe, *online))
    assert found["num_training"] == stored["num_training"]
    # Rounded to bfloat16 after other passes, and a random target is rough.
    assert losses(recipe) == pytest.approx(losses(recipe, "stored"), rel=0.03)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("drafter.num_layer=3", "did you mean num_layers"),
        ("drafter.target_layer_ids=[1, 5]", r"layers \[5\], which the features lack"),
        ("objective.losses={kl=1.0}", r"layers \[7\], which the features lack"),
        ("objective.losses={k=1.0}", "loss 'k' is not known"),
        ("batch.sequences_per_pass=3", "must be a multiple of 3"),
        ("drafter.draft_vocab_size=272", "it must be"),
        ('data.features=""', "names no data"),
        ("data.max_len=2", "no answer of 12 is left to train on"),
        ("run.device=tpu", "run: device is 'tpu'; use 'auto' or 'cpu' or 'cuda'"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, recipe: Path, setting: str, message: str) -> None:
    ran = cli("train", recipe, "--set", setting)
    assert ran.code == 2
    assert re.search(message, ran.error), ran.error
