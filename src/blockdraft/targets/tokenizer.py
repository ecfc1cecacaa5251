"""Text to token ids and back, for one target. Nothing here touches the network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jinja2
from tokenizers import Tokenizer

from blockdraft.errors import ConfigError

#: What decoders write for bytes that are not, or not yet, a character.
_REPLACEMENT = "\ufffd"


@runtime_checkable
class FastTokenizer(Protocol):
    """A transformers tokenizer that runs on a `tokenizers.Tokenizer`."""

    backend_tokenizer: Tokenizer
    chat_template: Any


class TextCodec:
    """Encodes prompts and chats, decodes answers.

    Special tokens in text: the spelling of a special token (`<|im_end|>`) means that token
    wherever it stands, in raw text and inside messages. So do transformers and the common
    servers, and hand-written chat prompts rely on it; a caller with untrusted messages must take
    such spellings out.

    What a tokenizer adds by itself (a begin token) is added to raw text; a chat gets what its
    template writes and nothing else. Truncation and padding stored in a tokenizer file are
    switched off: a prompt is never cut in silence, and no pad token is needed.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or a transformers tokenizer that has one inside.
        chat_template: Jinja source; if None, a transformers tokenizer's own.
        special_tokens: named tokens a template may ask for ("bos_token", ...).
    """

    def __init__(
        self,
        tokenizer: Tokenizer | FastTokenizer,
        chat_template: str | None = None,
        special_tokens: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(tokenizer, Tokenizer):
            backend = tokenizer
        elif isinstance(tokenizer, FastTokenizer):
            backend = tokenizer.backend_tokenizer
            chat_template = chat_template or pick_template(tokenizer.chat_template)
            special_tokens = special_tokens or getattr(tokenizer, "special_tokens_map", None)
        else:
            raise ConfigError(
                f"{type(tokenizer).__name__} has no fast tokenizer inside; "
                f"save it as tokenizer.json first"
            )
        backend.no_truncation()
        backend.no_padding()
        self.tokenizer = backend
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)

    @property
    def template_sha256(self) -> str | None:
        """Names the chat template; None if there is none."""
        if self.chat_template is None:
            return None
        return hashlib.sha256(self.chat_template.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of raw text, with the begin token if the tokenizer has that rule."""
        return self.tokenizer.encode(text).ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        Raises: ConfigError if there is no chat template, or it does not take the messages.
        """
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the template writes it, before encoding."""
        if self.chat_template is None:
            raise ConfigError(
                "the target has no chat template; give the prompt as raw text instead of messages"
            )
        return render_template(
            self.chat_template, messages, add_generation_prompt, self.special_tokens
        )

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of the ids; special tokens are left out unless asked for."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder for one answer that arrives token by token."""
        return StreamDecoder(self, skip_special)


def pick_template(templates: Any) -> str | None:
    """The template for plain conversations, out of what a tokenizer config holds.

    That is one template, or several by name (a table, or a list of name and template); of
    several, the one called "default".
    """
    if isinstance(templates, list | tuple):
        templates = {entry["name"]: entry["template"] for entry in templates}
    if isinstance(templates, Mapping):
        templates = templates.get("default")
    return None if templates is None else str(templates)


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    special_tokens: Mapping[str, Any],
) -> str:
    """Render a chat template in the sandbox of transformers.

    Raises: ConfigError if the template refuses the messages or is broken.
    """
    # Only chats need this import, and it takes longer than encoding a prompt.
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            conversations=[[dict(message) for message in messages]],
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **special_tokens,
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise ConfigError(f"the chat template does not take these messages: {error}") from error
    return str(rendered[0])


class StreamDecoder:
    """Turns the ids of one answer into text as they arrive, by whole characters.

    The pieces, with the one from `flush` at the end, make up `codec.decode(all ids)`.

    Decoding each id alone would be wrong: a character may take several tokens, and a token's text
    depends on the one before it. So a short window of ids is decoded each time, and what was
    already given out is cut off its front. Two things are held back: a replacement character at
    the end, which may be the start of a character, and byte tokens of SentencePiece vocabularies
    until their run ends, because one wrong byte changes how the whole run is read.
    """

    def __init__(self, codec: TextCodec, skip_special: bool = True) -> None:
        self._tokenizer = codec.tokenizer
        self._dropped_ids = codec.special_ids if skip_special else frozenset[int]()
        self._byte_ids = _byte_token_ids(codec.tokenizer)
        self._window: list[int] = []
        self._settled_len = 0  # ids of the window whose text ended at a character
        self._given_len = 0  # characters of the window's text already given out

    def feed(self, token_id: int) -> str:
        """The characters this token completes; may be empty."""
        if token_id in self._dropped_ids:
            return ""
        self._window.append(token_id)
        if token_id in self._byte_ids:
            return ""
        text = self._text()
        is_whole = not text.endswith(_REPLACEMENT)
        piece = (text if is_whole else text[:-1])[self._given_len :]
        self._given_len += len(piece)
        if is_whole and piece:
            self._slide()
        return piece

    def flush(self) -> str:
        """What is left at the end: an unfinished character shows as replacement characters."""
        piece = self._text()[self._given_len :]
        self._window, self._settled_len, self._given_len = [], 0, 0
        return piece

    def _text(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)

    def _slide(self) -> None:
        """Keep only the ids since the last whole character as context for the next ones."""
        self._window = self._window[self._settled_len :]
        self._settled_len = len(self._window)
        self._given_len = len(self._text())


def _byte_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of `<0x00>`..`<0xFF>` if the decoder joins them to characters."""
    decoder = tokenizer.decoder
    if decoder is None or "ByteFallback" not in _type_names(decoder):
        return frozenset()
    ids = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(i for i in ids if i is not None)


def _type_names(decoder: Any) -> set[str]:
    state = json.loads(decoder.__getstate__())
    parts = [state, *state.get("decoders", [])]
    return {part["type"] for part in parts}
