"""The vocabulary of the system: requests, proposals, verdicts, cycles.

Dimension legend (the whole project): `b` rows, `t` tokens, `k` drafted tokens, `c` candidates,
`h` heads, `d` head width, `m` model width, `v` vocabulary, `e` draft vocabulary, `l` layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.param_types import as_tuple, check_types

FinishReason = Literal["stop", "length", "error", "cancelled"]

#: Temperatures below this are greedy, in every branch (draft, walk, verify).
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the target's logits, and where a request ends.

    Attributes:
        max_tokens: most tokens to generate; 0 returns at once, without a pass.
        min_tokens: end tokens and `stop_token_ids` are impossible before this many tokens.
        temperature: 0 is greedy; so is anything below `GREEDY_TEMPERATURE`.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep a token while the mass before it is below top_p; 1 keeps all.
        min_p: drop tokens whose probability is below min_p times the greatest; 0 keeps all.
        repetition_penalty: divides (positive) or multiplies (negative) logits of tokens seen in
            prompt or output (CTRL, arXiv 1909.05858); 1 is off.
        presence_penalty: subtracted once from tokens seen in the output, -2 to 2.
        frequency_penalty: subtracted for each time a token was seen in the output, -2 to 2.
        logit_bias: added to the logits of the given token ids.
        stop: strings that end the text; the one that completes earliest wins.
        include_stop: keep the stop string at the end of the text.
        stop_token_ids: token ids that end the request, beside the target's own end ids.
        ignore_eos: the target's own end ids do not end the request.
        seed: of the request's random streams; None draws a fresh one.
        logprobs: report the log-probabilities of the chosen and of this many best tokens,
            from the target's raw logits; None reports none.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] | str = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            object.__setattr__(self, name, as_tuple(getattr(self, name)))
        check_types(self)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._check_lengths()
        self._check_numbers()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_adjustments(self) -> bool:
        """Whether logits must be changed (penalties, bias, min_tokens) before choosing."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.min_tokens
        )

    def _check_lengths(self) -> None:
        if self.max_tokens < 0:
            raise ConfigError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ConfigError(
                f"min_tokens is {self.min_tokens}; it must be 0 to max_tokens ({self.max_tokens})"
            )
        if any(not text for text in self.stop):
            raise ConfigError("a stop string is empty; give at least one character")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise ConfigError(f"logprobs is {self.logprobs}; it must be 0 to 100, or None")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is {self.seed}; it must be 0 to 2**64 - 1")

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
            ("repetition_penalty", 0.0, 100.0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise ConfigError(f"{name} is {value}; it must be {low:g} to {high:g}")
        if self.top_p == 0.0 or self.repetition_penalty == 0.0:
            name = "top_p" if self.top_p == 0.0 else "repetition_penalty"
            raise ConfigError(f"{name} is 0; it must be greater than 0")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; it must be 0 (off) or more")
        if not all(math.isfinite(value) for value in self.logit_bias.values()):
            raise ConfigError("logit_bias has a non-finite value; give finite numbers")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to continue. `stream_key` separates the random streams of equal seeds."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stream_key: int = 0


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens of a batch and the distribution they were drawn from.

    Attributes:
        ids: drafted token ids; entries at and beyond a row's length are ignored.
        lens: drafted tokens of each row, 0..k.
        q_ids: support of q at each slot; None says that every q is a point mass at `ids`.
        q_probs: q on that support, rows sum to 1; the row really sampled from.
        looked_up: rows whose drafts were copied from their text, not made by the drafter's model.
        match_lens: where drafts were looked up, tokens of each row that its copy is the
            continuation of; 0 without one. Empty where nothing is looked up.
    """

    ids: Int64[Tensor, "b k"]
    lens: tuple[int, ...]
    q_ids: Int64[Tensor, "b k c"] | None = None
    q_probs: Float32[Tensor, "b k c"] | None = None
    looked_up: frozenset[int] = frozenset()
    match_lens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What verification decided: accepted drafts of each row, and the token that follows them."""

    accepted_len: tuple[int, ...]
    next_ids: tuple[int, ...]


@dataclass(frozen=True)
class Cycle:
    """What one cycle did to one row: every counter derives from these."""

    drafted_len: int
    accepted_len: int
    committed_ids: Sequence[int]


#: In a target's `extra`: fingerprint of the model whose weights were rounded to make its own.
ROUNDED_FROM = "rounded_from"


@dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """What a target is. `fingerprint` is a SHA-256 over its weights' files, for provenance."""

    name: str
    source: str
    fingerprint: str
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context_len: int
    end_ids: tuple[int, ...]
    dtype: torch.dtype
    num_parameters: int
    extra: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class TargetHandle(Protocol):
    """The part of a target that a drafter may borrow: it never sees the cache or the layers."""

    info: TargetInfo
    device: torch.device

    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        """Raw rows of the embedding table (no scale)."""
        ...

    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        """Apply the output head (no final norm, no multiplier, no soft-cap)."""
        ...

    def head_rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e m"], Float[Tensor, "e"] | None]:
        """Rows of the head for some tokens, and their biases if it has any: copies."""
        ...
