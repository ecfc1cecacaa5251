"""Folders that z-lab's package saves are read here, and folders written here load there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.interop.zlab import read_zlab, write_zlab
from tests.drafters.tiny import random_tensors, tiny_drafter_config

reference = pytest.importorskip("dflash.model", reason="z-lab's package `dflash` is not installed")

CLASSES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
@pytest.mark.parametrize("windows", [(None, None), (16, 16), (16, None)])
def test_both_ways(tmp_path: Path, method: str, windows: tuple[int | None, ...]) -> None:
    config = tiny_drafter_config(
        method, windows=windows, causal=tuple(w is not None for w in windows)
    )
    tensors = random_tensors(config)
    write_zlab(tmp_path / "ours", config, tensors, {"target_name": "tiny"})
    cls = getattr(reference, CLASSES[method])
    model, report = cls.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_weights(model, tensors)
    assert model.block_size == config.block_size
    assert model.mask_token_id == config.mask_token_id
    assert tuple(model.target_layer_ids) == config.target_layer_ids
    model.save_pretrained(tmp_path / "theirs")
    again, loaded = read_zlab(tmp_path / "theirs")
    assert again == config
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def assert_same_weights(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    state = model.state_dict()
    assert len(state) == len(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(state.get(name, state.get(f"{name}.weight")), tensor)
