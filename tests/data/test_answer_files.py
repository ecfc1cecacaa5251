"""Answers on disk: lines, what a kill leaves of them, and the compact form for keeping."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockdraft.data.answer_pack import pack_answers, pack_meta, unpack_answers
from blockdraft.data.answer_sources import EngineSource
from blockdraft.data.answers import Answer, AnswerFile, read_answers, read_meta
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.data.regenerate import regenerate
from blockdraft.data.repack import pack_folder, unpack_folder
from blockdraft.errors import CheckpointError, ConfigError
from tests.data.conftest import MakeRecipe, silent


def answer(number: int, **changes: object) -> Answer:
    fields: dict[str, object] = {
        "id": f"é/{number}@0#0",
        "source": "s",
        "temperature": 0.7,
        "seed": 2**47 + number,
        "prompt_ids": (1, number),
        "token_ids": tuple(range(number)),
        "finish_reason": "stop",
        "is_looping": False,
    }
    return Answer(**{**fields, **changes})  # type: ignore[arg-type]


ANSWERS = [answer(0), answer(3, finish_reason="length"), answer(200, is_looping=True)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "new" / "a.jsonl")
    file.append(ANSWERS[:1])
    file.append(ANSWERS[1:])
    assert read_answers(file.path) == ANSWERS
    for counted in (file, AnswerFile(file.path)):
        assert counted.ids == {a.id for a in ANSWERS}
        assert counted.counts == {"stop": 2, "length": 1, "looping": 1, "tokens": 203}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_line_is_left_out_and_then_taken_away(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    AnswerFile(path).append(ANSWERS[:2])
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_answers(path) == ANSWERS[:1]
    AnswerFile(path).append(ANSWERS[1:])
    assert read_answers(path) == ANSWERS


@pytest.mark.parametrize("size", [1, 65536, 200_000])
def test_a_file_of_one_torn_line_becomes_empty(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x" * size)
    assert AnswerFile(path).ids == set()
    assert path.read_bytes() == b""


def test_a_long_torn_line_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    AnswerFile(path).append(ANSWERS)
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 150_000)
    AnswerFile(path)
    assert path.read_bytes() == whole


def test_rows_without_is_looping_are_looked_at(tmp_path: Path) -> None:
    row = {**json.loads(answer(1, token_ids=(5,) * 60).line())}
    del row["is_looping"]
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert read_answers(tmp_path / "a.jsonl")[0].is_looping


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}\n", r"a\.jsonl:4 is no answer: KeyError"),
        ("x\n", r"a\.jsonl:4 is no answer: JSONDecodeError"),
        (ANSWERS[0].line(), r"a\.jsonl:4 has the answer é/0@0#0 a second time"),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    AnswerFile(path).append(ANSWERS)
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
    with pytest.raises(CheckpointError, match=message):
        read_answers(path)


def test_a_row_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    AnswerFile(path).append(ANSWERS)
    with path.open("ab") as file:
        file.write(ANSWERS[0].line().replace("@0", "@1").encode("utf-16") + b"\n")
    with pytest.raises(CheckpointError, match=r"a\.jsonl:4 is not UTF-8 .*position 0"):
        read_answers(path)


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.jsonl is not a file"):
        read_answers(tmp_path / "a.jsonl")
    assert read_meta(tmp_path) is None
    for text in ("{", "[]"):
        (tmp_path / "answers.meta.json").write_text(text)
        with pytest.raises(CheckpointError, match="is damaged"):
            read_meta(tmp_path)


@pytest.mark.parametrize("largest", [2**16 - 1, 2**16])
def test_packed_answers_are_unpacked(tmp_path: Path, largest: int) -> None:
    answers = [*ANSWERS, answer(9, token_ids=(largest, 1))]
    prompts = {a.id: a.prompt_ids for a in answers}
    path = tmp_path / "a.npz"
    pack_answers(path, answers, meta={"target": "t"})
    assert unpack_answers(path, prompts.__getitem__) == answers
    assert pack_meta(path)["target"] == "t"
    pack_answers(path, answers, has_prompts=True)
    assert unpack_answers(path) == answers
    pack_answers(path, [])
    assert unpack_answers(path, prompts.__getitem__) == []


def test_a_pack_is_small(tmp_path: Path) -> None:
    """About two bytes a token, whatever the prompts."""
    ids = np.random.default_rng(0).integers(0, 49152, (200, 250)).tolist()
    answers = [
        answer(i, token_ids=tuple(row), prompt_ids=tuple(ids[0])) for i, row in enumerate(ids)
    ]
    pack_answers(tmp_path / "a.npz", answers)
    assert (tmp_path / "a.npz").stat().st_size < 2.1 * 200 * 250


def test_other_prompts_than_those_packed_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    pack_answers(path, ANSWERS)
    with pytest.raises(CheckpointError, match="not those its answers were given to"):
        unpack_answers(path, lambda _: [1, 2, 3])
    with pytest.raises(CheckpointError, match="holds no prompts"):
        unpack_answers(path)


@pytest.mark.parametrize("keep", [0, 10, 300, -30])
def test_damaged_packs_are_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.npz"
    pack_answers(path, ANSWERS, has_prompts=True)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"a\.npz is no file of packed answers"):
        unpack_answers(path)
    with pytest.raises(CheckpointError, match="is missing"):
        pack_meta(tmp_path / "none.npz")


def test_a_folder_is_packed_and_made_anew(
    make_recipe: MakeRecipe, source: Callable[[AnswersRecipe], EngineSource], tmp_path: Path
) -> None:
    recipe = make_recipe(features={})
    regenerate(recipe, log=silent, source=source(recipe))
    packed = tmp_path / "kept.npz"
    said = pack_folder(recipe, packed)
    assert (said["num_answers"], said["num_bytes"]) == (36, packed.stat().st_size)
    again = make_recipe(features={}, out=str(tmp_path / "again"))
    assert unpack_folder(again, packed, silent)["num_answers"] == 36
    for name in ("answers.jsonl", "answers.meta.json"):
        assert (again.out / name).read_bytes() == (recipe.out / name).read_bytes()
    with pytest.raises(CheckpointError, match="exists; unpack into another folder"):
        unpack_folder(again, packed, silent)
    fewer = make_recipe(out=str(tmp_path / "fewer"), max_samples=3)
    with pytest.raises(CheckpointError, match="which the recipe lacks"):
        unpack_folder(fewer, packed, silent)


def test_answers_of_another_target_are_not_made_anew(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    packed = tmp_path / "kept.npz"
    pack_answers(packed, ANSWERS, meta={"fingerprint": "0"})
    with pytest.raises(CheckpointError, match="of a target with fingerprint 0"):
        unpack_folder(make_recipe(), packed, silent)


def test_a_folder_without_meta_is_not_packed(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run regenerate on the folder once"):
        pack_folder(make_recipe(), tmp_path / "kept.npz")
