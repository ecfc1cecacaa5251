"""Tokenizer of a model folder: `tokenizer.json` itself, with what lies beside it.

`tokenizer.json` is read as it is. Loading it through a model's tokenizer class would rebuild parts
of it from that class's defaults, and may ask the hub about the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from blockdraft.errors import CheckpointError
from blockdraft.targets.sources.begin_end import set_begin_end
from blockdraft.targets.sources.json_file import read_json
from blockdraft.targets.tokenizer import pick_template

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True, kw_only=True)
class FolderTokenizer:
    """Tokenizer, chat template and named tokens; the tokenizer is None if there is none."""

    tokenizer: Tokenizer | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)


def read_tokenizer(folder: Path) -> FolderTokenizer:
    """Read what a folder says of its tokenizer.

    Raises: CheckpointError naming the file that is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return FolderTokenizer()
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers package raises bare Exception
        raise CheckpointError(f"{path} is damaged: {error}; fetch it again") from error
    config = _optional(folder / "tokenizer_config.json")
    named = _special_tokens(_optional(folder / "special_tokens_map.json"))
    named |= _special_tokens(config)
    _apply_begin_end(path, tokenizer, config, named)
    return FolderTokenizer(
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, config),
        special_tokens=named,
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Each is written as its text, or as a table with its text under "content"."""
    found = {}
    for name in _NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _apply_begin_end(
    path: Path, tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]
) -> None:
    """`add_bos_token` and `add_eos_token`, where given, replace the rule in the tokenizer file."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    begin = named.get("bos_token") if config.get("add_bos_token") else None
    end = named.get("eos_token") if config.get("add_eos_token") else None
    unknown = [t for t in (begin, end) if t is not None and tokenizer.token_to_id(t) is None]
    if unknown:
        raise CheckpointError(f"{path} has no token {unknown[0]!r}, which its config adds to text")
    set_begin_end(tokenizer, begin, end)


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own is newer than the entry in the tokenizer config, and wins."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    own = _optional(folder / "chat_template.json").get("chat_template")
    return pick_template(own if own is not None else config.get("chat_template"))
