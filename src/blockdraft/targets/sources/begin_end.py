"""The rule by which a tokenizer puts a begin or end token around raw text."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing


def set_begin_end(tokenizer: Tokenizer, begin: str | None, end: str | None) -> None:
    """Make the tokenizer add these tokens (None: not that one) around every raw text."""
    parts = [part for part in (begin, "$A", end) if part is not None]
    specials = [(t, tokenizer.token_to_id(t)) for t in (begin, end) if t is not None]
    tokenizer.post_processor = TemplateProcessing(
        single=parts, special_tokens=[(t, i) for t, i in specials if i is not None]
    )
