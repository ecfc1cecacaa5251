"""Rows of a target's head, for drafters that multiply only some of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

from blockdraft.kernels import native
from blockdraft.targets.base import Target
from blockdraft.targets.transformers import TransformersTarget
from tests.fakes.bfloat16 import exact_target, native_target
from tests.fakes.models import tiny_target

IDS = torch.tensor([0, 3, 31, 32, 149, 159])


def biased_target() -> TransformersTarget:
    """A GPT-J: its head has a bias."""
    torch.manual_seed(0)
    config = transformers.GPTJConfig(
        vocab_size=160, n_positions=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8
    )
    model: Any = transformers.GPTJForCausalLM(config)
    model.lm_head.bias.data.normal_()
    return TransformersTarget(model, tiny_target(num_layers=2).info)


def targets() -> list[tuple[str, Any]]:
    return [
        ("decoder", lambda: tiny_target(tie_embeddings=False)),
        ("decoder-tied", lambda: tiny_target(tie_embeddings=True)),
        ("decoder-onednn", lambda: tiny_target(dtype=torch.bfloat16, tie_embeddings=False)),
        ("exact", lambda: exact_target(tie_embeddings=False)),
        ("transformers-bias", biased_target),
    ]


def check(target: Target) -> None:
    weight, bias = target.head_rows(IDS)
    hidden = torch.randn(5, 64).to(weight.dtype)
    expected = target.head(hidden)[:, IDS].float()
    got = F.linear(hidden.float(), weight.float(), None if bias is None else bias.float())
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("make", [m for _, m in targets()], ids=[name for name, _ in targets()])
def test_rows_make_the_logits_of_the_head(make: Any) -> None:
    check(make())


def test_a_bias_comes_along() -> None:
    _, bias = biased_target().head_rows(IDS)
    assert bias is not None
    assert bias.shape == (6,)


@pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
@pytest.mark.parametrize("is_tied", [False, True])
def test_native_rows_are_the_weights(is_tied: bool) -> None:
    target = native_target(tie_embeddings=is_tied)
    check(target)
    weight, bias = target.head_rows(IDS)
    assert bias is None
    if is_tied:
        assert torch.equal(weight, target.embed(IDS))
