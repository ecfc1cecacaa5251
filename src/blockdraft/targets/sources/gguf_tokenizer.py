"""Tokenizer of a GGUF file, built from its metadata.

It holds the pieces of a tokenizer.json: tokens, kinds of token and merges. How text is split before
merging is told by one word only; see `gguf_splitting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.targets.sources.begin_end import set_begin_end
from blockdraft.targets.sources.gguf_header import GgufHeader
from blockdraft.targets.sources.gguf_splitting import SPLITTINGS, Splitting
from blockdraft.targets.tokenizer import render_template

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # of tokenizer.ggml.token_type


@dataclass(frozen=True)
class GgufTokenizer:
    """Tokenizer, template, named tokens, and the ids that end a turn or a text."""

    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: Mapping[str, str]
    end_ids: tuple[int, ...]


def read_tokenizer(header: GgufHeader) -> GgufTokenizer:
    """Build the tokenizer a GGUF file describes.

    Raises:
        UnsupportedError: not a byte-level BPE tokenizer, or an unknown way to split text.
        CheckpointError: the tokenizer is missing or contradicts itself.
    """
    metadata = header.metadata
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind is None:
        raise CheckpointError(f"{header.path} has no tokenizer")
    if kind != "gpt2" or pre not in SPLITTINGS:
        name = f"model {kind!r}" if kind != "gpt2" else f"splitting {pre!r}"
        raise UnsupportedError(
            f"{header.path}: tokenizer {name} is not served (only 'gpt2' with "
            f"{', '.join(SPLITTINGS)}); use the safetensors folder of the model instead"
        )
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    splitting = SPLITTINGS[pre]
    tokenizer = _build(header, tokens, splitting)
    named = {
        f"{name}_token": tokens[token_id]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if (token_id := _token_id(header, f"{key}_token_id", tokens)) is not None
    }
    if metadata.get("tokenizer.ggml.add_bos_token", splitting.adds_begin):
        set_begin_end(tokenizer, _required(header, named, "bos_token"), None)
    if metadata.get("tokenizer.ggml.add_eos_token", False):
        raise UnsupportedError(f"{header.path}: add_eos_token would end every prompt at once")
    template = metadata.get("tokenizer.chat_template")
    return GgufTokenizer(
        tokenizer, template, named, _end_ids(header, tokenizer, tokens, template, named)
    )


def _required(header: GgufHeader, named: Mapping[str, str], name: str) -> str:
    if name not in named:
        raise CheckpointError(f"{header.path} adds a {name} to text but does not say which")
    return named[name]


def _token_id(header: GgufHeader, key: str, tokens: list[str]) -> int | None:
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if value is not None and not (isinstance(value, int) and 0 <= value < len(tokens)):
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.{key} is {value!r}; it must be 0 to {len(tokens) - 1}"
        )
    return value


def _build(header: GgufHeader, tokens: list[str], splitting: Splitting) -> Tokenizer:
    kinds = header.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [tuple(merge.split(" ")) for merge in header.metadata.get("tokenizer.ggml.merges", [])]
    # Unused entries only fill up the embedding table; as tokens they would decode to their name.
    vocab = {
        t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind != _UNUSED
    }
    num_used = sum(kind != _UNUSED for kind in kinds)
    if not tokens or len(kinds) != len(tokens) or len(vocab) != num_used:
        raise CheckpointError(f"{header.path}: its token list is empty, or has a token twice")
    try:
        model = models.BPE(vocab, merges, ignore_merges=splitting.ignore_merges)
    except Exception as error:  # the tokenizers package raises bare Exception
        raise CheckpointError(
            f"{header.path}: its merges do not fit its tokens: {error}"
        ) from error
    tokenizer = Tokenizer(model)
    if splitting.compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.build()
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def _end_ids(
    header: GgufHeader,
    tokenizer: Tokenizer,
    tokens: list[str],
    template: str | None,
    named: Mapping[str, str],
) -> tuple[int, ...]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids: list[int | None] = [_token_id(header, key, tokens) for key in keys]
    if template is not None:
        ids.append(end_of_turn_id(tokenizer, template, named))
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def end_of_turn_id(
    tokenizer: Tokenizer, template: str, special_tokens: Mapping[str, Any]
) -> int | None:
    """The special token that a chat template writes right after an assistant's message.

    None if it writes none there, or does not take a plain conversation.
    """
    answer = "an answer"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]
    try:
        text = render_template(template, messages, False, special_tokens)
    except ConfigError:
        return None
    after = text[text.rfind(answer) + len(answer) :].lstrip() if answer in text else ""
    found = [
        (len(token.content), token_id)
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and after.startswith(token.content)
    ]
    return max(found)[1] if found else None
