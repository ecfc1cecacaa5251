"""The loop: exact resuming, one update however it is split, stopping, and what must not happen."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from blockdraft.errors import ConfigError, NumericsError
from blockdraft.training.loop import Outcome, train
from blockdraft.training.recipe import BatchRecipe, OptimizerRecipe, RunRecipe, ScheduleRecipe
from blockdraft.training.recipe import TrainRecipe as Recipe
from blockdraft.training.run_state import Parts, checkpoints_of
from tests.training.tiny_training import (
    SINGLE,
    TinyObjective,
    TinyStream,
    tiny_parts,
    tiny_recipe,
    weights,
)


class StopAfter(TinyObjective):
    """Sends itself a signal in the middle of a step."""

    def __init__(self, step: int, number: int, noise: float = 0.0) -> None:
        super().__init__(noise)
        self.passes_left, self.number = 2 * step - 1, number

    def __call__(self, module: nn.Module, batch: Any) -> Any:
        self.passes_left -= 1
        if self.passes_left == 0:
            os.kill(os.getpid(), self.number)
        return super().__call__(module, batch)


def run(recipe: Recipe, parts: Parts | None = None, resume: bool = False) -> tuple[Outcome, Parts]:
    parts = parts or tiny_parts(recipe)
    return train(recipe, parts, SINGLE, resume=resume), parts


def rows(recipe: Recipe, key: str) -> list[dict[str, Any]]:
    lines = (Path(recipe.run.out) / "log.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if key in row]


def with_run(recipe: Recipe, **more: Any) -> Recipe:
    return dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, **more))


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_six_steps_are_three_and_three_bit_for_bit(tmp_path: Path, name: str, number: int) -> None:
    optimizer = OptimizerRecipe(name=name, lr=0.05, ema_decay=0.9)
    straight = tiny_recipe(tmp_path / "straight", optimizer=optimizer)
    _, whole = run(straight, tiny_parts(straight, objective=TinyObjective(noise=0.1)))
    broken = tiny_recipe(tmp_path / "broken", optimizer=optimizer)
    broken = with_run(broken, save_every=0)
    stopped, _ = run(broken, tiny_parts(broken, objective=StopAfter(3, number, noise=0.1)))
    assert (stopped.step, stopped.stopped_by) == (3, signal.Signals(number).name)
    torch.manual_seed(99)  # what another process would have
    end, second = run(broken, tiny_parts(broken, objective=TinyObjective(noise=0.1)), resume=True)
    assert (end.step, end.stopped_by) == (6, None)
    assert [r["loss"] for r in rows(straight, "loss")] == [r["loss"] for r in rows(broken, "loss")]
    expected, found = weights(whole.module), weights(second.module)
    assert all(torch.equal(expected[each], found[each]) for each in expected)
    states = [checkpoints_of(each).read_latest() for each in (straight, broken)]
    assert states[0] is not None
    assert states[1] is not None
    for each in ("model", "optimizer", "ema", "stream", "random"):
        assert_same(states[0][each], states[1][each])


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    else:
        assert a == b


def test_the_update_does_not_depend_on_how_the_batch_is_split(tmp_path: Path) -> None:
    found = []
    for per_pass in (8, 4, 1):
        batch = BatchRecipe(sequences_per_step=8, sequences_per_pass=per_pass)
        recipe = tiny_recipe(tmp_path / str(per_pass), batch=batch)
        _, parts = run(recipe)
        found.append((weights(parts.module), rows(recipe, "loss")))
    for other, log in found[1:]:
        for name, value in found[0][0].items():
            torch.testing.assert_close(value, other[name])
        for one, two in zip(found[0][1], log, strict=True):
            assert one["loss"] == pytest.approx(two["loss"])
            assert one["grad_norm"] == pytest.approx(two["grad_norm"])
            assert one["by_position"] == pytest.approx(two["by_position"])


def test_one_step_is_the_gradient_over_the_sum_of_weights(tmp_path: Path) -> None:
    """Against plain autograd on the whole batch and PyTorch's own clipping."""
    optimizer = OptimizerRecipe(lr=0.05, head_lr=0.02, clip_norm=0.5, weight_decay=0.0)
    recipe = tiny_recipe(tmp_path, optimizer=optimizer, schedule=ScheduleRecipe(max_steps=1))
    start, batch = tiny_parts(recipe).module, BatchRecipe(sequences_per_step=8)
    sums = TinyObjective()(start, next(TinyStream(batch)))
    (sums.loss / sums.weight).backward()
    trained = [p for p in start.parameters() if p.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(trained, 0.5)
    assert norm > 0.5
    _, parts = run(recipe)
    [row] = rows(recipe, "loss")
    assert row["loss"] == pytest.approx((sums.loss / sums.weight).item())
    assert row["grad_norm"] == pytest.approx(float(norm))
    for name, before in start.named_parameters():
        if not before.requires_grad:
            continue
        rate = 0.02 if name.startswith("candidate_selector") else 0.05
        # the first update of Adam is the rate times g / (|g| + eps)
        expected = before.detach() - rate * before.grad / (before.grad.abs() + optimizer.eps)
        torch.testing.assert_close(dict(parts.module.named_parameters())[name].data, expected)


@pytest.mark.parametrize("bad_step", [0, 4])
def test_a_loss_that_is_not_finite_stops_and_saves_nothing(tmp_path: Path, bad_step: int) -> None:
    recipe = tiny_recipe(tmp_path)
    stream = TinyStream(recipe.batch, bad_step=bad_step)
    with pytest.raises(NumericsError, match=rf"step {bad_step + 1}: the loss is nan") as caught:
        run(recipe, tiny_parts(recipe, stream=stream))
    named = [f"s{bad_step}.{i}" for i in range(8) if f"s{bad_step}.{i}" in str(caught.value)]
    assert named == [f"s{bad_step}.{i}" for i in (4, 5, 6, 7)]  # the pass that went wrong
    assert [each.name for each in checkpoints_of(recipe).files()] == (
        ["step-00000003.pt"] if bad_step else []
    )


class BadGradient(TinyObjective):
    """A finite loss with an infinite slope."""

    def __call__(self, module: nn.Module, batch: Any) -> Any:
        sums = super().__call__(module, batch)
        zero = (module.norm.weight * 0).sum()  # type: ignore[operator, union-attr]
        return dataclasses.replace(sums, loss=sums.loss + zero.sqrt())


def test_a_gradient_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    parts = tiny_parts(recipe, objective=BadGradient())
    before = weights(parts.module)
    with pytest.raises(NumericsError, match=r"step 1: the gradient's norm .* s0\.0, s0\.1"):
        run(recipe, parts)
    assert all(torch.equal(before[n], p) for n, p in parts.module.named_parameters())


class NoWeight(TinyObjective):
    def __call__(self, module: nn.Module, batch: Any) -> Any:
        return dataclasses.replace(super().__call__(module, batch), weight=torch.tensor(0.0))


def test_a_step_without_weight_is_an_error(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    with pytest.raises(ConfigError, match="step 1: no slot has a weight"):
        run(recipe, tiny_parts(recipe, objective=NoWeight()))


def test_a_run_is_not_overwritten_and_not_resumed_as_another(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    run(recipe)
    with pytest.raises(ConfigError, match=r"holds a run already .*--resume"):
        run(recipe)
    muon = dataclasses.replace(recipe, optimizer=OptimizerRecipe(name="muon"))
    with pytest.raises(ConfigError, match=r"optimizer\.name was 'adamw' and is 'muon'"):
        run(muon, resume=True)


def test_a_longer_schedule_goes_on_and_says_so(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    run(recipe)
    outcome, _ = run(recipe, resume=True)
    assert outcome.step == 6  # there was nothing left to do
    longer = dataclasses.replace(recipe, schedule=ScheduleRecipe(max_steps=8))
    outcome, _ = run(longer, resume=True)
    assert outcome.step == 8
    events = [row["event"] for row in rows(longer, "event")]
    assert any("schedule.max_steps was 6 and is 8" in each for each in events)
    assert [row["step"] for row in rows(longer, "loss")] == list(range(1, 9))


def test_resuming_from_nothing_starts_and_says_so(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    outcome, _ = run(recipe, resume=True)
    assert outcome.step == 6
    assert any("starting at step 0" in row["event"] for row in rows(recipe, "event"))


def test_the_time_limit_stops_and_the_schedule_stays(tmp_path: Path) -> None:
    recipe = with_run(tiny_recipe(tmp_path), stop_after_minutes=1e-9)
    outcome, _ = run(recipe)
    assert (outcome.step, outcome.stopped_by) == (1, "run.stop_after_minutes")
    [row] = rows(recipe, "loss")
    full = tiny_recipe(tmp_path / "full")
    run(full)
    assert row["learning_rate"] == rows(full, "loss")[0]["learning_rate"]


def test_evaluation_and_export_see_averaged_weights(tmp_path: Path) -> None:
    recipe = with_run(tiny_recipe(tmp_path), evaluate_every=2, save_every=3)
    seen: dict[str, list[int]] = {"evaluate": [], "export": []}
    kept: list[Any] = []

    def evaluate(step: int, module: nn.Module) -> dict[str, float]:
        assert not module.training
        seen["evaluate"].append(step)
        return {"tau": float(step)}

    def export(step: int, module: nn.Module) -> None:
        seen["export"].append(step)
        kept.append(weights(module))

    parts = tiny_parts(recipe, evaluations=(evaluate,), export=export)
    run(recipe, parts)
    assert seen == {"evaluate": [2, 4, 6], "export": [3, 6]}
    assert [row["heldout"] for row in rows(recipe, "heldout")] == [{"tau": s} for s in (2, 4, 6)]
    state = checkpoints_of(recipe).read_latest()
    assert state is not None
    own = weights(parts.module)
    for name, average in state["ema"]["averages"].items():
        assert torch.equal(kept[-1][name], average)
        assert torch.equal(own[name], state["model"][name])
        assert not torch.equal(own[name], average)
    assert parts.module.training


def test_an_evaluation_that_fails_loses_no_step_and_is_made_up_for(tmp_path: Path) -> None:
    def evaluate(step: int, module: nn.Module) -> dict[str, float]:
        return {"drawn": float(torch.rand(()))}

    def fail(step: int, module: nn.Module) -> dict[str, float]:
        if step == 4:
            raise RuntimeError("no room")
        return evaluate(step, module)

    recipes = [
        with_run(tiny_recipe(tmp_path / name), evaluate_every=2, save_every=2)
        for name in ("straight", "broken")
    ]

    def parts(recipe: Recipe, evaluation: Any) -> Parts:
        return tiny_parts(recipe, objective=TinyObjective(noise=0.1), evaluations=(evaluation,))

    straight, broken = recipes
    _, whole = run(straight, parts(straight, evaluate))
    with pytest.raises(RuntimeError, match="no room"):
        run(broken, parts(broken, fail))
    state = checkpoints_of(broken).read_latest()
    assert state is not None
    assert state["step"] == 4
    _, again = run(broken, parts(broken, evaluate), resume=True)
    assert_same(weights(whole.module), weights(again.module))
    for key in ("loss", "heldout"):
        assert [r[key] for r in rows(straight, key)] == [r[key] for r in rows(broken, key)]
    run(broken, parts(broken, fail), resume=True)  # nothing is left, and nothing is done again
    assert len(rows(broken, "heldout")) == 3


def test_figures_of_a_run_are_those_without_evaluation(tmp_path: Path) -> None:
    recipes = [with_run(tiny_recipe(tmp_path / str(n)), evaluate_every=n) for n in (0, 1)]
    found = []
    for recipe in recipes:
        evaluation = lambda step, module: {"drawn": float(torch.rand(()))}  # noqa: E731
        more = {"objective": TinyObjective(noise=0.1), "evaluations": (evaluation,)}
        found.append(weights(run(recipe, tiny_parts(recipe, **more))[1].module))
    assert_same(*found)


def test_a_batch_that_cannot_be_dealt_out_is_refused(tmp_path: Path) -> None:
    batch = BatchRecipe(sequences_per_step=8, sequences_per_pass=3)
    recipe = tiny_recipe(tmp_path, batch=batch)
    with pytest.raises(ConfigError, match="must be a multiple of 3"):
        train(recipe, tiny_parts(tiny_recipe(tmp_path)), SINGLE)


def test_the_last_line_tells_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny_recipe(tmp_path)
    run(recipe, tiny_parts(recipe, objective=StopAfter(2, signal.SIGTERM)))
    assert "stopped by SIGTERM at step 2, saved as" in capsys.readouterr().err.splitlines()[-1]
    run(recipe, resume=True)
    assert "finished: 6 steps" in capsys.readouterr().err.splitlines()[-1]
    assert RunRecipe().stop_after_minutes == 0
