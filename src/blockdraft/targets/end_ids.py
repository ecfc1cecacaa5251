"""Which token ids end a sequence, from all the places that say so.

`config.json` and `generation_config.json` often differ (a base model's end of text, a chat
model's end of turn): both end a sequence. What a tokenizer claims as its `eos_token` is not
asked, because converted tokenizers are wrong about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockdraft.errors import CheckpointError


def read_ids(config: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """The ids under `key`: a number, a list of numbers, or nothing.

    Raises: CheckpointError naming `where` for anything else.
    """
    value = config.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
        raise CheckpointError(
            f"{key} is {value!r} in {where}; it must be a token id (0 or more) or a list of them"
        )
    return tuple(dict.fromkeys(ids))


def union_end_ids(
    config: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> tuple[int, ...]:
    """End ids of both files, those of `config` first, each once.

    A model with several modalities keeps its text settings in `text_config`.
    """
    text = config.get("text_config")
    nested = read_ids(text, "eos_token_id", "text_config") if isinstance(text, Mapping) else ()
    own = read_ids(config, "eos_token_id", "config.json") or nested
    generation = read_ids(generation_config, "eos_token_id", "generation_config.json")
    return tuple(dict.fromkeys(own + generation))
