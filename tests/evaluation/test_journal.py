"""An interrupted run goes on where it stopped, and only there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.benchmark import Settings, run_all
from blockdraft.evaluation.engines import Engine
from blockdraft.evaluation.evaluate import evaluate
from blockdraft.evaluation.journal import Journal
from blockdraft.evaluation.provenance import code_digest
from blockdraft.evaluation.run_chunk import run_chunk
from blockdraft.evaluation.tasks import EvalPrompt
from blockdraft.types import SamplingParams
from tests.evaluation.runs import engine, llm_of, out_in, prompts, scripted, task
from tests.fakes.scripted import accept_first


class Mortal:
    """Answers so many chunks, then the user presses Ctrl-C."""

    def __init__(self, inner: Engine, lives: int) -> None:
        self.inner, self.lives, self.num_runs = inner, lives, 0

    def run(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], concurrency: int
    ) -> ChunkRun:
        if self.num_runs == self.lives:
            raise KeyboardInterrupt
        self.num_runs += 1
        return self.inner.run(prompts, params, concurrency)

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()


def run(folder: Path, lives: int, max_tokens: int = 20) -> tuple[Any, int, list[str]]:
    notes: list[str] = []
    mortal = Mortal(engine(scripted(accept_first(2))), lives)
    found: dict[str, Engine] = {"plain": engine(), "b": mortal}
    settings, result = Settings(max_tokens=max_tokens), None
    try:
        result = evaluate(
            found, [task()], settings, out_in(folder), must_be_equal=True, log=notes.append
        )
    except KeyboardInterrupt:
        notes.append("interrupted")
    return result, mortal.num_runs, notes


def test_the_rest_is_run_and_the_result_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole, num_runs, _ = run(tmp_path / "a", lives=100)
    assert num_runs == 6  # a warm-up and five prompts
    assert run(tmp_path / "b", lives=3)[2][-1] == "interrupted"
    assert not out_in(tmp_path / "b").exists()
    result, num_runs, notes = run(tmp_path / "b", lives=100)
    assert num_runs == 1 + 3  # two prompts were finished
    # The third prompt of the plain method was finished too, or not: methods take turns.
    assert any(note.startswith("resuming: ") for note in notes)
    for ours, theirs in zip(result["rows"], whole["rows"], strict=True):
        for key in ("method", "tau", "tau_ci95", "num_tokens", "committed_histogram"):
            assert ours[key] == theirs[key]
    assert not out_in(tmp_path / "b").with_name("R.json.journal").exists()


def test_a_journal_of_another_run_is_not_continued(tmp_path: Path) -> None:
    run(tmp_path, lives=3)
    with pytest.raises(ConfigError, match="from an interrupted run with other settings or models"):
        run(tmp_path, lives=100, max_tokens=21)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("code_digest", "with other code; repeat that"),
        ("machine", "with other machine or threads; repeat that"),
        ("versions", "with other package versions; repeat that"),
    ],
)
def test_a_result_does_not_mix_code_or_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    run(tmp_path, lives=3)
    monkeypatch.setattr(f"blockdraft.evaluation.evaluate.{name}", lambda: "another")
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, lives=100)


def test_the_codes_hash_is_of_every_source() -> None:
    digest = code_digest()
    assert len(digest) == 64
    assert digest == code_digest.__wrapped__()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: b"" if path.suffix == ".c" else b"x")
        assert digest != code_digest.__wrapped__()


def test_temperatures_that_print_alike_are_told_apart(tmp_path: Path) -> None:
    """Each keeps its own answers: resumed, nothing of one stands in for the other."""
    settings = Settings(max_tokens=20, temperatures=(0.7, 0.7000001))
    tasks, found = [task(1)], {"plain": engine()}
    journal = Journal(tmp_path / "j", {})
    runs = run_all(found, tasks, settings, journal, lambda _: None)
    assert len(journal) == 2
    again = run_all(found, tasks, settings, Journal(tmp_path / "j", {}), lambda _: None)
    assert again == runs


def chunk() -> ChunkRun:
    llm = llm_of(engine(scripted(accept_first(2))))
    return run_chunk(llm, prompts(2), [SamplingParams(max_tokens=9)] * 2, 2)


def test_a_chunk_comes_back_as_it_was(tmp_path: Path) -> None:
    one, path = chunk(), tmp_path / "j"
    Journal(path, {"a": 1}).add("k", one)
    assert Journal(path, {"a": 1}).get("k") == one
    assert Journal(path, {"a": 1}).get("other") is None


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_line_that_was_cut_off_is_forgotten(tmp_path: Path, kept: float) -> None:
    one, path = chunk(), tmp_path / "j"
    journal = Journal(path, {})
    journal.add("first", one)
    size = path.stat().st_size
    journal.add("second", one)
    data = path.read_bytes()
    path.write_bytes(data[: size + int(kept * (len(data) - size))])
    again = Journal(path, {})
    assert again.get("first") == one
    assert again.get("second") is None
    again.add("second", one)
    assert len(Journal(path, {})) == 2


def test_a_cut_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text('{"sett')
    assert len(Journal(path, {})) == 0


@pytest.mark.parametrize("text", ["oops\n", '{"settings": "x"}\n{}\n', '{"settings": 1}\n[3]\n'])
def test_damage_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"is damaged; delete it"):
        Journal(path, {})
