"""The guide's recipe is one, and its tables have every key."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

from blockdraft.config import build_recipe
from blockdraft.data.answers import Answer
from blockdraft.data.recipe import AnswersRecipe, ServerRecipe, Source, Variant
from blockdraft.data.regenerate import Summary

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "regenerate.md").read_text()


def tables() -> list[set[str]]:
    """Names in the first column of each table."""
    found = []
    for table in re.findall(r"^\|.*\n\|---.*\n((?:\|.*\n)+)", GUIDE, re.MULTILINE):
        first = [row.split("|")[1] for row in table.splitlines()]
        found.append({name for cell in first for name in re.findall(r"`(\w+)`", cell)})
    return found


def names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_the_tables_have_every_key() -> None:
    recipe, source, answer, summary, server = tables()
    assert recipe == names(AnswersRecipe)
    assert source == names(Source)
    assert answer == names(Answer)
    assert summary == names(Summary) | {"num_left"}
    assert server == names(ServerRecipe)
    [variants] = re.findall(r"^\| `variants` \| (.*)", GUIDE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", variants)) == names(Variant)


def test_the_recipes_shown_are_recipes() -> None:
    whole, server = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    recipe = build_recipe(tomllib.loads(whole), AnswersRecipe)
    assert [source.name for source in recipe.sources] == ["tickets", "gsm8k"]
    without = {**tomllib.loads(whole), **tomllib.loads(server), "features": {}}
    assert build_recipe(without, AnswersRecipe).server is not None
