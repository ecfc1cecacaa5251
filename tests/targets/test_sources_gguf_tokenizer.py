"""Tokenizers built from GGUF metadata: the ids of the original, the right end of a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.targets.sources import SourceFiles, resolve
from blockdraft.targets.sources.gguf_header import GgufHeader
from blockdraft.targets.sources.gguf_tokenizer import GgufTokenizer, read_tokenizer
from tests.targets.gguf_writing import CHATML, tokenizer_metadata, write_gguf
from tests.targets.tiny_models import state, tiny_model


def _read(**changes: Any) -> GgufTokenizer:
    """Read the tokenizer of a header alone; no file is needed."""
    keys = {
        "tokenizer.chat_template" if k == "chat_template" else f"tokenizer.ggml.{k}": v
        for k, v in tokenizer_metadata(**changes).items()
    }
    return read_tokenizer(GgufHeader(Path("tiny.gguf"), keys, {}))


def _cuts(tokenizer: Tokenizer, text: str) -> list[str]:
    """Where the text is cut before merging, as text."""
    assert tokenizer.pre_tokenizer is not None
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert "".join(text[a:b] for _, (a, b) in pieces) == text
    return [text[a:b] for _, (a, b) in pieces]


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text).tokens


@pytest.mark.parametrize(
    ("pre", "text", "cuts"),
    [
        ("smollm", "it's 123 a", ["it", "'s", " ", "1", "2", "3", " a"]),
        ("smollm", "x  7\n\n y", ["x", "  ", "7", "\n\n", " y"]),
        ("smollm", "\u0968\u00bdb", ["\u0968", "\u00bd", "b"]),
        ("gpt-2", "it's 123 a", ["it", "'s", " 123", " a"]),
        ("gpt-2", "x  7\n\n y", ["x", " ", " 7", "\n\n", " y"]),
        ("default", "it's $12345!", ["it", "'", "s", " ", "$", "123", "45", "!"]),
        ("llama-bpe", "it'S 12345 a", ["it", "'S", " ", "123", "45", " a"]),
        ("llama-bpe", "x  7\n\n y!\n", ["x", " ", " ", "7", "\n\n", " y", "!\n"]),
        ("qwen2", "it'S 123 a", ["it", "'S", " ", "1", "2", "3", " a"]),
    ],
)
def test_text_is_cut_as_the_original_cuts_it(pre: str, text: str, cuts: list[str]) -> None:
    assert _cuts(_read(pre=pre).tokenizer, text) == cuts


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "default", "llama-bpe", "qwen2"])
@given(text=st.text(max_size=30))
def test_text_comes_back(pre: str, text: str) -> None:
    tokenizer = _read(pre=pre, add_bos_token=False).tokenizer
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_of_smollm_never_merge() -> None:
    """The merge exists, but its cut keeps the digits apart: ids of plain GPT-2 would differ."""
    assert _pieces(_read(pre="smollm").tokenizer, "12 12") == ["1", "2", "\u0120", "1", "2"]
    assert _pieces(_read(pre="gpt-2").tokenizer, "12 12") == ["12", "\u0120", "12"]


def test_qwen2_composes_characters() -> None:
    decomposed = "e\u0301"
    composed = _read(pre="qwen2").tokenizer
    assert composed.encode(decomposed).ids == composed.encode("\u00e9").ids
    kept = _read(pre="gpt-2").tokenizer
    assert kept.encode(decomposed).ids != kept.encode("\u00e9").ids


def test_llama_takes_a_whole_cut_that_is_a_token() -> None:
    tokens = tokenizer_metadata()["tokens"]
    tokens[tokens.index("<tool>") + 1] = "hill"
    kinds = tokenizer_metadata()["token_type"]
    kinds[tokens.index("hill")] = 1
    changes = {"tokens": tokens, "token_type": kinds, "add_bos_token": False}
    assert _pieces(_read(pre="llama-bpe", **changes).tokenizer, "hill") == ["hill"]
    assert _pieces(_read(pre="gpt-2", **changes).tokenizer, "hill") == ["h", "i", "ll"]


@pytest.mark.parametrize(
    ("pre", "add", "has_begin"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_begin_token_rule(pre: str, add: bool | None, has_begin: bool) -> None:
    ids = _read(pre=pre, add_bos_token=add).tokenizer.encode("a").ids
    assert (ids[0] == 1) is has_begin
    assert len(ids) == 1 + has_begin


def test_special_and_user_tokens() -> None:
    tokenizer = _read().tokenizer
    assert tokenizer.encode("a<|im_end|><tool>").tokens == ["a", "<|im_end|>", "<tool>"]
    ids = tokenizer.encode("a<|im_end|><tool>").ids
    assert tokenizer.decode(ids) == "a<tool>"


def test_unused_entries_are_no_tokens() -> None:
    tokenizer = _read().tokenizer
    name = tokenizer_metadata()["tokens"][-1]
    assert name.startswith("[PAD")
    assert len(tokenizer.encode(name).ids) > 1
    assert tokenizer.decode([299]) == ""


def test_end_ids_are_eos_and_end_of_turn() -> None:
    assert _read().end_ids == (2,)
    assert _read(eos_token_id=0).end_ids == (0, 2)
    assert _read(eos_token_id=0, chat_template=None).end_ids == (0,)
    assert _read(eos_token_id=0, eot_token_id=5, eom_token_id=6).end_ids == (0, 5, 6, 2)
    assert _read(eos_token_id=None, chat_template=None).end_ids == ()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, (0, 2)),
        (CHATML.replace("'<|im_end|>\\n'", "'\\n'"), (0,)),
        ("{{ raise_exception('tools only') }}", (0,)),
        ("{{ messages[1]['content'] + '\\n<|im_end|>' }}", (0, 2)),
        ("{{ messages[0]['content'] + '<|im_end|>' }}", (0,)),
        ("{{ messages[1]['content'] + '<tool>' }}", (0,)),
        ("{{ messages[1]['content'] + eos_token }}", (0,)),
    ],
)
def test_end_of_turn_is_what_the_template_writes_after_an_answer(
    template: str, expected: tuple[int, ...]
) -> None:
    assert _read(eos_token_id=0, chat_template=template).end_ids == expected


def test_named_tokens_reach_the_template() -> None:
    found = _read(unknown_token_id=0, padding_token_id=2)
    assert found.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, "model 'llama'"),
        ({"model": "bert"}, "model 'bert'"),
        ({"pre": "deepseek-coder"}, "splitting 'deepseek-coder'"),
        ({"add_eos_token": True}, "add_eos_token"),
    ],
)
def test_tokenizers_that_are_not_served_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        _read(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, "has no tokenizer"),
        ({"tokens": []}, "token list"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "token list"),
        ({"token_type": [1]}, "token list"),
        ({"merges": ["x y z"]}, "merges do not fit"),
        ({"merges": ["q q"]}, "merges do not fit"),
        ({"eos_token_id": 300}, "eos_token_id is 300"),
        ({"bos_token_id": None, "add_bos_token": True}, "does not say which"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        _read(**changes)


def test_a_missing_word_means_default() -> None:
    text = "it's $12345!"
    assert _cuts(_read(pre=None).tokenizer, text) == _cuts(_read(pre="default").tokenizer, text)


@pytest.fixture
def source(tmp_path: Path) -> SourceFiles:
    model = tiny_model(vocab_size=300)
    path = write_gguf(tmp_path / "tiny.gguf", "llama", state(model), model.config)
    return resolve(str(path), progress=lambda message: None)


def test_the_source_carries_it_all(source: SourceFiles) -> None:
    assert source.end_ids == (2,)
    codec = source.codec()
    ids = codec.encode_chat([{"role": "user", "content": "hell 12"}])
    text = "<|im_start|>user\nhell 12<|im_end|>\n<|im_start|>assistant\n"
    assert codec.decode(ids, skip_special=False) == text
    assert "".join([codec.stream().feed(i) for i in codec.encode("a")]) == "a"
