"""From prompt files and hub sets to samples: ids, texts, order, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockdraft.config import build_recipe, load_recipe
from blockdraft.data.prompts import Plan, make_plan
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[2]


def write_rows(folder: Path, *rows: object, name: str = "a.jsonl") -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def plan_of(folder: Path, sources: list[dict[str, Any]], **more: Any) -> Plan:
    table = {"target": "t", "out": "o", "data_dir": str(folder), "sources": sources, **more}
    return make_plan(build_recipe(table, AnswersRecipe))


def texts(plan: Plan) -> dict[str, str]:
    return {sample.id: sample.prompt for sample in plan.samples}


A = {"name": "a", "file": "a.jsonl"}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}
SYSTEM, PARTS = {"role": "system", "content": "s"}, [{"type": "text", "text": "hi"}]


def test_ids_name_prompt_variant_and_sample(tmp_path: Path) -> None:
    write_rows(tmp_path, {"id": "x/7", "turns": ["one\nTests: two"]})
    variants = [
        {"template": "t"},
        {"cut_before": "\nTests", "temperature": 0.5, "num_samples": 2},
        {"cut_before": "\nTests", "template": "t"},
    ]
    plan = plan_of(tmp_path, [{**A, "variants": variants}], templates={"t": "<{prompt}>"})
    assert texts(plan) == {
        "x/7@0#0": "<one\nTests: two>",
        "x/7@1#0": "one",
        "x/7@1#1": "one",
        "x/7@2#0": "<one>",
    }
    assert {s.id: s.temperature for s in plan.samples}["x/7@1#1"] == 0.5
    assert len({sample.seed for sample in plan.samples}) == 4
    assert all(0 <= sample.seed < 2**48 for sample in plan.samples)


def test_a_match_takes_its_groups_to_the_template_and_leaves_out_the_rest(tmp_path: Path) -> None:
    write_rows(tmp_path, {"id": "x/1", "turns": "Add {b} to\nit"}, {"id": "x/2", "turns": "No"})
    variants = [{}, {"match": "^Add (?P<a>.+) (?P<b>to.+)", "template": "t"}]
    plan = plan_of(
        tmp_path, [{**A, "variants": variants}], templates={"t": "{b} {a} {c} {} <{prompt}>"}
    )
    assert texts(plan) == {
        "x/1@0#0": "Add {b} to\nit",
        "x/1@1#0": "to\nit {b} {c} {} <Add {b} to\nit>",
        "x/2@0#0": "No",
    }
    assert plan.num_unmatched == 1


def test_each_variant_fills_its_template_by_itself(tmp_path: Path) -> None:
    """Else `{name}` as it stands would be asked of the target."""
    variants = [{"match": "(?P<name>x)", "template": "t"}, {"template": "t"}]
    with pytest.raises(ConfigError, match=r"template t does not say where \{prompt\} goes"):
        plan_of(tmp_path, [{**A, "variants": variants}], templates={"t": "say {name}"})
    with pytest.raises(ConfigError, match=r"template t holds \{name\}, which a variant"):
        plan_of(tmp_path, [{**A, "variants": variants}], templates={"t": "{name} {prompt}"})


def test_a_prompt_without_one_of_the_groups_is_left_out(tmp_path: Path) -> None:
    write_rows(tmp_path, {"id": "x", "turns": "ab"}, {"id": "y", "turns": "a"})
    variants = [{"match": "a(?P<b>b)?", "template": "t"}]
    plan = plan_of(tmp_path, [{**A, "variants": variants}], templates={"t": "<{b}>"})
    assert texts(plan) == {"x@0#0": "<b>"}
    assert plan.num_unmatched == 1


@pytest.mark.parametrize(
    ("variant", "templates", "message"),
    [
        ({"match": "(", "template": "t"}, {"t": "{prompt}"}, "is no regular expression"),
        ({"match": "(?P<a>x)"}, {}, "names a, and there is no template"),
        (
            {"match": "(?P<a>x)(?P<b>y)", "template": "t"},
            {"t": "{a}"},
            r"template t does not say where \{b\} goes",
        ),
        ({"match": "x{99999999999}", "template": "t"}, {"t": "{prompt}"}, "no regular expression"),
        ({"match": "(?P<prompt>x)", "template": "t"}, {"t": "{prompt}"}, "names a group prompt"),
    ],
)
def test_a_match_that_cannot_be_used_is_refused(
    tmp_path: Path, variant: dict[str, Any], templates: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(tmp_path, [{**A, "variants": [variant]}], templates=templates)


@pytest.mark.parametrize(
    ("value", "has_later", "has_system"),
    [
        ("hi", False, False),
        (["hi"], False, False),
        (["hi", "and"], True, False),
        (["hi", ["parts"]], True, False),
        ([USER, ANSWER], False, False),
        ([SYSTEM, USER], False, True),
        ([USER, SYSTEM], False, True),
        ([ANSWER, USER], False, True),
        ([SYSTEM, USER, ANSWER, {"role": "user", "content": PARTS}], True, True),
    ],
)
def test_a_prompt_is_a_text_turns_or_messages(
    tmp_path: Path, value: object, has_later: bool, has_system: bool
) -> None:
    """The first user turn is asked, and what is left out for it is counted."""
    write_rows(tmp_path, {"q": value})
    plan = plan_of(tmp_path, [{**A, "column": "q"}])
    assert texts(plan) == {"a/0@0#0": "hi"}
    assert (plan.num_later_turns, plan.num_system_turns) == (has_later, has_system)


@pytest.mark.parametrize("content", [PARTS, None, "", 3])
def test_bc52_no_later_turn_is_asked_in_place_of_the_first(tmp_path: Path, content: object) -> None:
    """BC-52: a turn that is a list of parts, say, is refused, not passed over."""
    second = {"role": "user", "content": "second"}
    for first in ({"role": "user", "content": content}, content):
        write_rows(tmp_path, {"turns": [SYSTEM, first, ANSWER, second]})
        with pytest.raises(CheckpointError, match=r"a\.jsonl:1 has no prompt .* list of parts"):
            plan_of(tmp_path, [A])


def test_a_source_more_changes_no_other_sample(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"id": f"a/{i}", "turns": "x"} for i in range(30)))
    write_rows(tmp_path, *({"id": f"b/{i}", "turns": "x"} for i in range(30)), name="b.jsonl")
    one = plan_of(tmp_path, [A])
    two = plan_of(tmp_path, [{"name": "b", "file": "b.jsonl"}, A])
    assert [s for s in two.samples if s.source == "a"] == list(one.samples)
    assert [s.source for s in two.samples] != sorted(s.source for s in two.samples)
    other = plan_of(tmp_path, [A], order_seed=1)
    assert set(other.samples) == set(one.samples)
    assert other.samples != one.samples


def test_first_rows_and_first_samples(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"id": f"a/{i}", "turns": "x"} for i in range(30)))
    assert {s.id for s in plan_of(tmp_path, [{**A, "max_rows": 2}]).samples} == {
        "a/0@0#0",
        "a/1@0#0",
    }
    whole = plan_of(tmp_path, [A])
    assert plan_of(tmp_path, [A], max_samples=7).samples == whole.samples[:7]


def test_long_prompts_are_counted(tmp_path: Path) -> None:
    write_rows(tmp_path, {"turns": "x" * 10}, {"turns": "x" * 11})
    plan = plan_of(tmp_path, [A], max_prompt_chars=10)
    assert (len(plan.samples), plan.num_too_long) == (1, 1)


def test_hub_sets_are_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: object, **kwargs: object) -> list[dict[str, str]]:
        asked.append((args, kwargs))
        return [{"question": "a"}, {"question": "b"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    source = {"name": "g", "dataset": "o/g", "dataset_config": "main", "column": "question"}
    assert texts(plan_of(tmp_path, [source])) == {"g/0@0#0": "a", "g/1@0#0": "b"}
    assert asked == [(("o/g", "main"), {"split": "train"})]


def test_a_hub_set_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise RuntimeError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(CheckpointError, match=r"hub set o/g \(default, train\).*: no route$"):
        plan_of(tmp_path, [{"name": "g", "dataset": "o/g"}])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a\.jsonl:2 is no JSON"),
        ("[1]", r"a\.jsonl:2 is no JSON object"),
        ('{"prompt": "x"}', r"a\.jsonl:2 has no prompt in 'turns'.*the row has prompt"),
        ('{"turns": []}', r"a\.jsonl:2 has no prompt in 'turns'"),
        ('{"turns": ""}', r"a\.jsonl:2 has no prompt in 'turns'"),
        ('{"turns": [3]}', r"a\.jsonl:2 has no prompt in 'turns'"),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"turns": "x"}\n' + line + "\n")
    with pytest.raises(CheckpointError, match=message):
        plan_of(tmp_path, [A])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_row_that_is_not_utf_8_is_named(tmp_path: Path, encoding: str) -> None:
    line = '{"turns": "\u00e9"}\n'
    (tmp_path / "a.jsonl").write_bytes(line.encode() + line.encode(encoding))
    with pytest.raises(CheckpointError, match=r"a\.jsonl:2 is not UTF-8 .*; convert the file"):
        plan_of(tmp_path, [A])


def test_an_id_that_is_there_twice_is_named(tmp_path: Path) -> None:
    write_rows(tmp_path, {"id": "x", "turns": "a"}, {"id": "x", "turns": "b"})
    with pytest.raises(ConfigError, match=r"the id x@0#0 twice"):
        plan_of(tmp_path, [A])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl does not exist; set data_dir"):
        plan_of(tmp_path, [A])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": []}, "sources must be at least one"),
        ({"sources": [A, A]}, "each with a name of its own"),
        ({"sources": [{"name": "a"}]}, "must have a file or a dataset"),
        ({"sources": [{**A, "dataset": "x"}]}, "must have a file or a dataset, and not both"),
        ({"sources": [{**A, "variants": []}]}, "has no variants"),
        ({"sources": [{**A, "variants": [{"template": "t"}]}]}, "uses the template 't'.*has none"),
        ({"sources": [{**A, "variants": [{"num_samples": 2}]}]}, "at temperature 0"),
        ({"sources": [{**A, "variants": [{"num_samples": 0}]}]}, "num_samples is 0"),
        ({"sources": [{**A, "variants": [{"temperature": -1}]}]}, "temperature is -1"),
        ({"templates": {"t": "x"}}, r"template t does not say where \{prompt\} goes"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_samples": -1}, "max_samples is -1; it must be 1 or more, or left out for all"),
        ({"max_samples": 0}, "max_samples is 0; it must be 1 or more"),
        ({"sources": [{**A, "max_rows": -1}]}, "max_rows of source a is -1; it must be 1 or more"),
        ({"sources": [{**A, "max_rows": 0}]}, "max_rows of source a is 0"),
        ({"features": {"layer_ids": [1, 1]}}, "give each layer once"),
        ({"features": {"shard_samples": 0}}, "shard_samples must be 1 or more"),
        ({"server": {"base_url": "localhost:1"}}, "must begin with http"),
        ({"server": {"base_url": "http://x", "concurrency": 0}}, "concurrency must be 1"),
        (
            {"server": {"base_url": "http://x/v1"}, "features": {"layer_ids": [1]}},
            "a server does not give hidden states",
        ),
    ],
)
def test_recipes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    table = {"target": "t", "out": "o", "sources": [A], **changes}
    with pytest.raises(ConfigError, match=message):
        build_recipe(table, AnswersRecipe)


def test_files_are_looked_for_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = build_recipe({"target": "t", "out": "o", "sources": [A]}, AnswersRecipe)
    monkeypatch.setenv("BLOCKDRAFT_DATA", str(tmp_path))
    assert recipe.data_folder == tmp_path
    monkeypatch.delenv("BLOCKDRAFT_DATA")
    assert recipe.data_folder == Path("data")


def test_the_recipe_we_ship_is_one() -> None:
    recipe = load_recipe(ROOT / "recipes" / "smollm2-135m" / "answers.toml", AnswersRecipe)
    assert len(recipe.sources) == 20
    assert recipe.features.layer_ids == (1, 8, 14, 20, 27)
    assert "\\boxed{}." in recipe.templates["step_by_step"]
