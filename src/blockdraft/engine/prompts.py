"""What a prompt may be: a text, a chat, or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from blockdraft.errors import ConfigError
from blockdraft.param_types import is_whole
from blockdraft.targets.tokenizer import TextCodec

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Prompt: TypeAlias = str | Messages | Sequence[int]


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or a list of them, as a list.

    Raises: ConfigError for anything else; nothing is guessed.
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise ConfigError(
            f"prompts are a {type(prompts).__name__}; give a text, a list of chat messages, a list "
            "of token ids, or a list of those"
        )
    if prompts and all(isinstance(item, Mapping) or is_whole(item) for item in prompts):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def encode_prompt(
    prompt: Prompt, codec: TextCodec, vocab_size: int, index: int, raw: bool = False
) -> list[int]:
    """Token ids of a prompt.

    A text becomes a user turn of the chat template where the target has one (unless `raw`).

    Raises: ConfigError, naming the prompt by its place in the list, if it is empty or no prompt.
    """
    if isinstance(prompt, str):
        ids = _encode_text(prompt, codec, raw)
    elif isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise ConfigError(_no_prompt(index))
    elif prompt and all(isinstance(item, Mapping) for item in prompt):
        ids = codec.encode_chat(cast(Messages, prompt))
    elif all(is_whole(item) for item in prompt):
        ids = [int(item) for item in cast(Sequence[int], prompt)]
    else:
        raise ConfigError(_no_prompt(index))
    if not ids:
        raise ConfigError(f"prompt {index} is empty; give at least one token")
    wrong = [i for i in ids if not 0 <= i < vocab_size]
    if wrong:
        raise ConfigError(
            f"prompt {index} has token id {wrong[0]}; the target's ids are 0 to {vocab_size - 1}"
        )
    return ids


def _no_prompt(index: int) -> str:
    return f"prompt {index} is neither a text, nor chat messages, nor a list of token ids"


def _encode_text(text: str, codec: TextCodec, raw: bool) -> list[int]:
    if not text:
        return []
    if raw or codec.chat_template is None:
        return codec.encode(text)
    return codec.encode_chat([{"role": "user", "content": text}])
