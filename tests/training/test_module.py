"""The network that is trained is the network that is served, and no block sees its own future."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from blockdraft.training import attention
from blockdraft.training.module import DrafterModule
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.training.tiny_blocks import make_batch, make_sample, random_embedding, served_rows

VIEWS = [
    {},
    {"windows": 5},
    {"windows": 5, "causal": True},
    {"causal": True},
    {"windows": (4, None), "causal": (True, False)},
    {"input_embedding_scale": 3.0, "block_size": 5},
]


def _module(config):  # type: ignore[no-untyped-def]
    tensors, embedding = random_tensors(config), random_embedding(config)
    return DrafterModule.from_tensors(config, tensors, embedding), tensors, embedding


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
@pytest.mark.parametrize("changes", VIEWS, ids=str)
def test_rows_equal_those_of_the_decoding_loop(method: str, changes: dict) -> None:
    """BC-51, at every slot: samples of different lengths, anchors near each other."""
    config = tiny_drafter_config(method, **changes)
    module, tensors, embedding = _module(config)
    samples = [make_sample(config, 30, seed=1), make_sample(config, 12, 5, seed=2)]
    anchors = [[3, 4, 9, 28], [5, 10]]
    rows = module(make_batch(config, samples, anchors))
    expected = [
        served_rows(config, tensors, embedding, sample, a)
        for sample, own in zip(samples, anchors, strict=True)
        for a in own
    ]
    torch.testing.assert_close(rows, torch.stack(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("windows", [None, 4])
def test_features_from_the_anchor_on_change_nothing(windows: int | None) -> None:
    """BC-50: bit for bit, with anchors three apart and blocks of eight."""
    config = tiny_drafter_config("dflash2", windows=windows)
    module, _, _ = _module(config)
    sample, anchors = make_sample(config, 40), [6, 9, 12, 15]
    before = module(make_batch(config, [sample], [anchors]))
    for i, anchor in enumerate(anchors):
        features = sample.features.clone()
        features[anchor:] = 100 * torch.randn_like(features[anchor:])
        changed = dataclasses.replace(sample, features=features)
        after = module(make_batch(config, [changed], [anchors]))
        assert torch.equal(before[: i + 1], after[: i + 1])
        assert i == len(anchors) - 1 or not torch.equal(before[i + 1], after[i + 1])


def test_the_feature_before_the_anchor_matters() -> None:
    config = tiny_drafter_config("dflash2")
    module, _, _ = _module(config)
    sample = make_sample(config, 40)
    features = sample.features.clone()
    features[8] += 1
    changed = dataclasses.replace(sample, features=features)
    before, after = (module(make_batch(config, [s], [[9]])) for s in (sample, changed))
    assert not torch.allclose(before, after)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    config = tiny_drafter_config("dflash2")
    module, _, _ = _module(config)
    a, b = make_sample(config, 30, seed=1), make_sample(config, 17, seed=2)
    alone = module(make_batch(config, [b], [[4, 11]]))
    together = module(make_batch(config, [a, b, a], [[3, 20], [4, 11], [28]]))
    torch.testing.assert_close(together[2:4], alone, rtol=1e-5, atol=1e-5)


def test_long_samples_in_groups_give_the_same_rows_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory stays bounded: with room for few scores, blocks go in groups and are recomputed."""
    config = tiny_drafter_config("dflash2", windows=(6, None))
    batch = make_batch(config, [make_sample(config, 60)], [list(range(3, 50, 4))])

    def run() -> list[torch.Tensor]:
        module, _, _ = _module(config)
        rows = module(batch)
        rows.square().sum().backward()
        return [rows.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    whole = run()
    monkeypatch.setattr(attention, "_MAX_SCORES", 3 * config.block_size * config.num_heads * 47)
    for a, b in zip(whole, run(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_bfloat16_rows_are_near_and_parameters_stay_float32() -> None:
    config = tiny_drafter_config("dflash2")
    tensors, embedding = random_tensors(config), random_embedding(config)
    batch = make_batch(config, [make_sample(config, 30)], [[5, 12]])
    exact = DrafterModule.from_tensors(config, tensors, embedding)(batch)
    module = DrafterModule.from_tensors(config, tensors, embedding, torch.bfloat16)
    rows = module(batch)
    rows.float().sum().backward()
    assert rows.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in module.parameters())
    assert (rows.float() - exact).norm() / exact.norm() < 0.05


def test_parameters_are_the_checkpoint() -> None:
    config = tiny_drafter_config("dflash2")
    module, tensors, _ = _module(config)
    out = module.checkpoint_tensors()
    assert out.keys() == tensors.keys()
    assert all(torch.equal(out[name], tensors[name]) for name in out)
