"""`blockdraft check-lossless`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockdraft.decoding import choose_tokens
from tests.cli.conftest import Cli, Ran
from tests.evaluation.lossless.faulty import accepts_everything

SMALL = ("--num-prompts", 2, "--max-tokens", 12, "--contexts", 1, "--samples", 300, "--depth", 3)


@pytest.fixture
def check(cli: Cli, target_folder: Path, tmp_path: Path) -> Any:
    """On repetitive prompts, so that n-gram lookup has something to draft."""
    task = tmp_path / "task.jsonl"
    rows = [{"id": f"p{i}", "turns": ["a b a b a b " * 3 + "abc"[i]]} for i in range(3)]
    task.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*args: object) -> Ran:
        common = ("--target", target_folder, "--dtype", "float32", "--task", task, *SMALL)
        return cli("check-lossless", *common, *args)

    return run


def test_a_right_engine_passes(check: Any, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "L.json"
    ran = check("--drafter", "ngram", "--temperature", 0.5, "--out", out)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.splitlines()[-1].startswith("PASS")
    assert "greedy, float32 (torch kernels): 2 of 2 texts the same token for token" in ran.out
    found = json.loads(out.read_text())
    assert found["verdict"] == "pass"
    assert found["provenance"]["drafter"]["name"] == "ngram"
    assert found["settings"]["num_samples"] == 300
    law = found["distribution"]
    assert law["coverage"]["accepted"] + law["coverage"]["rejected"] > 0
    assert {test["kind"] for test in law["tests"]} >= {"next", "all"}


def test_a_biased_rule_fails_and_is_described(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_tokens, "accept_sampled", accepts_everything)
    ran = check("--drafter", "ngram", "--temperature", 0.5, "--samples", 600)
    assert ran.code == 1, ran.out
    assert ran.out.splitlines()[-1].startswith("FAIL")
    assert "wrong: " in ran.out


def test_without_a_drafter_there_is_nothing_to_check(check: Any) -> None:
    ran = check("--drafter", "none")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error == "error: there is no drafter to check; give one with --drafter"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--samples", 10, "num_samples is 10; it must be at least 200"),
        ("--temperature", 0, "temperature is 0.0; the law of sampled tokens needs one above 0"),
        ("--alpha", 0.5, "alpha is 0.5; it must be above 0 and at most 0.05"),
    ],
)
def test_sizes_that_prove_nothing_are_refused(
    check: Any, option: str, value: float, message: str
) -> None:
    ran = check(option, value)
    assert (ran.code, ran.out, ran.error) == (2, "", f"error: {message}")
