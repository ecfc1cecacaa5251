"""The tokens that a drafter may propose, if not all: a subset of the target's vocabulary.

The head over a whole vocabulary can cost more than all draft layers, and most of its rows are
never drafted. With a subset, q is zero on every other token, which is exact like any other q. Rows
of the head and of the codebooks are then counted within the subset; the loop sees token ids alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.json_text import parse_json
from blockdraft.param_types import is_whole

#: Name of the tensor that lists the tokens.
DRAFT_VOCAB_IDS = "draft_vocab_ids"


class DraftVocab:
    """Token ids to rows of the drafter's head, and back.

    Args:
        ids: the tokens in ascending order; None for the whole vocabulary, whose rows are its ids.
        vocab_size: tokens of the target.
    """

    def __init__(self, ids: Int64[Tensor, "e"] | None, vocab_size: int) -> None:
        self.ids = None if ids is None else ids.contiguous()
        self.size = vocab_size if ids is None else len(ids)
        self.row_of: Int64[Tensor, "v"] | None = None
        if ids is not None:
            # Every other token shares the row behind the last one.
            self.row_of = torch.full((vocab_size,), len(ids), device=ids.device)
            self.row_of[ids] = torch.arange(len(ids), device=ids.device)

    def rows(self, token_ids: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Rows of tokens; that of a token outside the subset is the number of its tokens."""
        return token_ids if self.row_of is None else self.row_of.take(token_ids)

    def tokens(self, rows: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Token ids of rows of the head."""
        return rows if self.ids is None else self.ids.take(rows)


def draft_vocab_fault(
    ids: Int64[Tensor, "e"], vocab_size: int, mask_token_id: int, name: str = DRAFT_VOCAB_IDS
) -> str | None:
    """What is wrong with a list of tokens to draft from, in one line; None if nothing is."""
    if not ids.numel():
        return f"{name} is empty; list the tokens to draft from"
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        return f"{name} holds {wrong}; token ids are 0 to {vocab_size - 1}"
    falls = (ids[1:] <= ids[:-1]).nonzero()
    if len(falls):
        at = int(falls[0])
        return (
            f"{name} holds {int(ids[at + 1])} after {int(ids[at])}; list every token once,"
            " in ascending order"
        )
    if bool((ids == mask_token_id).any()):
        return f"{name} holds the mask token {mask_token_id}, which no text holds; leave it out"
    return None


def read_draft_vocab(file: Path) -> list[int]:
    """Token ids from a file: a JSON list, or numbers between white space.

    Raises: ConfigError if the file cannot be read or holds anything else.
    """
    try:
        text = file.read_text("utf-8")
        ids = parse_json(text) if text.lstrip().startswith("[") else list(map(int, text.split()))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(
            f"{file} holds no token ids ({error}); give a JSON list or numbers alone"
        ) from error
    if not all(map(is_whole, ids)):
        wrong = next(item for item in ids if not is_whole(item))
        raise ConfigError(f"{file} holds {wrong!r}; give token ids, whole numbers")
    return ids
