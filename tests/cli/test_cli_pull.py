"""`blockdraft pull`: what a target is, once its files have been checked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_a_folder_is_checked_and_described(cli: Cli, target_folder: Path) -> None:
    ran = cli("pull", target_folder)
    rows = {line[:14].strip(): line[15:] for line in ran.out.splitlines()}
    weights = target_folder / "model.safetensors"
    assert (ran.code, ran.err) == (0, "")
    assert rows == {
        "name": "tiny",
        "source": f"folder:{target_folder.resolve()}",
        "type": "llama (our decoder)",
        "layers": "8",
        "width": "64",
        "vocabulary": "272",
        "context": "640",
        "end ids": "265",
        "chat template": "yes",
        "fingerprint": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "files": str(weights),
    }


@pytest.mark.parametrize(("name", "code"), [("nope", 2), ("./nope", 2), ("nope.gguf", 2)])
def test_what_is_not_there_is_one_line(cli: Cli, name: str, code: int) -> None:
    ran = cli("pull", name)
    assert (ran.code, ran.out) == (code, "")
    assert "nope" in ran.error


def test_a_cache_that_cannot_be_used_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "file"))
    ran = cli("pull", "smollm2-135m")
    assert (ran.code, ran.out) == (2, "")
    assert "set BLOCKDRAFT_CACHE to a folder that can be written" in ran.error
