"""A draft vocabulary in a folder of the z-lab format, and made whole for other readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.tensors import check_tensors
from blockdraft.errors import CheckpointError
from blockdraft.interop.zlab import read_zlab, write_zlab
from blockdraft.interop.zlab_expand import expand_vocab
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.drafters.vocab import IDS, subset_config

METHODS = pytest.mark.parametrize("method", ["dflash", "dflash2"])
LEFT, RIGHT = (f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor"))


@METHODS
def test_both_ways(tmp_path: Path, method: str) -> None:
    config = subset_config(method)
    tensors = random_tensors(config)
    write_zlab(tmp_path, config, tensors)
    again, loaded = read_zlab(tmp_path)
    assert again == config
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert loaded[DRAFT_VOCAB_IDS].dtype == torch.int64


@METHODS
def test_whole_drafters_say_nothing_of_it(tmp_path: Path, method: str) -> None:
    config = tiny_drafter_config(method)
    write_zlab(tmp_path, config, random_tensors(config))
    assert "draft_vocab" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (50, r"draft_vocab_ids is \(51,\), not \(50,\)"),
        (None, "unexpected draft_vocab_ids"),
        ("51", "draft_vocab_size is '51', not a number"),
        (160, "draft_vocab_size is 160; it must be 1 to 159"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, value: Any, message: str) -> None:
    config = subset_config("dflash")
    write_zlab(tmp_path, config, random_tensors(config))
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["dflash_config"]["draft_vocab_size"] = value
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=message) as error:
        read_zlab(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_expanded_codebooks() -> None:
    config = subset_config("dflash2")
    tensors = random_tensors(config)
    whole_config, whole = expand_vocab(config, tensors)
    check_tensors(whole_config, whole)
    assert whole_config == tiny_drafter_config("dflash2")
    outside = torch.tensor([i for i in range(160) if i not in IDS.tolist()])
    assert torch.equal(whole[LEFT][IDS], tensors[LEFT][:-1])
    assert torch.equal(whole[LEFT][outside], tensors[LEFT][-1].expand(len(outside), -1))
    assert torch.equal(whole[RIGHT][IDS], tensors[RIGHT])
    assert not bool(whole[RIGHT][outside].any())
    others = tensors.keys() - {LEFT, RIGHT, DRAFT_VOCAB_IDS}
    assert all(whole[name] is tensors[name] for name in others)


@METHODS
def test_a_larger_subset(method: str) -> None:
    config = subset_config(method)
    tensors = random_tensors(config)
    more = sorted({*IDS.tolist(), 0, 77, 159})
    grown_config, grown = expand_vocab(config, tensors, more)
    check_tensors(grown_config, grown)
    assert grown[DRAFT_VOCAB_IDS].tolist() == more
    whole, expected = (
        expand_vocab(*pair)[1] for pair in ((grown_config, grown), (config, tensors))
    )
    assert whole.keys() == expected.keys()
    assert all(torch.equal(whole[name], expected[name]) for name in whole)
    with pytest.raises(ValueError, match="must hold the present one"):
        expand_vocab(config, tensors, more[:-4])


@METHODS
def test_whole_drafters_come_back_as_they_are(method: str) -> None:
    config = tiny_drafter_config(method)
    tensors = random_tensors(config)
    again, same = expand_vocab(config, tensors)
    assert again == config
    assert same.keys() == tensors.keys()
    assert all(same[name] is tensors[name] for name in tensors)


def test_wrong_tensors_are_not_expanded() -> None:
    config = subset_config("dflash2")
    with pytest.raises(CheckpointError, match="missing draft_vocab_ids"):
        expand_vocab(config, random_tensors(tiny_drafter_config("dflash2")))
