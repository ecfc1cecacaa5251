"""A codec without a tokenizer file: token i stands for the i-th word, given as bytes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, cast

from blockdraft.drafters.base import Drafter
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import RunnerLimits
from blockdraft.errors import ConfigError
from blockdraft.targets.base import Target
from blockdraft.targets.load import LoadedTarget
from blockdraft.targets.tokenizer import TextCodec


class FakeCodec:
    """What the engine uses of a TextCodec. Words may be parts of characters, as in real models.

    Args:
        words: text (or raw bytes) of each token; encoding is greedy, the longest word first.
        special_ids: tokens that have no text.
        chat_template: anything but None says that chats are understood; turns are joined.
    """

    def __init__(
        self,
        words: Sequence[str | bytes],
        special_ids: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> None:
        self.words = [word.encode() if isinstance(word, str) else word for word in words]
        self.special_ids = frozenset(special_ids)
        self.chat_template = chat_template
        known = {word: i for i, word in reversed(list(enumerate(self.words)))}
        self._by_length = sorted(known.items(), key=lambda item: -len(item[0]))

    def encode(self, text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            word, token_id = next((w, i) for w, i in self._by_length if data.startswith(w))
            ids.append(token_id)
            data = data[len(word) :]
        return ids

    def encode_chat(self, messages: Sequence[Any], *, add_generation_prompt: bool = True) -> Any:
        if self.chat_template is None:
            raise ConfigError("the target has no chat template")
        return [i for message in messages for i in self.encode(message["content"])]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return b"".join(self._bytes(i) for i in ids).decode(errors="replace")

    def stream(self, skip_special: bool = True) -> FakeStream:
        return FakeStream(self)

    def _bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.special_ids else self.words[token_id]


class FakeStream:
    """Whole characters of a FakeCodec as the tokens arrive."""

    def __init__(self, codec: FakeCodec) -> None:
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._codec._bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def numbered_words(vocab_size: int) -> list[str]:
    """Distinct words that no other word of the list is a part of: " 7," and the like."""
    return [f" {i}," for i in range(vocab_size)]


def make_llm(
    target: Target,
    drafter: Drafter | None = None,
    *,
    codec: FakeCodec | None = None,
    max_batch_size: int = 8,
    prefill_chunk_len: int = 512,
) -> LLM:
    """An engine of parts in memory, with numbered words unless a codec is given."""
    codec = codec or FakeCodec(numbered_words(target.info.vocab_size), target.info.end_ids)
    limits = RunnerLimits(max_batch_size=max_batch_size, prefill_chunk_len=prefill_chunk_len)
    return LLM.from_parts(LoadedTarget(target, cast(TextCodec, codec), "torch"), drafter, limits)
