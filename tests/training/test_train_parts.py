"""The loop's parts, each alone: schedule, groups, averages, checkpoints, signals, logs, recipes."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from blockdraft.config import load_recipe
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.interop.zlab import read_zlab
from blockdraft.training.checkpoint import CheckpointFolder, load_model_state
from blockdraft.training.ema import Ema
from blockdraft.training.logs import flat, keep_rows
from blockdraft.training.meter import means
from blockdraft.training.optimizer import clip_gradients, make_optimizers, role
from blockdraft.training.recipe import BatchRecipe, OptimizerRecipe, ScheduleRecipe, TrainRecipe
from blockdraft.training.schedule import rate_share
from blockdraft.training.signals import stop_on_signals
from tests.training.tiny_training import TinyModule

ROOT = Path(__file__).resolve().parents[2]


# --- schedule ---


def shares(**fields: float | str | int) -> list[float]:
    recipe = ScheduleRecipe(**fields)  # type: ignore[arg-type]
    return [rate_share(step, recipe) for step in range(recipe.max_steps)]


def test_linear_rises_and_falls_to_its_share() -> None:
    found = shares(name="linear", max_steps=11, warmup=0.2, final_share=0.2)
    assert found[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])  # two steps of warm-up, then the peak
    assert found[2:] == pytest.approx([1 - 0.1 * i for i in range(9)])


def test_cosine_is_half_way_in_the_middle() -> None:
    found = shares(name="cosine", max_steps=11, warmup=0.0, final_share=0.0)
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.5)
    assert found[10] == pytest.approx(0.0)
    assert found[2] == pytest.approx((1 + math.cos(math.pi * 0.2)) / 2)


def test_constant_stays_and_short_runs_have_a_rate() -> None:
    assert shares(name="constant", max_steps=4, warmup=0.25) == [0.5, 1, 1, 1]
    assert shares(name="cosine", max_steps=1) == [1.0]
    all_warm = shares(name="linear", max_steps=3, warmup=1.0)
    assert all_warm == pytest.approx([0.25, 0.5, 0.75])


# --- optimisers ---


def test_roles_by_name_and_shape() -> None:
    shapes = {
        "fc.weight": (4, 4),
        "layers.0.mlp_conv.base_kernel": (2, 2, 4),
        "layers.0.mlp_conv.kernel_projection.weight": (4, 4),
        "norm.weight": (4,),
        "candidate_selector.successor_codebook": (4, 2),
        "candidate_selector.hidden_projection.weight": (2, 4),
    }
    found = {name: role(name, torch.zeros(shape)) for name, shape in shapes.items()}
    assert list(found.values()) == ["matrices", "vectors", "matrices", "vectors", "heads", "heads"]


def groups(recipe: OptimizerRecipe, module: nn.Module) -> dict[str, tuple[list[str], float, float]]:
    optimizers = make_optimizers(module, recipe)
    return {
        group["name"]: (
            [optimizers.names[p] for p in group["params"]],
            group["peak_lr"],
            group["weight_decay"],
        )
        for optimizer in optimizers.optimizers
        for group in optimizer.param_groups
    }


class WithConv(TinyModule):
    def __init__(self) -> None:
        super().__init__()
        self.kernel_projection = nn.Linear(6, 6, bias=False)


def test_every_parameter_is_in_one_group_with_its_rate_and_decay() -> None:
    recipe = OptimizerRecipe(lr=1e-3, head_lr=2e-3, muon_lr=3e-3, weight_decay=0.1)
    conv, head = "kernel_projection.weight", "candidate_selector.successor_codebook"
    assert groups(recipe, WithConv()) == {
        "matrices": (["fc.weight", conv], 1e-3, 0.1),
        "vectors": (["norm.weight"], 1e-3, 0.0),
        "heads": ([head], 2e-3, 0.0),
    }
    muon = OptimizerRecipe(name="muon", lr=1e-3, head_lr=2e-3, muon_lr=3e-3, weight_decay=0.1)
    assert groups(muon, WithConv()) == {
        "muon": (["fc.weight"], 3e-3, 0.1),
        "matrices": ([conv], 1e-3, 0.1),
        "vectors": (["norm.weight"], 1e-3, 0.0),
        "heads": ([head], 2e-3, 0.0),
    }


def test_the_rate_of_a_step_is_its_share_of_each_peak() -> None:
    module = TinyModule()
    optimizers = make_optimizers(module, OptimizerRecipe(lr=0.1, head_lr=0.2))
    module(torch.ones(1, 6)).sum().backward()
    optimizers.step(0.25)
    assert optimizers.rates() == {"matrices": 0.025, "vectors": 0.025, "heads": 0.05}
    optimizers.zero_grad()
    assert all(each.grad is None for each in module.parameters())


def test_clipping_scales_first_and_keeps_small_gradients() -> None:
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    for expected, norm, limit in (([3.0, 4.0], 5.0, 10.0), ([0.6, 0.8], 5.0, 1.0)):
        parameters[0].grad = torch.tensor([6.0, 8.0])
        assert clip_gradients(parameters, 0.5, limit) == pytest.approx(norm)
        torch.testing.assert_close(parameters[0].grad, torch.tensor(expected))


# --- averages ---


def test_averages_follow_and_are_lent() -> None:
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    ema = Ema(module, 0.9)
    expected = 1.0
    for n in range(1, 120):
        with torch.no_grad():
            module.weight.fill_(float(n))
        ema.update()
        decay = min(0.9, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * n
    assert decay == 0.9
    assert float(ema.averages["weight"].detach()) == pytest.approx(expected, rel=1e-5)
    with ema.applied():
        assert float(module.weight.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(module.weight.detach()) == 119.0


# --- checkpoints ---


def test_the_last_few_stay_and_half_written_ones_do_not_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    assert folder.read_latest() is None
    for step in (1, 2, 10):
        folder.write(step, {"x": torch.tensor(step)})
    (tmp_path / "step-00000011.partial").write_bytes(b"half")
    assert [each.name for each in folder.files()] == ["step-00000002.pt", "step-00000010.pt"]
    state = folder.read_latest()
    assert state is not None
    assert (state["step"], int(state["x"])) == (10, 10)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    folder.write(1, {})
    whole = folder.file(1).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"nothing of the kind"):
        folder.file(1).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"step-00000001\.pt cannot be read .* remove it"):
            folder.read_latest()
    torch.save({"format": 99}, folder.file(1))
    with pytest.raises(CheckpointError, match="has format 99; this version reads 1"):
        folder.read_latest()


def test_the_state_of_another_drafter_is_refused() -> None:
    state = {name: p.detach() for name, p in TinyModule().named_parameters() if p.requires_grad}
    with pytest.raises(CheckpointError, match=r"another drafter: fc\.weight is \(2, 6\) there"):
        load_model_state(TinyModule(), state | {"fc.weight": torch.zeros(2, 6)})
    del state["norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight is absent there and \(6,\)"):
        load_model_state(TinyModule(), state)


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_is_as_ever(number: signal.Signals) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda n, _: seen.append(n))
    try:
        with stop_on_signals() as stop:
            assert not stop
            os.kill(os.getpid(), number)
            assert stop.reason == number.name
            assert seen == []
            os.kill(os.getpid(), number)
            assert seen == [number]
        os.kill(os.getpid(), number)
        assert seen == [number, number]
    finally:
        signal.signal(number, before)


# --- logs ---


def test_rows_after_a_step_and_torn_lines_go(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    rows = [json.dumps({"step": step}) for step in (1, 2, 3)]
    file.write_text("\n".join([*rows, '{"step": 1, "lo']))
    keep_rows(file, 2)
    assert file.read_text() == rows[0] + "\n" + rows[1] + "\n"


def test_rows_are_flattened_for_plots() -> None:
    row = {"step": 3, "rate": {"heads": 0.5}, "by": [1.0, None, 2.0], "event": "text"}
    assert flat(row) == {"step": 3.0, "rate/heads": 0.5, "by/1": 1.0, "by/3": 2.0}


def test_means_are_sums_over_counts() -> None:
    sums = {
        "a": torch.tensor(3.0),
        "a_count": torch.tensor(2.0),
        "by": torch.tensor([1.0, 0.0]),
        "by_count": torch.tensor([4.0, 0.0]),
        "bare": torch.tensor(7.0),
    }
    assert means(sums) == {"a": 1.5, "by": [0.25, None], "bare": 7.0}


# --- recipes ---


@pytest.mark.parametrize("name", ["dflash", "dflash2"])
def test_shipped_recipes_are_read_and_differ_by_method_alone(name: str) -> None:
    folder = ROOT / "recipes" / "smollm2-135m"
    recipe = load_recipe(folder / f"{name}.toml", TrainRecipe)
    assert recipe.drafter.method == name
    other = load_recipe(folder / "dflash2.toml", TrainRecipe)
    for table in ("data", "optimizer", "schedule", "batch"):
        assert getattr(recipe, table) == getattr(other, table)
    # What is left of the objective is the selector's, which the plain method has not.
    for name_ in ("losses", "temperature", "weighting", "gamma", "alpha"):
        assert getattr(recipe.objective, name_) == getattr(other.objective, name_)
    assert recipe.run.seed == other.run.seed


def test_the_guide_says_where_each_prompt_file_is_from() -> None:
    recipe = load_recipe(ROOT / "recipes" / "smollm2-135m" / "answers.toml", AnswersRecipe)
    guide = (ROOT / "docs" / "guides" / "train.md").read_text("utf-8")
    table = guide.split("## The prompts of answers.toml")[1].split("\n## ")[0]
    assert len(recipe.sources) == 20
    for source in recipe.sources:
        assert source.file == Path(f"train/{source.name}.jsonl")
        assert f"`{source.name}`" in table, source.name


def test_the_stages_of_the_shipped_drafter_go_on_from_each_other() -> None:
    folder = ROOT / "recipes" / "smollm2-135m" / "stages"
    stages = [load_recipe(folder / f"{n}.toml", TrainRecipe) for n in (1, 2, 3)]
    config = read_zlab(ROOT / "src/blockdraft/checkpoints/smollm2-135m-dflash2")[0]
    for recipe, before in zip(stages, [None, *stages[:-1]], strict=True):
        expected = "" if before is None else f"{before.run.out}/drafter"
        assert recipe.drafter.start_from == expected
        same = ("method", "num_layers", "block_size", "target_layer_ids", "mask_token_id")
        for name in (*same, "selector_rank", "selector_top_k", "conv_kernel_size"):
            assert getattr(recipe.drafter, name) == getattr(config, name), name
    assert stages[-1].drafter.draft_vocab_size == config.draft_vocab_size
    assert [recipe.schedule.max_steps for recipe in stages] == [246, 1000, 1150]
    for name in ("objective", "batch"):
        assert len({str(getattr(recipe, name)) for recipe in stages}) == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("schedule.name=cosinus", "schedule: name is 'cosinus'; use 'cosine' or 'linear' or"),
        ("schedule.max_steps=0", "schedule: max_steps is 0; it must be 1 or more"),
        ("schedule.warmup=1.5", "schedule: warmup is 1.5; it must be 0 to 1"),
        ("optimizer.lr=0.0", "optimizer: lr is 0; it must be greater than 0"),
        ("optimizer.ema_decay=1.0", "is 1; each must be below it"),
        ("optimizer.weight_decay=-1.0", "weight_decay is -1; it must be 0 or more"),
        ("run.stop_after_minutes=inf", "stop_after_minutes is inf; it must be 0 or more"),
        ("objective.weighting=none", "weighting is 'none'; use 'decay' or 'dpace'"),
        ("objective.gamma=0.0", "gamma is 0; it must be greater than 0"),
        ("drafter.block_size=1", "drafter: block_size is 1; it must be 2 or more"),
    ],
)
def test_values_that_are_not_allowed(tmp_path: Path, setting: str, message: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text("")
    with pytest.raises(ConfigError) as caught:
        load_recipe(file, TrainRecipe, [setting])
    assert message in str(caught.value)


def test_passes_make_up_what_processes_lack() -> None:
    batch = BatchRecipe(sequences_per_step=16, sequences_per_pass=2)
    assert [batch.num_passes(n) for n in (1, 2, 4, 8)] == [8, 4, 2, 1]
    with pytest.raises(ConfigError, match=r"3 process\(es\) of 2 .* multiple of 6"):
        batch.num_passes(3)
