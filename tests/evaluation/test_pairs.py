"""Gains of a method over another one: by prompt, with intervals that know the pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.evaluation.benchmark import Settings
from blockdraft.evaluation.evaluate import evaluate
from blockdraft.evaluation.pairs import against_others, paired_gain
from tests.evaluation.runs import engines, out_in, scripted, task
from tests.fakes.scripted import accept_first


def row(method: str, taus: list[float | None], **more: Any) -> dict[str, Any]:
    prompts = [
        {"id": f"p{i}", "tau": tau, "tokens": 60, "seconds": 6 / (tau or 1.0)}
        for i, tau in enumerate(taus)
    ]
    cell = {"task": "t", "concurrency": 1, "temperature": 0.0}
    return {**cell, "method": method, "prompts": prompts, **more}


def test_what_is_paired_is_certain_though_prompts_differ() -> None:
    """Prompts of very different tau, each a tenth better: the ratio has no doubt at all."""
    taus = np.random.default_rng(0).uniform(1.0, 6.0, 20).tolist()
    gain = paired_gain(row("b", [1.1 * tau for tau in taus]), row("a", taus))
    assert gain is not None
    assert gain["num_prompts"] == 20
    for name in ("tau_ratio", "speed_ratio"):
        assert gain[name] == pytest.approx(1.1)
        assert gain[f"{name}_ci95"] == pytest.approx((1.1, 1.1))


def test_prompts_that_one_lacks_are_left_out_and_those_without_cycles_have_no_tau() -> None:
    ours, theirs = row("b", [4.0, 2.0, None, 9.0]), row("a", [2.0, 2.0, 3.0])
    gain = paired_gain(ours, theirs)
    assert gain is not None
    assert gain["num_prompts"] == 3
    assert gain["tau_ratio"] == pytest.approx(6 / 4)
    assert gain["speed_ratio"] == pytest.approx((3 + 3 + 2) / (1.5 + 3 + 6))


@pytest.mark.parametrize(
    "more", [{"concurrency": 4}, {"speedup_refused": "5 of 5 differ"}], ids=["load", "refused"]
)
def test_speed_is_compared_where_every_prompt_has_its_clock(more: dict[str, Any]) -> None:
    gain = paired_gain(row("b", [2.0, 3.0], **more), row("a", [1.0, 1.0], **more))
    assert gain is not None
    assert gain["tau_ratio"] == 2.5
    assert gain["speed_ratio"] is gain["speed_ratio_ci95"] is None


def test_each_method_is_beside_those_before_it_in_its_cell() -> None:
    given = [
        row("plain", [1.0, 1.0]),
        row("a", [2.0, 2.0]),
        row("b", [3.0, 3.0]),
        row("b", [3.0, 3.0], temperature=1.0),
        {key: value for key, value in row("old", [2.0]).items() if key != "prompts"},
        row("c", [3.0, 6.0]),
    ]
    found = against_others(given, "plain")
    assert [list(each["against"]) for each in found] == [[], [], ["a"], [], [], ["a", "b"]]
    assert found[-1]["against"]["b"]["tau_ratio"] == 1.5
    assert paired_gain(row("a", []), row("b", [])) is None


def test_a_result_has_them(tmp_path: Path) -> None:
    found = engines(one=scripted(accept_first(1)), two=scripted(accept_first(2)))
    settings = Settings(max_tokens=31, concurrency=(1, 2))
    options = {"must_be_equal": True, "log": lambda _: None}
    rows = evaluate(found, [task(turns=2)], settings, out_in(tmp_path), **options)["rows"]  # type: ignore[arg-type]
    alone = {each["method"]: each for each in rows if each["concurrency"] == 1}
    two = alone["two"]
    assert [prompt["id"] for prompt in two["prompts"]] == [f"p{i}" for i in range(5)]
    assert sum(prompt["tokens"] for prompt in two["prompts"]) == two["num_tokens"] == 310
    assert sum(p["seconds"] for p in two["prompts"]) == pytest.approx(two["wall_s"], abs=1e-3)
    assert list(two["against"]) == ["one"]
    gain = two["against"]["one"]
    assert gain["tau_ratio"] > 1.0
    assert gain["speed_ratio"] == pytest.approx(
        two["tokens_per_s"] / alone["one"]["tokens_per_s"], rel=1e-2
    )
    together = next(r for r in rows if (r["method"], r["concurrency"]) == ("two", 2))
    assert all(prompt["seconds"] > 0 for prompt in together["prompts"])
    assert together["against"]["one"]["speed_ratio"] is None
