"""A run killed anywhere, run again: no row twice, none lost, none different."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from blockdraft.data import answer_writer, shard_writer
from blockdraft.data.answer_sources import Asked, EngineSource, Reply
from blockdraft.data.answers import read_answers, read_meta
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.data.regenerate import Summary, regenerate
from blockdraft.engine.llm import LLM
from blockdraft.errors import CapacityError, CheckpointError, ConfigError
from blockdraft.types import SamplingParams
from tests.data.conftest import MakeRecipe, silent

MakeSource = Callable[[AnswersRecipe], EngineSource]


class Killed(BaseException):
    """Stands for whatever ends a process."""


def killer(after: int) -> Callable[[Summary], None]:
    """Ends the run when this many answers are there."""

    def on_answer(summary: Summary) -> None:
        if summary.num_answered == after:
            raise Killed

    return on_answer


def answers_by_id(folder: Path) -> dict[str, tuple[int, ...]]:
    return {answer.id: answer.token_ids for answer in read_answers(folder / "answers.jsonl")}


def check_folder(recipe: AnswersRecipe) -> None:
    """Every answer once, each with its states."""
    answers = {answer.id: answer for answer in read_answers(recipe.out / "answers.jsonl")}
    assert len(answers) == 36
    if not recipe.features.layer_ids:
        return
    store = FeatureStore(recipe.out / "shards")
    samples = [store.sample(i) for i in range(len(store))]
    assert Counter(sample.id for sample in samples) == Counter(list(answers))
    for sample in samples:
        assert tuple(sample.token_ids.tolist()) == answers[sample.id].all_ids
        assert sample.prompt_len == len(answers[sample.id].prompt_ids)
        assert sample.features.shape == (len(sample.token_ids) - 1, 3 * 64)


def test_answers_are_those_the_target_gives_alone(
    make_recipe: MakeRecipe, source: MakeSource, llm: LLM
) -> None:
    recipe = make_recipe()
    summary = regenerate(recipe, log=silent, source=source(recipe))
    check_folder(recipe)
    answers = read_answers(recipe.out / "answers.jsonl")
    assert (summary.num_planned, summary.num_answered, summary.num_left) == (36, 36, 0)
    assert summary.num_tokens == sum(len(answer.token_ids) for answer in answers)
    assert summary.num_length_cut == sum(a.finish_reason == "length" for a in answers)
    assert {answer.temperature for answer in answers} == {0.0, 0.9}
    for answer in answers[:6]:
        params = SamplingParams(max_tokens=10, temperature=answer.temperature, seed=answer.seed)
        [alone] = llm.generate(list(answer.prompt_ids), params)
        assert alone.token_ids == answer.token_ids
    assert len({a.token_ids for a in answers if a.id.startswith("p/0@1#")}) == 2


@pytest.mark.parametrize("layer_ids", [[], [0, 3, 6]], ids=["answers alone", "with states"])
@pytest.mark.parametrize("after", [1, 4, 7, 35])
def test_a_run_that_is_ended_goes_on_where_it_was(
    make_recipe: MakeRecipe, source: MakeSource, tmp_path: Path, after: int, layer_ids: list[int]
) -> None:
    features = {"layer_ids": layer_ids, "shard_samples": 3, "reserve_gib": 0}
    recipe = make_recipe(features=features)
    with pytest.raises(Killed):
        regenerate(recipe, log=silent, source=source(recipe), on_answer=killer(after))
    assert len(answers_by_id(recipe.out)) == after
    summary = regenerate(recipe, log=silent, source=source(recipe))
    assert (summary.num_resumed, summary.num_answered) == (after, 36 - after)
    check_folder(recipe)
    whole = make_recipe(out=str(tmp_path / "whole"), features=features)
    regenerate(whole, log=silent, source=source(whole))
    assert answers_by_id(recipe.out) == answers_by_id(whole.out)


@pytest.mark.parametrize("step", ["pack_answers", "save_file", "AnswerFile.append", "write_index"])
def test_a_kill_between_any_two_writes_loses_nothing(
    make_recipe: MakeRecipe, source: MakeSource, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The process dies right before a step of writing the second shard."""
    recipe, place = make_recipe(), shard_writer
    owner, _, name = step.rpartition(".")
    holder = getattr(place, owner) if owner else place
    real, calls = getattr(holder, name), []

    def dying(*args: object, **kwargs: object) -> object:
        calls.append(name)
        if len(calls) >= 2:
            raise Killed
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(holder, name, dying)
        with pytest.raises(Killed):
            regenerate(recipe, log=silent, source=source(recipe))
    regenerate(recipe, log=silent, source=source(recipe))
    check_folder(recipe)


def test_a_torn_last_line_is_written_anew(make_recipe: MakeRecipe, source: MakeSource) -> None:
    recipe = make_recipe()
    regenerate(recipe, log=silent, source=source(recipe))
    path = recipe.out / "answers.jsonl"
    before = answers_by_id(recipe.out)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(answers_by_id(recipe.out)) == 35
    summary = regenerate(recipe, log=silent, source=source(recipe))
    assert summary.num_answered == 0  # its shard still holds it
    assert answers_by_id(recipe.out) == before


def test_a_bare_folder_of_older_shards_is_taken_up(
    make_recipe: MakeRecipe, source: MakeSource
) -> None:
    """Shards without rows files, index and meta: all are made from the answers file."""
    recipe = make_recipe()
    regenerate(recipe, log=silent, source=source(recipe))
    for path in (recipe.out / "shards").iterdir():
        if path.suffix != ".safetensors":
            path.unlink()
    (recipe.out / "answers.meta.json").unlink()
    assert regenerate(recipe, log=silent, source=source(recipe)).num_answered == 0
    check_folder(recipe)


def test_a_full_disk_ends_the_run_before_the_reserve(
    make_recipe: MakeRecipe, source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe()
    free = iter([10**9] * 9)
    monkeypatch.setattr(answer_writer, "free_bytes", lambda _: next(free, 0))
    lines: list[str] = []
    summary = regenerate(recipe, log=lines.append, source=source(recipe))
    assert (summary.stopped_by, len(answers_by_id(recipe.out))) == ("disk", 9)
    assert "run the same command again" in lines[-1]
    monkeypatch.undo()
    assert regenerate(recipe, log=silent, source=source(recipe)).num_answered == 27
    check_folder(recipe)


def test_memory_that_does_not_suffice_is_not_told_as_a_full_disk(
    make_recipe: MakeRecipe, source: MakeSource, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_cache(*_: object) -> None:
        raise CapacityError("a cache needs more than there is; lower the batch size")

    recipe, lines = make_recipe(), list[str]()
    monkeypatch.setattr(llm.target, "new_cache", new_cache)
    summary = regenerate(recipe, log=lines.append, source=source(recipe))
    assert (summary.stopped_by, summary.num_left) == ("memory", 36)
    assert "lower the batch size" in lines[-1]


def test_the_size_is_told_before_the_first_answer(
    make_recipe: MakeRecipe, source: MakeSource
) -> None:
    recipe, lines = make_recipe(), list[str]()
    with pytest.raises(Killed):
        regenerate(recipe, log=lines.append, source=source(recipe), on_answer=killer(1))
    assert "hidden states: 384 bytes a token" in lines[0]
    assert "for 36 answers" in lines[0]


def test_meta_says_what_the_answers_came_from(make_recipe: MakeRecipe, source: MakeSource) -> None:
    recipe = make_recipe(max_samples=2)
    regenerate(recipe, log=silent, source=source(recipe))
    meta = read_meta(recipe.out)
    assert meta is not None
    assert meta["fingerprint"] == source(recipe).info.fingerprint
    assert len(meta["template_sha256"]) == 64
    assert meta["recipe"]["sources"][0]["name"] == "p"
    json.dumps(meta)


@pytest.mark.parametrize(
    ("key", "value"), [("fingerprint", "0"), ("template_sha256", "0"), ("max_tokens", 99)]
)
def test_answers_of_two_origins_do_not_mix(
    make_recipe: MakeRecipe, source: MakeSource, key: str, value: object
) -> None:
    recipe = make_recipe(max_samples=2)
    regenerate(recipe, log=silent, source=source(recipe))
    path = recipe.out / "answers.meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CheckpointError, match=rf"says {key} .* do not mix"):
        regenerate(recipe, log=silent, source=source(recipe))


def test_shards_whose_answers_are_missing_do_not_mix_either(
    make_recipe: MakeRecipe, source: MakeSource
) -> None:
    """Their lines are written again from the shards: of what the meta file says, or not at all."""
    features = {"layer_ids": [0, 3, 6], "shard_samples": 3, "reserve_gib": 0}
    recipe = make_recipe(features=features)
    regenerate(recipe, log=silent, source=source(recipe))
    (recipe.out / "answers.jsonl").unlink()
    other = make_recipe(features=features, max_tokens=4)
    with pytest.raises(CheckpointError, match="says max_tokens 10, this run has 4"):
        regenerate(other, log=silent, source=source(other))
    assert (recipe.out / "answers.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"dtype": "bfloat16", "weights": "bfloat16"}, "says dtype float32, this run has bfloat16"),
        ({"dtype": "float32", "weights": "int8"}, "says weights float32, this run has int8"),
        ({"server": "http://h/v1", "model": "m"}, "by our engine, this run has a server's model"),
    ],
)
def test_answers_in_two_number_formats_do_not_mix(
    make_recipe: MakeRecipe, source: MakeSource, engine: dict[str, str], message: str
) -> None:
    """And the file that says what the answers came from stays as it was."""
    recipe = make_recipe(max_samples=2)
    regenerate(recipe, log=silent, source=source(recipe))
    before = read_meta(recipe.out)
    more, other = make_recipe(max_samples=4), source(recipe)
    other.info = dataclasses.replace(other.info, describe=engine)
    with pytest.raises(CheckpointError, match=f"{message}.*do not mix"):
        regenerate(more, log=silent, source=other)
    assert read_meta(recipe.out) == before


@pytest.mark.parametrize(
    "variants",
    [[{"temperature": 1.0}], [{"temperature": 0.5}, {}]],
    ids=["another temperature", "a variant put before"],
)
def test_answers_at_two_temperatures_do_not_mix_under_one_id(
    make_recipe: MakeRecipe, source: MakeSource, variants: list[dict[str, float]]
) -> None:
    one = {"name": "p", "file": "p.jsonl", "variants": [{}]}
    recipe = make_recipe(max_samples=2, sources=[one])
    regenerate(recipe, log=silent, source=source(recipe))
    before = read_meta(recipe.out)
    other = make_recipe(sources=[{**one, "variants": variants}])
    with pytest.raises(CheckpointError, match=r"p/\d+@0#0 was drawn with temperature 0\.0, .*last"):
        regenerate(other, log=silent, source=source(other))
    assert read_meta(recipe.out) == before
    added = make_recipe(sources=[{**one, "variants": [{}, *variants[:1]]}])
    assert regenerate(added, log=silent, source=source(added)).num_resumed == 2


def test_states_of_other_layers_do_not_mix(make_recipe: MakeRecipe, source: MakeSource) -> None:
    recipe = make_recipe(max_samples=2)
    regenerate(recipe, log=silent, source=source(recipe))
    other = make_recipe(features={"layer_ids": [0, 3, 5], "reserve_gib": 0})
    with pytest.raises(CheckpointError, match=r"layer_ids \(0, 3, 6\), but \(0, 3, 5\)"):
        regenerate(other, log=silent, source=source(other))


def test_a_prompt_that_changed_under_its_id_is_named(
    make_recipe: MakeRecipe, source: MakeSource, tmp_path: Path
) -> None:
    recipe = make_recipe(max_samples=4)
    regenerate(recipe, log=silent, source=source(recipe))
    text = (tmp_path / "p.jsonl").read_text()
    (tmp_path / "p.jsonl").write_text(text.replace("say", "tell"))
    with pytest.raises(CheckpointError, match="has another prompt than the recipe gives"):
        regenerate(recipe, log=silent, source=source(recipe))


def test_long_prompts_are_left_out_and_counted(make_recipe: MakeRecipe, source: MakeSource) -> None:
    prompt_lens = {len(a.prompt_ids) for a in _answers(make_recipe(), source)}
    limit = sorted(prompt_lens)[0]
    recipe = make_recipe(out=str(make_recipe().out) + "2", max_prompt_len=limit)
    summary = regenerate(recipe, log=silent, source=source(recipe))
    answers = read_answers(recipe.out / "answers.jsonl")
    assert answers
    assert all(len(a.prompt_ids) <= limit for a in answers)
    assert summary.num_too_long == 36 - len(answers)
    assert summary.num_left == 0


def _answers(recipe: AnswersRecipe, source: MakeSource) -> list:  # type: ignore[type-arg]
    regenerate(recipe, log=silent, source=source(recipe))
    return read_answers(recipe.out / "answers.jsonl")


def test_two_runs_do_not_write_one_folder(make_recipe: MakeRecipe, source: MakeSource) -> None:
    recipe = make_recipe()

    def second(_: Summary) -> None:
        with pytest.raises(ConfigError, match="written by another run"):
            regenerate(recipe, log=silent, source=source(recipe))
        raise Killed

    with pytest.raises(Killed):
        regenerate(recipe, log=silent, source=source(recipe), on_answer=second)


class Failing(EngineSource):
    """An engine whose answers to some prompts fail."""

    def replies(self, asked: Sequence[Asked]) -> Iterator[Reply]:
        for reply in super().replies(asked):
            if reply.asked.sample.id == "p/3@0#0":
                reply = Reply(asked=reply.asked, token_ids=(), finish_reason="error", error="NaN")
            yield reply


def test_failed_answers_are_counted_and_asked_again(
    make_recipe: MakeRecipe, source: MakeSource, llm: LLM
) -> None:
    recipe = make_recipe()
    summary = regenerate(recipe, log=silent, source=Failing(recipe, silent, llm))
    assert (summary.num_answered, summary.num_failed) == (35, 1)
    assert summary.failures == ["p/3@0#0: NaN"]
    assert regenerate(recipe, log=silent, source=source(recipe)).num_answered == 1
    check_folder(recipe)


def test_states_are_those_of_a_pass_over_the_whole_text(
    make_recipe: MakeRecipe, source: MakeSource, llm: LLM
) -> None:
    from blockdraft.targets.base import RowBatch

    recipe = make_recipe(max_samples=5)
    regenerate(recipe, log=silent, source=source(recipe))
    store = FeatureStore(recipe.out / "shards")
    for i in range(5):
        sample = store.sample(i)
        ids = sample.token_ids[None, :-1]
        cache = llm.target.new_cache(1, ids.shape[1])
        batch = RowBatch(ids, (ids.shape[1],), layer_ids=(0, 3, 6), logits_for="none")
        whole = llm.target.forward(cache, batch).features
        assert whole is not None
        torch.testing.assert_close(sample.features.float(), whole[0], rtol=1e-2, atol=1e-2)
