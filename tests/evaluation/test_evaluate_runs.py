"""Measured runs on a tiny target: rows, clock, order, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import ConfigError, UserError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.benchmark import Settings
from blockdraft.evaluation.engines import Engine, LocalEngine, local_engines
from blockdraft.evaluation.evaluate import check_equal, evaluate
from blockdraft.evaluation.run_chunk import run_chunk
from blockdraft.evaluation.tasks import EvalPrompt
from blockdraft.types import SamplingParams
from tests.evaluation.runs import engine, engines, llm_of, out_in, prompts, scripted, target, task
from tests.fakes.scripted import accept_first

SHORT = Settings(max_tokens=31)


def measure(
    found: dict[str, Engine], folder: Path, settings: Settings = SHORT, **more: Any
) -> dict[str, Any]:
    tasks = more.pop("tasks", [task()])
    options = {"must_be_equal": True, "log": lambda _: None, **more}
    return evaluate(found, tasks, settings, out_in(folder), **options)


def by_method(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in result["rows"]}


def test_rows_of_a_scripted_drafter(tmp_path: Path) -> None:
    """Two of three drafts are right: 30 tokens after the first in 10 cycles of 3."""
    result = measure(engines(script=scripted(accept_first(2))), tmp_path)
    rows = by_method(result)
    plain, row = rows["plain"], rows["script"]
    assert (row["tau"], row["tau_pooled"], row["tau_ci95"]) == (3.0, 3.0, (3.0, 3.0))
    assert row["committed_histogram"] == (0, 0, 0, 50)
    # The last cycle of each answer has room for three tokens: it drafts two.
    assert row["drafted_by_position"] == (50, 50, 45)
    assert row["accepted_by_position"] == (50, 50, 0)
    assert row["conditional_acceptance_by_position"] == (1.0, 1.0, 0.0)
    assert (plain["tau"], plain["accepted_by_position"]) == (1.0, ())
    assert (row["num_prompts"], row["num_answers"], row["num_tokens"]) == (5, 5, 155)
    assert (row["divergence_rate"], row["speedup_refused"]) == (0.0, None)
    assert row["speedup"] == pytest.approx(row["tokens_per_s"] / plain["tokens_per_s"])
    assert row["itl_ms"]["p50"] <= row["itl_ms"]["p95"] <= row["itl_ms"]["p99"]
    assert row["ttft_ms"]["p50"] > 0
    assert plain["speedup"] == 1.0
    assert plain["predicted_speedup"] == pytest.approx(1.0)
    assert row["peak_memory_bytes"] > row["cache_bytes"] > 0


def test_prediction_and_measurement_agree_where_nothing_is_batched(tmp_path: Path) -> None:
    """One at a time, both are made of the same seconds: tokens per cycle over cost per cycle."""
    row = by_method(measure(engines(script=scripted(accept_first(2))), tmp_path))["script"]
    assert row["predicted_speedup"] == pytest.approx(row["decode_speedup"], rel=0.02)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_time_split_adds_up_to_the_wall(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_of(engine(scripted(accept_first(2))))
    forward = llm.target.forward

    def as_slow_as_a_small_model(*args: Any) -> Any:
        time.sleep(0.01)
        return forward(*args)

    # Of a pass that takes no time at all, what is outside the clock would be a great share.
    monkeypatch.setattr(llm.target, "forward", as_slow_as_a_small_model)
    asked = prompts()
    params = [SamplingParams(max_tokens=60)] * len(asked)
    shares = []
    for _ in range(3):
        start = time.perf_counter()
        run = run_chunk(llm, asked, params, concurrency)
        wall = time.perf_counter() - start
        assert run.phase_s is not None
        assert sum(run.phase_s.values()) == pytest.approx(run.wall_s)
        assert all(value > 0 for value in run.phase_s.values())
        longest = max(answer.decode_s + (answer.ttft_s or 0) for answer in run.answers)
        assert longest <= run.wall_s <= wall
        shares.append(1 - run.wall_s / wall)
    # What is outside the clock: encoding prompts, decoding texts, reading the peak of memory. The
    # machine may halt a run there, but not every one.
    assert min(shares) < 0.02


def test_arrivals_add_up_to_the_time_of_an_answer() -> None:
    llm = llm_of(engine(scripted(accept_first(2))))
    run = run_chunk(llm, prompts(), [SamplingParams(max_tokens=60)] * 5, 2)
    for answer in run.answers:
        assert answer.cycles is not None
        assert len(answer.gaps_s) == len(answer.cycles)
        assert sum(answer.gaps_s) == pytest.approx(answer.decode_s, rel=0.2, abs=0.05)


def test_a_batch_shares_its_passes() -> None:
    llm = llm_of(engine())
    params = [SamplingParams(max_tokens=11)] * 4
    alone, together = run_chunk(llm, prompts(4), params, 1), run_chunk(llm, prompts(4), params, 4)
    assert (alone.num_passes, together.num_passes) == (40, 10)
    assert [a.token_ids for a in alone.answers] == [a.token_ids for a in together.answers]


class Recorder:
    """An engine that notes who was asked what, and may answer wrongly or stop."""

    def __init__(self, inner: Engine, name: str, seen: list[Any], fault: Any = None) -> None:
        self.inner, self.name, self.seen, self.fault = inner, name, seen, fault

    def run(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], concurrency: int
    ) -> ChunkRun:
        self.seen.append((self.name, tuple(prompt.id for prompt in prompts), concurrency))
        run = self.inner.run(prompts, params, concurrency)
        return self.fault(run) if self.fault else run

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()


def test_methods_take_turns_and_none_is_always_first(tmp_path: Path) -> None:
    seen: list[Any] = []
    found: dict[str, Engine] = {name: Recorder(engine(), name, seen) for name in ("plain", "b")}
    measure(found, tmp_path, dataclasses.replace(SHORT, max_tokens=4, concurrency=(1, 2)))
    timed = [(name, ids) for name, ids, _ in seen[4:]]  # after the warm-up: 2 engines, 2 loads
    assert timed[:4] == [("plain", ("p0",)), ("b", ("p0",)), ("b", ("p1",)), ("plain", ("p1",))]
    everything = ("p0", "p1", "p2", "p3", "p4")  # a chunk at 2 at once has room for 8
    assert timed[10:] == [("plain", everything), ("b", everything)]


def one_token_off(run: ChunkRun) -> ChunkRun:
    first, *rest = run.answers
    if first.prompt_id != "p2":
        return run
    wrong = dataclasses.replace(first, token_ids=(*first.token_ids[:-1], 0))
    return dataclasses.replace(run, answers=(wrong, *rest))


def test_no_speedup_where_greedy_outputs_differ(tmp_path: Path) -> None:
    found: dict[str, Engine] = {"plain": engine(), "b": Recorder(engine(), "b", [], one_token_off)}
    result = measure(found, tmp_path)
    row = by_method(result)["b"]
    assert [row[key] for key in ("speedup", "decode_speedup", "predicted_speedup")] == [None] * 3
    assert row["speedup_refused"].startswith("1 of 5 greedy answers differ")
    with pytest.raises(UserError, match=r"no speed-up for b on toy: 1 of 5 .*first: p2, turn 1"):
        check_equal(result["rows"])


def test_rounding_may_part_texts_where_that_is_allowed(tmp_path: Path) -> None:
    found: dict[str, Engine] = {"plain": engine(), "b": Recorder(engine(), "b", [], one_token_off)}
    result = measure(found, tmp_path, must_be_equal=False)
    row = by_method(result)["b"]
    assert (row["divergence_rate"], row["num_diverged"]) == (0.2, 1)
    assert row["speedup"] is not None
    check_equal(result["rows"])


def test_sampled_answers_are_not_compared_and_are_repeatable(tmp_path: Path) -> None:
    settings = dataclasses.replace(SHORT, temperatures=(0.0, 1.0))
    results = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        found = engines(script=scripted(accept_first(2)))
        results.append(measure(found, tmp_path / name, settings)["rows"])
    greedy, sampled = results[0][1], results[0][3]
    assert (greedy["divergence_rate"], sampled["divergence_rate"]) == (0.0, None)
    assert sampled["speedup"] is not None
    assert sampled["tau"] < greedy["tau"]
    assert [row["tau"] for row in results[0]] == [row["tau"] for row in results[1]]


def test_without_plain_there_is_no_speedup(tmp_path: Path) -> None:
    [row] = measure({"script": engine(scripted(accept_first(1)))}, tmp_path)["rows"]
    assert row["tau"] == 2.0
    assert (row["speedup"], row["divergence_rate"]) == (None, None)


def test_both_turns_are_answered_and_the_second_knows_the_first() -> None:
    llm = llm_of(engine())
    run = run_chunk(llm, prompts(2, turns=2), [SamplingParams(max_tokens=9)] * 2, 2)
    assert [(a.prompt_id, a.turn) for a in run.answers] == [
        ("p0", 0),
        ("p1", 0),
        ("p0", 1),
        ("p1", 1),
    ]
    for first, second in zip(run.answers[:2], run.answers[2:], strict=True):
        assert second.prompt_tokens == first.prompt_tokens + 9 + 4


def test_a_turn_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    room = target().info.max_context_len
    long = EvalPrompt(id="long", turns=("".join(f" {i % 90}," for i in range(room)),))
    late = EvalPrompt(id="late", turns=(" 3,", "".join(" 4," for _ in range(room)), " 5,"))
    toy = dataclasses.replace(task(), prompts=(*prompts(1), long, late))
    [row] = measure({"plain": engine()}, tmp_path, tasks=[toy])["rows"]
    assert row["left_out"] == ["late", "long"]
    assert (row["num_prompts"], row["num_answers"]) == (2, 2)


def test_the_file_is_plain_json_with_its_provenance(tmp_path: Path) -> None:
    measure(engines(script=scripted(accept_first(2))), tmp_path)
    text = out_in(tmp_path).read_text()
    result = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(result) == {"provenance", "settings", "rows"}
    assert result["provenance"]["drafter"]["script"]["name"] == "scripted"
    assert result["provenance"]["target"]["fingerprint"] == target().info.fingerprint
    assert result["settings"]["tasks"] == [{"name": "toy", "source": "tests", "num_prompts": 5}]
    assert [path.name for path in tmp_path.iterdir()] == ["R.json"]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([], "give one or several different ones"),
        (["ngram", "ngram"], "give one or several different ones"),
        (["none"], "method 'none' is called 'plain' here"),
        (["ngrm"], "did you mean ngram"),
    ],
)
def test_wrong_methods(methods: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        local_engines(llm_of(engine()), methods)


def test_a_drafter_that_drafts_nothing_is_no_method() -> None:
    llm = llm_of(engine())
    with pytest.raises(ConfigError, match="num_draft_tokens is 0, with which ngram would be plain"):
        local_engines(llm, ["plain", "ngram"], 0)
    assert list(local_engines(llm, ["plain"], 0)) == ["plain"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": ()}, "concurrency is"),
        ({"concurrency": (2, 2)}, "give one value or several different"),
        ({"concurrency": (0,)}, "each must be 1 or more"),
        ({"max_tokens": 1}, "speed needs at least 2"),
        ({"temperatures": (-1.0,)}, "temperature is -1"),
        ({"temperatures": (1.0,), "top_p": 0.0}, "top_p is 0"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**changes)


def test_methods_share_the_target_in_memory() -> None:
    llm = llm_of(engine())
    found = local_engines(llm, ["plain", "ngram"])
    assert all(isinstance(one, LocalEngine) for one in found.values())
    assert all(llm_of(one).target is llm.target for one in found.values())
    assert [llm_of(one).drafter is None for one in found.values()] == [True, False]
