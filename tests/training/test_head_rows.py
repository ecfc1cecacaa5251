"""Chunked losses against the plain way: all logits at once, and autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from blockdraft.errors import ConfigError
from blockdraft.training import head as head_file
from blockdraft.training.head import Head, head_rows
from blockdraft.training.losses import LOSS_NAMES, MixedLoss

HEADS = [{}, {"multiplier": 0.5}, {"softcap": 2.0}, {"multiplier": 3.0, "softcap": 4.0}]


def _case(num_rows: int = 23, v: int = 40, m: int = 16) -> tuple[torch.Tensor, ...]:
    gen = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_rows, m, generator=gen)
    weight = torch.randn(v, m, generator=gen)
    labels = torch.randint(0, v, (num_rows,), generator=gen)
    teacher = 2 * torch.randn(num_rows, 60, generator=gen)
    return hidden, weight, labels, teacher


def _slow_loss(name: str, p: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> Any:
    q = logits.softmax(-1)
    shared = torch.minimum(p, q).sum(-1)
    kl = (p * (p.log() - q.log())).sum(-1)
    if name == "ce":
        return -q.gather(-1, labels[:, None])[:, 0].log()
    if name == "kl":
        return kl
    if name == "rkl":
        return (q * (q.log() - p.clamp_min(1e-5).log())).sum(-1)
    if name == "jsd":
        m = (p + q) / 2
        return ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2
    if name == "tv":
        return 1 - shared
    if name == "nla":
        return -(shared + 1e-5).log()
    mix = torch.exp(-3 * shared.detach())
    return mix * kl + (1 - mix) * (1 - shared)


@pytest.mark.parametrize("options", HEADS, ids=str)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_losses_and_gradients(
    name: str, options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_file, "_CHUNK_NUMBERS", 40 * 5)  # chunks of 5 rows, the last of 3
    hidden, weight, labels, teacher = _case()
    ids = torch.arange(10, 50)
    head, loss = Head(weight, **options), MixedLoss({name: 1.0}, ids)
    up, upv = torch.randn(23), torch.randn(23, 4)
    free = hidden.clone().requires_grad_()
    rows = head_rows(head, free, labels, loss, 4, teacher=lambda rows: teacher[rows])
    ((rows.loss * up).sum() + (rows.values * upv).sum()).backward()

    slow = hidden.clone().requires_grad_()
    raw = slow @ weight.T * options.get("multiplier", 1.0)
    cap = options.get("softcap")
    logits = raw if cap is None else torch.tanh(raw / cap) * cap
    expected = _slow_loss(name, teacher.softmax(-1)[:, ids], logits, labels)
    values, best = logits.topk(4)
    ((expected * up).sum() + (values * upv).sum()).backward()
    torch.testing.assert_close(rows.loss, expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows.values, values, rtol=1e-4, atol=1e-5)
    assert torch.equal(rows.ids, best)
    logq = logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    torch.testing.assert_close(rows.label_logprob, logq, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(free.grad, slow.grad, rtol=1e-3, atol=1e-4)


def test_mixtures_add_up() -> None:
    hidden, weight, labels, teacher = _case()
    logits = hidden @ weight.T
    p = teacher[:, :40]
    mixed = MixedLoss({"ce": 0.1, "tv": 0.9})(logits, labels, p)
    parts = [MixedLoss({n: 1.0})(logits, labels, p) for n in ("ce", "tv")]
    torch.testing.assert_close(mixed, 0.1 * parts[0] + 0.9 * parts[1])


def test_cross_entropy_gradient_is_weighted() -> None:
    hidden, weight, labels, _ = _case()
    logits = hidden @ weight.T
    loss, grad, _ = MixedLoss({"ce": 0.25}).with_gradient(logits, labels, None)
    free = logits.clone().requires_grad_()
    (0.25 * F.cross_entropy(free, labels, reduction="none")).sum().backward()
    torch.testing.assert_close(grad, free.grad)
    torch.testing.assert_close(loss, 0.25 * F.cross_entropy(logits, labels, reduction="none"))


def test_injected_labels_take_the_last_place_only_where_missing() -> None:
    hidden, weight, labels, _ = _case()
    plain = head_rows(Head(weight), hidden, labels, MixedLoss({"ce": 1.0}), 4)
    injected = head_rows(Head(weight), hidden, labels, MixedLoss({"ce": 1.0}), 4, inject=True)
    had = (plain.ids == labels[:, None]).any(-1)
    assert had.any()
    assert not had.all()
    assert torch.equal(plain.has_label, had)
    assert torch.equal(injected.has_label, had)
    assert torch.equal(plain.ids[had], injected.ids[had])
    assert torch.equal(injected.ids[~had][:, -1], labels[~had])
    assert torch.equal(injected.ids[~had][:, :-1], plain.ids[~had][:, :-1])
    logits = hidden @ weight.T
    torch.testing.assert_close(injected.values, logits.gather(-1, injected.ids))


def test_mass_outside_the_draft_vocabulary_is_not_renormalised() -> None:
    """A drafter that says what it can as well as possible still pays for what it cannot say."""
    p = torch.tensor([[0.5, 0.3, 0.2]])
    loss = MixedLoss({"tv": 1.0}, torch.tensor([0, 1]))
    best = loss(torch.tensor([[0.7, 0.3]]).log(), torch.tensor([0]), p.log())
    assert best.item() == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("parts", [{}, {"mse": 1.0}, {"ce": 0.0}, {"ce": float("nan")}])
def test_wrong_mixtures_are_refused(parts: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="loss"):
        MixedLoss(parts)
