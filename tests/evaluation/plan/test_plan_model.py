"""What drafting gains, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.evaluation.plan.acceptance_file import read_acceptances
from blockdraft.evaluation.plan.model import (
    Costs,
    EvenAcceptance,
    MeasuredAcceptance,
    best_of,
    break_even_tau,
    gains,
    ms_per_token,
    rate_of_tau,
)


def cost(concurrency: int, num_draft_tokens: int, verify_ms: float, **changes: Any) -> Costs:
    given = {"plain_ms": 10.0, "draft_ms": 3.0, "other_ms": 1.0, **changes}
    return Costs(
        concurrency=concurrency, num_draft_tokens=num_draft_tokens, verify_ms=verify_ms, **given
    )


def test_cost_and_break_even_by_hand() -> None:
    parts = {"draft_ms": 3.0, "verify_ms": 12.0, "other_ms": 1.0}
    assert ms_per_token(tau=4.0, **parts) == pytest.approx(4.0)
    assert break_even_tau(plain_ms=8.0, **parts) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 0.0}, "tau is 0.0"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"verify_ms": 0.0}, "verify_ms is 0.0"),
        ({"draft_ms": -1.0}, "draft_ms is -1.0"),
    ],
)
def test_values_that_no_run_has_are_refused(changes: dict[str, float], message: str) -> None:
    good = {"tau": 2.0, "draft_ms": 1.0, "verify_ms": 1.0, "other_ms": 0.0}
    with pytest.raises(ConfigError, match=message):
        ms_per_token(**{**good, **changes})


def test_even_acceptance_is_the_geometric_sum() -> None:
    assert EvenAcceptance(0.5).tau(3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert (EvenAcceptance(1.0).tau(7), EvenAcceptance(0.0).tau(7)) == (8.0, 1.0)
    assert EvenAcceptance(rate_of_tau(2.5, 7)).tau(7) == pytest.approx(2.5)
    with pytest.raises(ConfigError, match=r"acceptance is 1\.1"):
        EvenAcceptance(1.1)
    with pytest.raises(ConfigError, match=r"tau is 9\.0; with 7 drafted tokens it is 1 to 8"):
        rate_of_tau(9.0, 7)


def test_measured_acceptance_knows_shorter_blocks_only() -> None:
    found = MeasuredAcceptance("x", (0.8, 0.5, 0.25))
    assert found.tau(2) == pytest.approx(2.3)
    assert found.tau(3) == pytest.approx(2.55)
    assert found.tau(4) is None


def test_gains_by_hand_and_the_best_block() -> None:
    costs = [cost(1, 1, 10.0), cost(1, 3, 11.0), cost(4, 3, 40.0, plain_ms=20.0)]
    found = gains(costs, EvenAcceptance(0.5))
    assert [gain.tau for gain in found] == pytest.approx([1.5, 1.875, 1.875])
    assert [gain.speedup for gain in found] == pytest.approx([15 / 14, 18.75 / 15, 37.5 / 44])
    assert found[1].break_even_tau == pytest.approx(1.5)
    assert found[2].tokens_per_s == pytest.approx(4 * 1.875 / 0.044)
    assert found[2].ms_per_token == pytest.approx(1e3 / found[2].tokens_per_s)
    best = best_of(found, 1)
    assert best is not None
    assert best.costs.num_draft_tokens == 3
    assert best_of(found, 2) is None


def test_without_a_drafter_drafting_is_free() -> None:
    [free] = gains([cost(1, 1, 10.0, draft_ms=None)], EvenAcceptance(1.0))
    assert free.speedup == pytest.approx(20 / 11)


def result(folder: Path, rows: Any, **settings: bool) -> Path:
    path = folder / "R.json"
    path.write_text(json.dumps({"rows": rows, "settings": settings}))
    return path


def row(**changes: Any) -> dict[str, Any]:
    good = {"task": "a", "method": "/x/d2", "temperature": 0.0}
    counts = {"accepted_by_position": [8, 4, 1], "drafted_by_position": [10, 10, 4], "cycles": 10}
    return {**good, **counts, **changes}


def test_acceptance_of_a_result_file(tmp_path: Path) -> None:
    plain = row(method="plain", accepted_by_position=[], drafted_by_position=[])
    path = result(tmp_path, [plain, row(), row(), row(task="b", temperature=0.7)])
    found = read_acceptances(path)
    assert [one.label for one in found] == ["a, d2, T 0", "b, d2, T 0.7"]
    assert found[0].by_position == (0.8, 0.4, 0.1)
    assert [one.label for one in read_acceptances(path, task="b")] == ["b, d2, T 0.7"]
    with pytest.raises(ConfigError, match="no row that drafted with task c"):
        read_acceptances(path, task="c")


def test_the_tau_of_a_lookup_counts_cycles_without_a_draft(tmp_path: Path) -> None:
    """60 of 100 cycles draft three tokens: 100 + 24 + 20 + 18 tokens are committed."""
    counts = {"accepted_by_position": [24, 20, 18], "drafted_by_position": [60, 60, 60]}
    [found] = read_acceptances(result(tmp_path, [row(method="ngram", cycles=100, **counts)]))
    assert found.tau(3) == pytest.approx(1.62)


def test_drafts_that_were_fitted_to_a_load_are_left_out(tmp_path: Path) -> None:
    """What was cut there never had a chance to stand."""
    alone = row(concurrency=1, accepted_by_position=[9, 5, 2])
    path = result(tmp_path, [row(concurrency=16), alone], adaptive=True)
    assert read_acceptances(path)[0].by_position == (0.9, 0.5, 0.2)
    with pytest.raises(CheckpointError, match=r"fitted to several requests.*--concurrency 1"):
        read_acceptances(result(tmp_path, [row(concurrency=16)], adaptive=True))
    [found] = read_acceptances(result(tmp_path, [row(concurrency=16)], adaptive=False))
    assert found.by_position == (0.8, 0.4, 0.1)


def test_methods_and_temperatures_that_look_alike_are_all_kept(tmp_path: Path) -> None:
    rows = [row(temperature=0.7), row(temperature=0.7000001), row(method="/y/d2"), row(task="b")]
    found = read_acceptances(result(tmp_path, rows))
    assert [one.label for one in found] == [
        "a, /x/d2, 0.7",
        "a, /x/d2, 0.7000001",
        "a, d2, T 0",
        "b, d2, T 0",
    ]


@pytest.mark.parametrize(
    "text", ["{", '{"rows": 3}', "[]", '{"rows": [{}]}', '{"rows": [3]}', '{"rows": [{"task": 1}]}']
)
def test_files_that_are_no_result_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="is no result of"):
        read_acceptances(path)
