"""`init-drafter --draft-vocab-ids`: what is written and said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockdraft.interop.zlab import read_zlab
from tests.cli.conftest import Cli

IDS = list(range(3, 203, 5))


@pytest.fixture
def ids_file(tmp_path: Path) -> Path:
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    return tmp_path / "ids.json"


def test_the_drafter_drafts_from_these_tokens(
    cli: Cli, generate: Cli, target_folder: Path, tmp_path: Path, ids_file: Path
) -> None:
    folder = tmp_path / "new"
    ran = cli(
        "init-drafter", target_folder, "-o", folder, "--draft-vocab-ids", ids_file, "--copy-layers"
    )
    assert ran.code == 0, ran.err
    assert "drafts from    40 of 272 tokens" in ran.out.splitlines()
    config, tensors = read_zlab(folder)
    assert config.draft_vocab_size == 40
    assert tensors["draft_vocab_ids"].dtype == torch.int64
    assert tensors["draft_vocab_ids"].tolist() == IDS
    inspected = cli("inspect", folder)
    assert "vocabulary     272, of which 40 can be drafted" in inspected.out.splitlines()
    options = ("Hello", "--max-tokens", 12)
    drafted = generate(*options, "--drafter", folder)
    assert (drafted.code, drafted.out) == (0, generate(*options, "--no-drafter").out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 5 4", "draft_vocab_ids holds 4 after 5; list every token once, in ascending order"),
        ("1 5 272", "draft_vocab_ids holds 272; token ids are 0 to 271"),
        ("1 5 271", "draft_vocab_ids holds the mask token 271, which no text holds; leave it out"),
        ("", "draft_vocab_ids is empty; list the tokens to draft from"),
        ("1 5 9", "dflash2 config: selector_top_k is 16; it must be 1 to 3"),
    ],
)
def test_wrong_lists_are_one_line(
    cli: Cli, target_folder: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "ids").write_text(text)
    ran = cli(
        "init-drafter", target_folder, "-o", tmp_path / "new", "--draft-vocab-ids", tmp_path / "ids"
    )
    assert (ran.code, ran.out) == (2, "")
    assert ran.error == f"error: {message}"
    assert not (tmp_path / "new").exists()
