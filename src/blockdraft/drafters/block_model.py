"""What the DFlash family shares: the pass over a block, with the target's embedding and head."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from blockdraft.cache.base import DraftContext
from blockdraft.cache.draft_context import KVDraftContext
from blockdraft.drafters.backbone import Backbone
from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.config import MAX_CANDIDATES, DFlashConfig, fit_num_draft_tokens
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS, DraftVocab
from blockdraft.drafters.pairing import CHECKPOINT_FINGERPRINT, check_pairing
from blockdraft.drafters.tensors import check_tensors
from blockdraft.kernels.choose import choose_kernels
from blockdraft.sampling.topk import fast_topk
from blockdraft.types import GREEDY_TEMPERATURE, TargetHandle

if TYPE_CHECKING:
    from blockdraft.drafters.native_backbone import NativeBackbone
    from blockdraft.kernels.native import PassResult


@dataclass(frozen=True)
class DraftedBlock:
    """What a pass over the blocks gives for the slots to fill.

    Attributes:
        hidden: final-normed rows [b, k, m].
        logits: the head's raw logits for them [b, k, e], if they were written out; e tokens can be
            drafted.
        top: else the best of them and their rows [b, k, c], as many as were asked for.
    """

    hidden: Float[Tensor, "b k m"]
    logits: Float[Tensor, "b k e"] | None
    top: tuple[Float32[Tensor, "b k c"], Int64[Tensor, "b k c"]] | None = None

    def best(self, num: int) -> tuple[Float32[Tensor, "b k c"], Int64[Tensor, "b k c"]]:
        """The greatest raw logits of each slot and their rows; the lowest row first on ties.

        Rows are those of the head: `DraftVocab.tokens` gives the token ids.
        """
        if self.top is not None:
            values, rows = self.top
            return values[..., :num], rows[..., :num]
        assert self.logits is not None
        b, k, e = self.logits.shape
        values, rows = fast_topk(self.logits.flatten(0, 1), min(num, e))
        return values.float().view(b, k, -1), rows.view(b, k, -1)


class BlockModel:
    """A backbone with the embedding and head it borrows from the target.

    Args:
        config, tensors: the drafter; tensors by their z-lab names.
        dtype, device: what the backbone runs in, and where.
        num_draft_tokens: tokens to draft; None drafts whole blocks.
        provenance: what the checkpoint records of its target (see `pairing`).
        source: where it came from, for messages.
        kernels: backend of the products (see `choose_kernels`).
    Raises: CheckpointError if tensors are missing, unexpected or misshapen; ConfigError.
    """

    def __init__(
        self,
        config: DFlashConfig,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_draft_tokens: int | None,
        provenance: Mapping[str, str],
        source: str,
        kernels: str,
    ) -> None:
        check_tensors(config, tensors)
        self.config, self.provenance, self.source = config, dict(provenance), source
        self.num_draft_tokens = fit_num_draft_tokens(config, num_draft_tokens)
        self._tensors, self.dtype, self.device, self._kernels = tensors, dtype, device, kernels
        ids = tensors.get(DRAFT_VOCAB_IDS)
        self.vocab = DraftVocab(None if ids is None else ids.to(device), config.vocab_size)
        self._target: TargetHandle | None = None
        self._has_warned = False

    @cached_property
    def backbone(self) -> Backbone | NativeBackbone:
        """The packed layers; made when they are first needed, since native ones need the head."""
        tensors, self._tensors = self._tensors, {}
        parts = self._native_parts()
        if parts is not None:
            # Imported late: the native kernels are compiled at first use.
            from blockdraft.drafters.native_backbone import NativeBackbone

            reach = self.target.info.max_context_len + 1 + self.num_draft_tokens
            return NativeBackbone(self.config, tensors, *parts, num_positions=reach)
        kernels = choose_kernels(self.dtype, self.device, self._kernels)
        return Backbone(self.config, tensors, kernels, self.device)

    @property
    def native_isa(self) -> str:
        """Instruction set of a backbone on the native kernels."""
        assert not isinstance(self.backbone, Backbone), "this backbone runs on PyTorch"
        return self.backbone.native_pass.isa

    @cached_property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Raw logits of the tokens that can be drafted, for rows [n, m] in the target's dtype."""
        if self.vocab.ids is None:
            return self.target.head
        kernels = choose_kernels(self.target.info.dtype, self.device, self._kernels)
        return kernels.linear(*self.target.head_rows(self.vocab.ids))

    def _native_parts(self) -> tuple[Any, Tensor] | None:
        """Head and embedding of a target that runs on the native kernels.

        The head is the target's packed one, or the rows of the draft vocabulary.
        """
        wanted = self._kernels == "auto" and self.dtype == torch.bfloat16
        head = getattr(self._target, "packed_head", None)
        fits = self.config.conv_kernel_size in (0, 2)
        if not (wanted and fits) or head is None or self._target is None:
            return None
        if self.vocab.ids is not None:
            head = head.packed_rows(self.vocab.ids)
        return head, self._target.embedding  # type: ignore[attr-defined]

    def describe(self, name: str) -> dict[str, Any]:
        """What this drafter is, for provenance; the fingerprint is of its weights file."""
        return {
            "name": name,
            "num_draft_tokens": self.num_draft_tokens,
            "source": self.source,
            "fingerprint": self.provenance.get(CHECKPOINT_FINGERPRINT),
        }

    @property
    def target(self) -> TargetHandle:
        """The target whose embedding and head are borrowed."""
        assert self._target is not None, "bind the drafter to a target first"
        return self._target

    def bind(self, target: TargetHandle) -> None:
        """Borrow the target's embedding and head. Raises: CheckpointError for a wrong pair."""
        check_pairing(self.config, self.provenance, target.info, self.source)
        self._target = target

    def new_context(self, num_slots: int, max_len: int) -> KVDraftContext:
        """An empty context for `num_slots` sequences of up to `max_len` tokens."""
        return self.backbone.new_context(num_slots, max_len, 1 + self.num_draft_tokens)

    def draft(
        self, context: DraftContext, batch: DraftBatch, num_candidates: int = MAX_CANDIDATES
    ) -> DraftedBlock:
        """One pass over [anchor, MASK, ..] of every row, always at full width.

        Logits are made only for as many slots as some row has a use for; `num_candidates` is how
        many of the best the caller will ask for.
        """
        assert isinstance(context, KVDraftContext)
        b, width = len(batch.positions), 1 + self.num_draft_tokens
        ids = batch.anchor_ids.new_full((b, width), self.config.mask_token_id)
        ids[:, 0] = batch.anchor_ids
        num_slots = max(1, min(self.num_draft_tokens, max(batch.max_lens)))
        if not isinstance(self.backbone, Backbone):
            num_candidates = min(num_candidates, self.config.num_draftable_tokens)
            result = self.backbone.run(ids, context, batch.positions, num_slots, num_candidates)
            return _drafted(result, b, num_slots)
        rows = self.target.embed(ids).to(self.backbone.kernels.dtype)
        if self.config.input_embedding_scale != 1:
            rows = rows * self.config.input_embedding_scale
        hidden = self.backbone.run(rows, context, batch.positions)
        hidden = hidden[:, 1 : 1 + num_slots]
        flat = hidden.flatten(0, 1).to(self.target.info.dtype)
        return DraftedBlock(hidden, self.head(flat).view(b, num_slots, -1))

    def transform(self, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Multiplier and soft-cap: increasing, so they may follow the choice of candidates."""
        if self.config.output_multiplier != 1:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def draft_lens(self, batch: DraftBatch, is_finite: Sequence[bool]) -> tuple[int, ...]:
        """Tokens each row may use: none where its scores are not finite.

        Whether a row is refused depends on its scores alone, never on what was drawn from them, so
        that the proposal stays exact. Says so once.
        """
        return self.cut_lens(batch, [self.num_draft_tokens if ok else 0 for ok in is_finite])

    def cut_lens(self, batch: DraftBatch, finite_lens: Sequence[int]) -> tuple[int, ...]:
        """Tokens each row may use: none from the first slot on whose scores are not finite.

        A slot's scores may depend on the drafts before it, never on its own: so the proposal stays
        exact. Says once that something is not used.
        """
        lens = tuple(min(n, self.num_draft_tokens) for n in batch.max_lens)
        cut = tuple(map(min, lens, finite_lens))
        if cut != lens and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"drafter {self.source!r} gives non-finite logits in"
                f" {str(self.dtype).removeprefix('torch.')}: nothing is drafted"
                " where it does (said once); try another dtype",
                stacklevel=2,
            )
        return cut


def _drafted(result: PassResult, num_rows: int, num_slots: int) -> DraftedBlock:
    assert result.hidden is not None
    assert result.top_values is not None
    assert result.top_ids is not None
    assert result.nonfinite is not None
    shape, rows = (num_rows, num_slots, -1), result.top_ids
    if any(result.nonfinite.tolist()):
        # A row is -1 only where logits were not numbers; such a row drafts nothing (`draft_lens`).
        rows.clamp_(min=0)
    return DraftedBlock(
        result.hidden.view(shape), None, (result.top_values.view(shape), rows.view(shape))
    )


def without_refused(
    scores: Float32[Tensor, "b ..."], is_finite: Sequence[bool]
) -> Float32[Tensor, "b ..."]:
    """Scores that can be drawn from: zeros in the rows of which nothing is used."""
    if all(is_finite):
        return scores
    kept = torch.tensor(is_finite, device=scores.device).view(-1, *[1] * (scores.ndim - 1))
    return torch.where(kept, scores, 0.0)


def sampling_temperatures(batch: DraftBatch) -> Sequence[float | None]:
    """Temperature of each row; None where it is greedy."""
    return [None if t < GREEDY_TEMPERATURE else t for t in batch.temperatures]
