"""Recipes: what is read, what is set over it, and what is refused in one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from blockdraft.config import as_plain, build_recipe, load_recipe
from blockdraft.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Item:
    name: str
    weight: float = 1.0
    size: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Inner:
    kind: Literal["cosine", "linear"] = "cosine"
    steps: int = 10

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; it must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class Outer:
    folder: Path
    inner: Inner = field(default_factory=Inner)
    items: tuple[Item, ...] = ()
    mix: dict[str, float] = field(default_factory=dict)
    is_fast: bool = False
    note: str | None = None


TEXT = """
folder = "data"
is_fast = true
mix = {ce = 1, tv = 0.5}
inner.kind = "linear"
[[items]]
name = "a"
size = [2, 3]
[[items]]
name = "b"
weight = 2
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.toml"
    file.write_text(TEXT)
    return file


def test_every_kind_of_value_is_read(path: Path) -> None:
    recipe = load_recipe(path, Outer)
    assert recipe == Outer(
        folder=Path("data"),
        is_fast=True,
        mix={"ce": 1.0, "tv": 0.5},
        inner=Inner(kind="linear"),
        items=(Item(name="a", size=(2, 3)), Item(name="b", weight=2.0)),
    )
    assert isinstance(recipe.items[1].weight, float)


def test_the_plain_form_reads_back_the_same(path: Path) -> None:
    recipe = load_recipe(path, Outer, ["note=x"])
    plain = as_plain(recipe)
    plain["items"][1].pop("size")  # TOML has no null
    assert build_recipe(plain, Outer) == recipe


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("inner.steps=3", ("inner.steps", 3)),
        ("inner.steps = 3", ("inner.steps", 3)),
        ("note=two words", ("note", "two words")),
        ("note=smollm2-135m", ("note", "smollm2-135m")),
        ('note="a=b"', ("note", "a=b")),
        ("mix.new=0.25", ("mix.new", 0.25)),
        ("items.1.weight=0.5", ("items.1.weight", 0.5)),
        ("items.0.size=[7, 8]", ("items.0.size", [7, 8])),
        ("is_fast=false", ("is_fast", False)),
        ("folder=/a/b c", ("folder", "/a/b c")),
    ],
)
def test_overrides_are_set_over_the_file(
    path: Path, override: str, expected: tuple[str, object]
) -> None:
    value = as_plain(load_recipe(path, Outer, [override]))
    for key in expected[0].split("."):
        value = value[int(key) if key.isdecimal() else key]
    assert value == expected[1]


def test_a_table_that_is_not_in_the_file_can_be_set(tmp_path: Path) -> None:
    file = tmp_path / "short.toml"
    file.write_text('folder = "x"')
    assert load_recipe(file, Outer, ["inner.steps=2", "inner.steps=4"]).inner.steps == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("inner.step=3", r"key inner\.step does not exist; did you mean steps\?"),
        ("zebra=3", r"key zebra does not exist; there are folder, inner, items"),
        ("items.0.nam=x", r"key items\.0\.nam does not exist; did you mean name\?"),
        ("inner.steps=0", r"inner: steps is 0; it must be 1 or more"),
        ("inner.steps=1.5", r"inner\.steps is 1\.5; it must be a whole number"),
        ("inner.steps=true", r"inner\.steps is True; it must be a whole number"),
        ("inner.kind=cubic", r"inner\.kind is 'cubic'; choose cosine or linear"),
        ("is_fast=1", r"is_fast is 1; it must be true or false"),
        ("note=1e3", r"note is 1000\.0; it must be text"),
        ("mix.ce=abc", r"mix\.ce is 'abc'; it must be a number"),
        ("items.0.size=[1]", r"items\.0\.size has 1 items; it must have 2"),
        ("items.2.name=x", r"items is a list of 2; 2 is none of its numbers"),
        ("items.x.name=x", r"items is a list of 2; x is none"),
        ("folder.x=1", r"folder is no table"),
        ("items=3", r"items is 3; it must be a list"),
        ("inner=3", r"inner is 3; it must be a table"),
        ("note=[1", r"'\[1' is no TOML value"),
        ("note=", r"'' is no TOML value"),
        ("note", r"not of the form key=value"),
        (".a=1", r"not of the form key=value"),
    ],
)
def test_what_is_wrong_is_named(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(path, Outer, [override])


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("[[items]]\nweight = 1")
    with pytest.raises(ConfigError, match=r"no items\.0\.name; it must be given"):
        load_recipe(file, Outer, ["folder=x"])


def test_files_that_are_no_recipe_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_recipe(tmp_path / "none.toml", Outer)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path, Outer)
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"is no TOML: .*line 1"):
        load_recipe(tmp_path / "bad.toml", Outer)
