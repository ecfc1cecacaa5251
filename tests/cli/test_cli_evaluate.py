"""`blockdraft evaluate`: the table, the file, and what is refused before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockdraft.evaluation.tasks import DATA_VARIABLE
from tests.cli.conftest import Cli, Ran


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


@pytest.fixture
def evaluate(cli: Cli, target_folder: Path, tmp_path: Path) -> Any:
    """The command on the tiny target in float32, with two short prompts."""
    rows = [{"id": "a", "turns": ["Count to three."]}, {"id": "b", "turns": ["Say a b a b a b."]}]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*args: object) -> Ran:
        options = ("--target", target_folder, "--dtype", "float32", "--max-tokens", 10)
        return cli("evaluate", "--out", tmp_path / "R.json", "--tasks", file, *options, *args)

    return run


def test_the_table_and_the_file(evaluate: Any, drafter_folder: Path, tmp_path: Path) -> None:
    methods = f"plain,ngram,{drafter_folder},{drafter_folder}+ngram"
    ran = evaluate("--methods", methods, "--concurrency", "1,2")
    assert ran.code == 0, ran.err
    head, *lines = ran.out.splitlines()
    assert head.split()[:6] == ["task", "method", "at", "once", "T", "tau"]
    result = json.loads((tmp_path / "R.json").read_text())
    shown = [tuple(line.split()[:3]) for line in lines]
    assert shown == [
        ("mine", Path(row["method"]).name, str(row["concurrency"])) for row in result["rows"]
    ]
    assert len(shown) == 8
    assert {row["divergence_rate"] for row in result["rows"]} == {0.0}
    oracle = {row["method"]: row["oracle_tau"] is not None for row in result["rows"]}
    assert oracle == {
        "plain": False,
        "ngram": False,
        str(drafter_folder): True,
        f"{drafter_folder}+ngram": True,
    }
    assert (
        "no candidates to look at: plain (it drafts nothing), ngram (its drafts are not chosen "
        "among candidates)"
    ) in ran.err.splitlines()
    drafters = result["provenance"]["drafter"]
    assert drafters[str(drafter_folder)]["source"] == str(drafter_folder)
    # Four methods, two loads, two prompts; the drafter is watched once more, and behind a lookup.
    assert "20/20 answers" in ran.err.splitlines()[-1]


def test_candidates_can_be_left_out(evaluate: Any, drafter_folder: Path, tmp_path: Path) -> None:
    ran = evaluate("--methods", str(drafter_folder), "--no-candidates")
    assert ran.code == 0, ran.err
    [row] = json.loads((tmp_path / "R.json").read_text())["rows"]
    assert row["oracle_tau"] is None
    assert "no candidates" not in ran.err
    assert row["tau"] is not None


def test_different_greedy_texts_fail_after_the_table(
    evaluate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = "blockdraft.evaluation.compare._said"
    monkeypatch.setattr(compared, lambda answer: object())
    ran = evaluate("--methods", "plain,ngram")
    assert ran.code == 1
    assert ran.error.startswith(
        "error: no speed-up for plain on mine: 2 of 2 greedy answers differ"
    )
    assert len(ran.out.splitlines()) == 3
    assert {row["speedup"] for row in json.loads((tmp_path / "R.json").read_text())["rows"]} == {
        None
    }


@pytest.mark.parametrize("is_promised", [True, False])
def test_bfloat16_texts_part_only_where_no_bits_are_promised(
    evaluate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_promised: bool
) -> None:
    exact = "blockdraft.evaluation.lossless.rounding.is_bit_exact"
    monkeypatch.setattr(exact, lambda llm: is_promised)
    monkeypatch.setattr("blockdraft.evaluation.compare._said", lambda answer: object())
    ran = evaluate("--methods", "plain,ngram", "--dtype", "bfloat16")
    assert ran.code == (1 if is_promised else 0), ran.err
    assert ran.err.count("error: no speed-up for plain on mine") == is_promised
    rows = json.loads((tmp_path / "R.json").read_text())["rows"]
    assert [row["speedup"] is None for row in rows] == [is_promised] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--concurrency", "1,x"), "--concurrency is '1,x'; give numbers separated by commas"),
        (("--temperature", ""), "--temperature is ''; give numbers separated by commas"),
        (("--methods", "plain,,ngram"), "--methods is 'plain,,ngram'; give names separated by"),
        (("--methods", "plain,plain"), "methods are ['plain', 'plain']; give one or several diff"),
        (("--tasks", "offline,"), "--tasks is 'offline,'; give names separated by commas"),
        (("--tasks", "offline,offline"), "tasks are ['offline', 'offline']; give one or several"),
        (("--tasks", "gsm9k"), "no task 'gsm9k': not a name (gsm8k, "),
        (("--max-tokens", 1), "max_tokens is 1; speed needs at least 2"),
        (("--num-prompts", -1), "num_prompts is -1; it must be at least 1"),
        (("--base-url", "localhost:1"), "--target, --dtype: of no use with --base-url"),
        (("--model", "m"), "--model is of no use without --base-url"),
    ],
)
def test_wrong_usage_is_one_line(evaluate: Any, options: tuple[object, ...], message: str) -> None:
    ran = evaluate(*options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error.startswith(f"error: {message}")


def test_a_server_is_asked_at_an_address(cli: Cli, tmp_path: Path) -> None:
    ran = cli("evaluate", "--out", tmp_path / "R.json", "--base-url", "localhost:1")
    assert (ran.code, ran.out) == (2, "")
    assert "error: base url is 'localhost:1'; it must begin with http://" in ran.error
