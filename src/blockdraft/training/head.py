"""The frozen head and the row losses on it, in chunks: logits of a whole batch never exist.

A row's loss depends on that row's logits alone, so its gradient towards the hidden row is found in
the forward pass, chunk by chunk, and only scaled in the backward pass. Nothing is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.sampling.topk import fast_topk

#: Logits of one chunk, in numbers.
_CHUNK_NUMBERS = 1 << 22


class RowLoss(Protocol):
    """A loss of each row and its gradient (see `losses.MixedLoss`)."""

    def with_gradient(
        self, logits: Tensor, labels: Tensor, teacher: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses [n], their gradient towards the logits [n, v], log q of the labels [n]."""
        ...


@dataclass(frozen=True)
class Head:
    """The target's head over the tokens that may be drafted.

    Attributes:
        weight: rows of the target's head [v, m]; v is the draft vocabulary.
        multiplier, softcap: what the drafter's config does with logits, in that order.
    """

    weight: Float[Tensor, "v m"]
    multiplier: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Float[Tensor, "n m"]) -> Float32[Tensor, "n v"]:
        """Transformed logits in float32."""
        return self.transform(F.linear(hidden, self.weight.to(hidden.dtype)).float())

    def transform(self, logits: Tensor) -> Tensor:
        """Multiplier and soft-cap."""
        if self.multiplier != 1:
            logits = logits * self.multiplier
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


@dataclass(frozen=True)
class HeadRows:
    """What the head says of some rows.

    Attributes:
        loss: of each row [n]; differentiable.
        label_logprob: log q(label) of each row [n], detached.
        values, ids: the best logits and their tokens [n, c]; values are differentiable.
        has_label: the label is among the candidates by itself [n], not because it was injected.
    """

    loss: Float32[Tensor, "n"]
    label_logprob: Float32[Tensor, "n"]
    values: Float32[Tensor, "n c"]
    ids: Int64[Tensor, "n c"]
    has_label: Bool[Tensor, "n"]


def head_rows(
    head: Head,
    hidden: Float[Tensor, "n m"],
    labels: Int64[Tensor, "n"],
    row_loss: RowLoss,
    num_best: int,
    *,
    inject: bool = False,
    teacher: Callable[[slice], Tensor] | None = None,
) -> HeadRows:
    """Losses and candidates of rows.

    Args:
        labels: token to predict, as an index of the head's rows.
        num_best: candidates of each row.
        inject: put the label in place of the last candidate where it is not among them.
        teacher: gives the target's own logits [n, w] of a slice of the rows.
    """
    loss, logprob, values, ids, has_label = _HeadRows.apply(
        hidden, head, labels, row_loss, num_best, inject, teacher
    )  # type: ignore[no-untyped-call]
    return HeadRows(loss, logprob, values, ids, has_label)


class _HeadRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Head,
        labels: Tensor,
        row_loss: RowLoss,
        num_best: int,
        inject: bool,
        teacher: Callable[[slice], Tensor] | None,
    ) -> tuple[Tensor, ...]:
        weight = head.weight.to(hidden.dtype)
        step = max(1, _CHUNK_NUMBERS // len(weight))
        parts, grads = [], []
        for start in range(0, len(hidden), step):
            rows = slice(start, start + step)
            asked = None if teacher is None else teacher(rows)
            raw = F.linear(hidden[rows], weight).float()
            part, grad = _chunk(head, raw, labels[rows], row_loss, num_best, inject, asked)
            parts.append(part)
            grads.append(grad.to(hidden.dtype) @ weight if ctx.needs_input_grad[0] else grad[:0])
        columns = zip(*parts, strict=True)
        loss, logprob, values, ids, has_label, slopes = (torch.cat(each) for each in columns)
        ctx.save_for_backward(torch.cat(grads), ids, slopes, weight)
        ctx.mark_non_differentiable(logprob, ids, has_label)
        return loss, logprob, values, ids, has_label

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        grad_loss, _, grad_values, *_ = outer
        grads, ids, slopes, weight = ctx.saved_tensors
        total = grads * grad_loss[:, None].to(grads.dtype)
        through = (grad_values * slopes).to(weight.dtype)
        if bool(through.any()):
            total = total + F.embedding_bag(ids, weight, per_sample_weights=through, mode="sum")
        return total, None, None, None, None, None, None


def _chunk(
    head: Head,
    raw: Tensor,
    labels: Tensor,
    row_loss: RowLoss,
    num_best: int,
    inject: bool,
    teacher: Tensor | None,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Outputs of one chunk, and the gradient of its losses towards the raw logits."""
    logits = head.transform(raw)
    loss, grad, logprob = row_loss.with_gradient(logits, labels, teacher)
    _, ids = fast_topk(logits, num_best)
    has_label = (ids == labels[:, None]).any(-1)
    if inject:
        ids[~has_label, -1] = labels[~has_label]
    values, slopes = logits.gather(-1, ids), _slopes(head, raw.gather(-1, ids))
    if head.softcap is not None:
        grad *= _slopes(head, raw)
    elif head.multiplier != 1:
        grad *= head.multiplier
    return (loss, logprob, values, ids, has_label, slopes), grad


def _slopes(head: Head, raw: Tensor) -> Tensor:
    """d(transformed) / d(raw) at some logits."""
    if head.softcap is None:
        return torch.full_like(raw, head.multiplier)
    squashed = torch.tanh(raw * head.multiplier / head.softcap)
    return head.multiplier * (1 - squashed * squashed)
