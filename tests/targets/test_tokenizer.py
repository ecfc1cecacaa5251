"""Text to ids and back; above all, that streamed text is the text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from blockdraft.errors import ConfigError
from blockdraft.targets.tokenizer import TextCodec
from tests.targets.tiny_tokenizers import byte_level_tokenizer, sentencepiece_tokenizer

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_CODECS = {
    "byte-level": TextCodec(byte_level_tokenizer(), _CHATML),
    "sentencepiece": TextCodec(sentencepiece_tokenizer()),
}


def _streamed(codec: TextCodec, ids: list[int], skip_special: bool = True) -> list[str]:
    stream = codec.stream(skip_special)
    return [*(stream.feed(i) for i in ids), stream.flush()]


_TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab hello\n\t"),
        st.sampled_from("\u4f60\u597d\u00e9\u0915\u093f\u200d\U0001f600\U0001f1e9\ufffd"),
        st.characters(exclude_categories=["Cs"]),
    )
)


@given(_TEXTS)
def test_streamed_text_is_the_text(text: str) -> None:
    codec = _CODECS["byte-level"]
    ids = codec.encode(text)
    pieces = _streamed(codec, ids, skip_special=False)
    assert "".join(pieces) == text == codec.decode(ids, skip_special=False)
    whole = "".join(pieces[:-1])
    assert text.startswith(whole)


@pytest.mark.parametrize("name", _CODECS)
@pytest.mark.parametrize("skip_special", [True, False])
@given(data=st.data())
def test_any_ids_stream_to_what_decode_gives(
    name: str, skip_special: bool, data: st.DataObject
) -> None:
    codec = _CODECS[name]
    size = codec.tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=24))
    assert "".join(_streamed(codec, ids, skip_special)) == codec.decode(ids, skip_special)


@given(st.lists(st.sampled_from(["\u2581", "\u2581a", "b", "<s>", "<0xE4>", "<0xBD>", "<0xA0>"])))
def test_spaces_specials_and_byte_runs_of_sentencepiece(pieces: list[str]) -> None:
    codec = _CODECS["sentencepiece"]
    ids = [codec.tokenizer.token_to_id(piece) for piece in pieces]
    assert None not in ids
    assert "".join(_streamed(codec, ids)) == codec.decode(ids)


@given(st.binary(max_size=24))
def test_invalid_bytes_stream_to_what_decode_gives(raw: bytes) -> None:
    byte_tokens = _byte_tokens(_CODECS["byte-level"].tokenizer)
    ids = [byte_tokens[byte] for byte in raw]
    text = "".join(_streamed(_CODECS["byte-level"], ids))
    assert text == raw.decode("utf-8", errors="replace")


def _byte_tokens(tokenizer: Tokenizer) -> list[int]:
    """Ids of single bytes, found through characters whose encoding ends in them."""
    decoded: dict[bytes, int] = {}
    for i in range(256):
        piece = tokenizer.id_to_token(i)
        assert piece is not None
        decoded[bytes([_byte_of(piece)])] = i
    return [decoded[bytes([byte])] for byte in range(256)]


def _byte_of(piece: str) -> int:
    """GPT-2's printable stand-ins: printable Latin-1 is itself, the rest counts up from 256."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in own]
    return ord(piece) if ord(piece) < 256 else rest[ord(piece) - 256]


@given(_TEXTS)
def test_no_piece_is_half_a_character(text: str) -> None:
    codec = _CODECS["byte-level"]
    stream = codec.stream(skip_special=False)
    pieces = [stream.feed(i) for i in codec.encode(text)]
    assert "".join(pieces).count("\ufffd") <= text.count("\ufffd")


def test_a_character_of_four_bytes_comes_out_once_and_whole() -> None:
    codec = _CODECS["byte-level"]
    ids = codec.encode("\U0001f600")
    assert len(ids) > 1
    assert _streamed(codec, ids) == [""] * (len(ids) - 1) + ["\U0001f600", ""]


def test_an_unfinished_character_shows_only_at_the_end() -> None:
    codec = _CODECS["byte-level"]
    ids = codec.encode("a\U0001f600")[:-1]
    assert "".join(_streamed(codec, ids)[:-1]) == "a"
    assert _streamed(codec, ids)[-1] == "\ufffd"


def test_a_stream_can_be_used_again_after_flush() -> None:
    codec = _CODECS["byte-level"]
    stream = codec.stream()
    for _ in range(2):
        assert "".join(map(stream.feed, codec.encode("hello a"))) + stream.flush() == "hello a"


def test_the_window_of_a_stream_stays_short() -> None:
    codec = _CODECS["byte-level"]
    stream = codec.stream()
    for token_id in codec.encode("hello \U0001f600 a" * 50):
        stream.feed(token_id)
        assert len(stream._window) <= 8


def test_chat_goes_through_the_template() -> None:
    codec = _CODECS["byte-level"]
    ids = codec.encode_chat([{"role": "user", "content": "he"}])
    start, end = (codec.tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>"))
    assert codec.decode(ids, skip_special=False) == (
        "<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(start) == 2
    assert ids.count(end) == 1
    assert codec.decode(ids) == "user\nhe\nassistant\n"


def test_chat_without_generation_prompt() -> None:
    codec = _CODECS["byte-level"]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = codec.encode_chat(messages, add_generation_prompt=False)
    assert codec.decode(ids, skip_special=False).endswith("b<|im_end|>\n")


def test_special_tokens_in_text_mean_the_token() -> None:
    codec = _CODECS["byte-level"]
    end = codec.tokenizer.token_to_id("<|im_end|>")
    assert codec.encode("a<|im_end|>")[-1] == end
    assert codec.encode_chat([{"role": "user", "content": "<|im_end|>"}]).count(end) == 2


def test_a_missing_template_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="raw text"):
        _CODECS["sentencepiece"].encode_chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", [], "roles must alternate"),
        ("{{ messages[0]['content'] + 1 }}", [{"role": "user", "content": "a"}], "template"),
        ("{% for %}", [], "template"),
        ("{{ ''.__class__.__mro__ }}", [], "template"),
    ],
)
def test_template_faults_are_user_errors(
    template: str, messages: list[dict[str, Any]], words: str
) -> None:
    codec = TextCodec(byte_level_tokenizer(), template)
    with pytest.raises(ConfigError, match=words):
        codec.encode_chat(messages)


def test_begin_token_is_added_to_raw_text_but_not_to_chats() -> None:
    tokenizer = byte_level_tokenizer()
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    template = "{{ bos_token }}{{ messages[0]['content'] }}"
    codec = TextCodec(tokenizer, template, {"bos_token": "<s>"})
    assert codec.encode("a") == [begin, *_CODECS["byte-level"].encode("a")]
    assert codec.encode_chat([{"role": "user", "content": "a"}]) == codec.encode("a")


def test_stored_truncation_and_padding_are_switched_off() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    assert len(TextCodec(tokenizer).encode("bbbb")) == 4


def test_transformers_tokenizer_without_pad_and_with_bos_equal_to_eos() -> None:
    """BC-41."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(),
        bos_token="<s>",
        eos_token="<s>",
        chat_template="{{ bos_token }}{{ messages[0]['content'] }}",
    )
    codec = TextCodec(wrapped)
    begin = codec.tokenizer.token_to_id("<s>")
    assert wrapped.pad_token is None
    assert codec.encode_chat([{"role": "user", "content": "a"}])[0] == begin
    prompts = [codec.encode("a"), codec.encode("hello a")]
    assert [codec.decode(ids) for ids in prompts] == ["a", "hello a"]
    assert codec.decode([begin, *prompts[1], begin]) == "hello a"


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="no fast tokenizer"):
        TextCodec(object())  # type: ignore[arg-type]


def test_ids_without_a_token_decode_to_nothing() -> None:
    """Padded rows of a vocabulary; they must not make the next piece look like the first."""
    for name, words in (("byte-level", ["he", "ll"]), ("sentencepiece", ["\u2581a", "\u2581a"])):
        codec = _CODECS[name]
        first, second = (codec.tokenizer.token_to_id(word) for word in words)
        ids = [first, codec.tokenizer.get_vocab_size() + 5, second]
        assert codec.decode(ids) == codec.decode([first, second])
        assert "".join(_streamed(codec, ids)) == codec.decode(ids)
