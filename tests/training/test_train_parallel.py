"""Two processes do what one does: same loss curve, same weights, checkpoints that fit both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.errors import ConfigError
from blockdraft.training.loop import train
from blockdraft.training.parallel import open_world
from blockdraft.training.recipe import OptimizerRecipe, ScheduleRecipe
from blockdraft.training.run_state import checkpoints_of
from tests.training.tiny_training import SINGLE, tiny_parts, tiny_recipe
from tests.training.two_processes import CASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes have trained every case."""
    out = tmp_path_factory.mktemp("two")
    ports = free_ports(len(CASES))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.two_processes", str(out), *ports],
            cwd=ROOT,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=90)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return out


def free_ports(num: int) -> list[str]:
    sockets = [socket.socket() for _ in range(num)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def rows(path: Path, key: str) -> list[dict[str, Any]]:
    return [r for r in map(json.loads, (path / "log.jsonl").read_text().splitlines()) if key in r]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_curve_of_one(folder: Path, tmp_path: Path, case: str) -> None:
    name = case.split("-")[1]
    optimizer = OptimizerRecipe(name=name, lr=0.05, ema_decay=0.9)
    recipe = tiny_recipe(tmp_path, optimizer=optimizer)
    train(recipe, tiny_parts(recipe), SINGLE)
    one, two = rows(tmp_path, "loss"), rows(folder / case, "loss")
    assert len(one) == len(two) == 6
    tolerance = 1e-5 if name == "adamw" else 1e-2  # Muon multiplies in bfloat16
    for left, right in zip(one, two, strict=True):
        for key in ("loss", "grad_norm", "plain", "by_position"):
            assert right[key] == pytest.approx(left[key], rel=tolerance), key
    figures = [row["heldout"]["figure"] for row in rows(folder / case, "heldout")]
    state = checkpoints_of(tiny_recipe(folder / case)).read_latest()
    assert state is not None
    assert figures[-1] == pytest.approx(float(state["ema"]["averages"]["fc.weight"].sum()))
    mine = checkpoints_of(recipe).read_latest()
    assert mine is not None
    for key, value in mine["model"].items():
        torch.testing.assert_close(state["model"][key], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES[:2])
def test_one_process_goes_on_where_two_stopped(folder: Path, tmp_path: Path, case: str) -> None:
    longer = ScheduleRecipe(max_steps=8, warmup=0.0, name="constant")
    optimizer = OptimizerRecipe(lr=0.05, ema_decay=0.9)
    recipe = tiny_recipe(folder / case, optimizer=optimizer, schedule=longer)
    assert train(recipe, tiny_parts(recipe), SINGLE, resume=True).step == 8
    events = [row["event"] for row in rows(folder / case, "event")]
    assert any("resumed with 1 processes, not as before with 2" in each for each in events)
    steps = [row["step"] for row in rows(folder / case, "loss")]
    assert steps == list(range(1, 9))


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="PyTorch finds none"), open_world("cuda", "ddp"):
        pass
    with open_world("auto", "ddp") as world:
        assert (world.device.type, world.kind, world.size) == ("cpu", "single", 1)
