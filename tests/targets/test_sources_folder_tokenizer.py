"""Tokenizer and chat template of a model folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.targets.sources import SourceFiles, resolve
from tests.targets.tiny_models import save, tiny_model
from tests.targets.tiny_tokenizers import byte_level_tokenizer


def _resolve(path: Path) -> SourceFiles:
    return resolve(str(path), progress=lambda message: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_model(), tmp_path / "single")


def _change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def _add_tokenizer(folder: Path, **config: Any) -> None:
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_folder_without_tokenizer_says_so_when_asked(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        _resolve(folder).codec()


def test_tokenizer_and_template_are_read(folder: Path) -> None:
    bos = {"content": "<s>", "special": True}
    _add_tokenizer(folder, chat_template="{{ bos_token }}x", bos_token=bos, eos_token=None)
    codec = _resolve(folder).codec()
    assert codec.encode("hello") == byte_level_tokenizer().encode("hello").ids
    assert codec.render_chat([]) == "<s>x"


def test_template_file_wins_over_the_config(folder: Path) -> None:
    _add_tokenizer(folder, chat_template="old")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "newer"}))
    assert _resolve(folder).codec().render_chat([]) == "newer"
    (folder / "chat_template.jinja").write_text("newest")
    assert _resolve(folder).codec().render_chat([]) == "newest"


def test_of_several_templates_the_default_is_taken(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    _add_tokenizer(folder, chat_template=named)
    assert _resolve(folder).codec().render_chat([]) == "plain"
    _add_tokenizer(folder, chat_template=named[:1])
    with pytest.raises(ConfigError, match="no chat template"):
        _resolve(folder).codec().render_chat([])


@pytest.mark.parametrize(("add", "expected"), [(True, ["<s>"]), (False, []), (None, [])])
def test_begin_token_rule_of_the_config(folder: Path, add: Any, expected: list[str]) -> None:
    keys = {} if add is None else {"add_bos_token": add}
    _add_tokenizer(folder, bos_token="<s>", **keys)
    codec = _resolve(folder).codec()
    tokens = [codec.tokenizer.id_to_token(i) for i in codec.encode("b")]
    assert tokens == [*expected, "b"]


def test_a_begin_token_that_does_not_exist_is_an_error(folder: Path) -> None:
    _add_tokenizer(folder, bos_token="<nowhere>", add_bos_token=True)
    with pytest.raises(CheckpointError, match="<nowhere>"):
        _resolve(folder)


def test_a_broken_tokenizer_is_named(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        _resolve(folder)
