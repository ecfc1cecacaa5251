"""Changes of the logits that depend on the text so far: bias, penalties, minimum length.

Row j of a verified block is the row plain decoding would see after the drafts before it were
committed. It is therefore adjusted with those drafts counted, and gets, bit for bit, the logits
that plain decoding gets.

Order: bias, repetition penalty, frequency and presence penalty, minimum length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.types import SamplingParams


@dataclass(frozen=True)
class AdjustRow:
    """One sequence whose logits are adjusted.

    Attributes:
        params: what is asked for.
        prompt_len: tokens of `token_ids` that are the prompt.
        token_ids: every committed token, prompt included.
        draft_ids: the drafts of the block, committed or not; empty in plain decoding.
        end_ids: the ids that end the request by themselves; min_tokens forbids these and
            `params.stop_token_ids`.
    """

    params: SamplingParams
    prompt_len: int
    token_ids: Sequence[int]
    draft_ids: Sequence[int] = ()
    end_ids: Sequence[int] = ()

    @property
    def output_len(self) -> int:
        """Committed tokens beyond the prompt."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_endless(self) -> int:
        """Rows of the block, from the first, whose token may not end the request yet."""
        return max(0, min(self.params.min_tokens - self.output_len, len(self.draft_ids) + 1))

    @property
    def has_penalties(self) -> bool:
        """Whether what was said before changes what is said next."""
        params = self.params
        return bool(
            params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
        )

    @property
    def is_needed(self) -> bool:
        """Whether the logits of any row of the block change."""
        return bool(self.params.logit_bias or self.has_penalties or self.num_endless)


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """Check what only the vocabulary can tell.

    Raises: ConfigError if a token id of logit_bias or stop_token_ids is not in the vocabulary, or
        if logprobs asks for more tokens than there are.
    """
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        outside = sorted(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        if outside:
            raise ConfigError(
                f"{name} has token id {outside[0]}; this model's ids are 0 to {vocab_size - 1}: "
                f"remove it"
            )
    if params.logprobs is not None and params.logprobs > vocab_size:
        raise ConfigError(
            f"logprobs is {params.logprobs}; this model has {vocab_size} tokens: ask for fewer"
        )


def adjust_logits(
    logits: Float[Tensor, "b t v"], rows: Sequence[AdjustRow]
) -> Float[Tensor, "b t v"]:
    """Apply what each sequence asks for to its rows 0..len(draft_ids).

    Args:
        logits: of a block [b, t, v]; rows beyond a sequence's drafts plus one are padding and
            stay as they are.
        rows: one a sequence, or none at all if no sequence asks for anything; their ids are
            valid for the vocabulary (see `check_params`).
    Returns: `logits` itself if nothing changes, else a copy in float32 (float64 if it was that).
    Raises: ValueError if the numbers of sequences differ or a draft is longer than the block.
    """
    if not rows:
        return logits
    if len(rows) != len(logits):
        raise ValueError(f"{len(logits)} sequences of logits and {len(rows)} rows; give one each")
    longest = max((len(row.draft_ids) for row in rows), default=0)
    if longest >= logits.shape[1]:
        raise ValueError(f"{longest} drafts need {longest + 1} rows; there are {logits.shape[1]}")
    if not any(row.is_needed for row in rows):
        return logits
    out = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for block, row in zip(out, rows, strict=True):
        if row.is_needed:
            _adjust_block(block[: len(row.draft_ids) + 1], row)
    return out


def _adjust_block(block: Float[Tensor, "r v"], row: AdjustRow) -> None:
    """Adjust the rows of one sequence in place."""
    params = row.params
    if params.logit_bias:
        block[:, list(params.logit_bias)] += block.new_tensor(list(params.logit_bias.values()))
    if row.has_penalties:
        _penalise(block, row)
    if row.num_endless:
        forbidden = [*row.end_ids, *params.stop_token_ids]
        block[: row.num_endless, forbidden] = float("-inf")


def _penalise(block: Float[Tensor, "r v"], row: AdjustRow) -> None:
    """Penalties, on the columns of tokens that occur anywhere in the text or the drafts.

    Each penalty is one operation on the full count of its row: taking it off draft by draft would
    round differently from plain decoding.
    """
    params = row.params
    prompt = set(row.token_ids[: row.prompt_len]) if params.repetition_penalty != 1.0 else set()
    output = Counter(row.token_ids[row.prompt_len :])
    ids = sorted(prompt | output.keys() | set(row.draft_ids))
    counts = block.new_tensor([output[token_id] for token_id in ids]).repeat(len(block), 1)
    column_of = {token_id: column for column, token_id in enumerate(ids)}
    for index, token_id in enumerate(row.draft_ids):
        counts[index + 1 :, column_of[token_id]] += 1.0
    values = block[:, ids]
    if params.repetition_penalty != 1.0:
        is_seen = counts.gt(0.0) | torch.tensor([i in prompt for i in ids], device=block.device)
        values = torch.where(is_seen, _repeated(values, params.repetition_penalty), values)
    if params.frequency_penalty:
        values = values - params.frequency_penalty * counts
    if params.presence_penalty:
        values = values - params.presence_penalty * counts.gt(0.0)
    block[:, ids] = values


def _repeated(values: Float[Tensor, "r u"], penalty: float) -> Float[Tensor, "r u"]:
    """Make values less likely whatever their sign (CTRL, Keskar et al. 2019, arXiv 1909.05858)."""
    return torch.where(values > 0.0, values / penalty, values * penalty)
