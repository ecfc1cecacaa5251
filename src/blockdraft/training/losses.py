"""Losses of one row: how far the draft distribution q is from what the target says.

`ce` is the negative log-probability of the token that the target chose. The others compare q with
the target's whole distribution p (the teacher). With a draft vocabulary, q has no mass outside it:
p keeps what it has there, since it is lost for acceptance (never renormalised away).

Sources: forward and reverse KL, Jensen-Shannon: the usual; total variation is one minus the chance
of acceptance (arXiv 2211.17192); LK losses arXiv 2602.23881 (nla, lk_hybrid).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.errors import ConfigError

_EPS = 1e-5

#: Losses that need the target's logits.
TEACHER_LOSSES = ("kl", "rkl", "jsd", "tv", "nla", "lk_hybrid")
LOSS_NAMES = ("ce", *TEACHER_LOSSES)


@dataclass(frozen=True)
class MixedLoss:
    """A weighted sum of losses, called as a `RowLoss`.

    Args:
        parts: weight of each loss by name.
        draft_vocab_ids: target token of each column of q; None where they are the same tokens.
        temperature: of the teacher.
    Raises: ConfigError for an unknown loss or a weight that is not positive.
    """

    parts: Mapping[str, float]
    draft_vocab_ids: Int64[Tensor, "v"] | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError(f"no loss is named; choose from {', '.join(LOSS_NAMES)}")
        for name, weight in self.parts.items():
            if name not in LOSS_NAMES:
                raise ConfigError(
                    f"loss {name!r} is not known; choose from {', '.join(LOSS_NAMES)}"
                )
            if not weight > 0:
                raise ConfigError(f"the weight of loss {name!r} is {weight}; it must be above 0")

    @property
    def needs_teacher(self) -> bool:
        """Whether the target's logits are needed."""
        return any(name in TEACHER_LOSSES for name in self.parts)

    def __call__(
        self,
        logits: Float32[Tensor, "n v"],
        labels: Int64[Tensor, "n"],
        teacher: Float32[Tensor, "n w"] | None,
    ) -> Float32[Tensor, "n"]:
        """Loss of each row."""
        total = torch.zeros((), device=logits.device)
        if "ce" in self.parts:
            total = self.parts["ce"] * F.cross_entropy(logits, labels, reduction="none")
        if self.needs_teacher:
            assert teacher is not None, "this loss needs the target's logits"
            p = torch.softmax(teacher / self.temperature, -1)
            if self.draft_vocab_ids is not None:
                p = p[:, self.draft_vocab_ids]
            log_q = torch.log_softmax(logits, -1)
            for name, weight in self.parts.items():
                if name != "ce":
                    total = total + weight * _distances(name, p, log_q)
        return total

    def with_gradient(
        self, logits: Tensor, labels: Tensor, teacher: Tensor | None
    ) -> tuple[Float32[Tensor, "n"], Float32[Tensor, "n v"], Float32[Tensor, "n"]]:
        """Loss of each row, its gradient towards the logits, and log q of the labels."""
        # Half the time of log_softmax; a q below the smallest number counts as that number.
        q = torch.softmax(logits, -1)
        tiny = torch.finfo(q.dtype).tiny
        logprob = q.gather(-1, labels[:, None])[:, 0].clamp_min(tiny).log()
        if not self.needs_teacher:
            # Cross entropy alone: softmax minus one-hot, without a second pass over the logits.
            grad = q
            grad.scatter_add_(-1, labels[:, None], grad.new_full((len(labels), 1), -1.0))
            weight = self.parts["ce"]
            return -logprob * weight, grad if weight == 1 else grad.mul_(weight), logprob
        with torch.enable_grad():
            free = logits.detach().requires_grad_()
            loss = self(free, labels, teacher)
            [grad] = torch.autograd.grad(loss.sum(), free)
        return loss.detach(), grad, logprob


def _distances(name: str, p: Tensor, log_q: Tensor) -> Tensor:
    """One distance of each row; p may sum to less than 1."""
    if name == "kl":
        return _kl(p, log_q)
    q = log_q.exp()
    if name == "rkl":
        return (q * (log_q - p.clamp_min(_EPS).log())).sum(-1)
    if name == "jsd":
        middle = ((p + q) / 2).clamp_min(torch.finfo(p.dtype).tiny).log()
        return (_kl(p, middle) + (q * (log_q - middle)).sum(-1)) / 2
    shared = torch.minimum(p, q).sum(-1)
    if name == "tv":
        return 1 - shared
    if name == "nla":
        return -(shared + _EPS).log()
    mix = torch.exp(-3 * shared.detach())
    return mix * _kl(p, log_q) + (1 - mix) * (1 - shared)


def _kl(p: Tensor, log_q: Tensor) -> Tensor:
    return (torch.xlogy(p, p) - p * log_q).sum(-1)
