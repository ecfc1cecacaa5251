"""A tiny target in a folder, prompts in a file, and recipes for both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.config import build_recipe
from blockdraft.data.answer_sources import EngineSource
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.engine.llm import LLM
from tests.cli.tiny_target import write_target

MakeRecipe = Callable[..., AnswersRecipe]

PROMPTS = [f"say {word} to number {i}" for i, word in enumerate(["hello", "all", "he", "a"] * 3)]


def silent(_: str) -> None:
    """A log that nobody reads."""


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def llm(target_folder: Path) -> LLM:
    return LLM(str(target_folder), "none", dtype="float32", max_batch_size=4)


@pytest.fixture
def make_recipe(target_folder: Path, tmp_path: Path) -> MakeRecipe:
    """Recipes over twelve prompts of one file; keys given replace the recipe's."""
    rows = [{"id": f"p/{i}", "turns": [text]} for i, text in enumerate(PROMPTS)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**changes: Any) -> AnswersRecipe:
        table = {
            "target": str(target_folder),
            "out": str(tmp_path / "out"),
            "data_dir": str(tmp_path),
            "dtype": "float32",
            "max_tokens": 10,
            "batch_size": 4,
            "window": 5,
            "features": {"layer_ids": [0, 3, 6], "shard_samples": 3, "reserve_gib": 0},
            "sources": [
                {
                    "name": "p",
                    "file": "p.jsonl",
                    "variants": [{}, {"temperature": 0.9, "num_samples": 2}],
                }
            ],
        }
        return build_recipe({**table, **changes}, AnswersRecipe)

    return make


@pytest.fixture
def source(llm: LLM) -> Callable[[AnswersRecipe], EngineSource]:
    """Answers on an engine that is made once."""
    return lambda recipe: EngineSource(recipe, silent, llm)
