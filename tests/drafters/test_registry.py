"""Names, near misses, folders, outside packages."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft import registry
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.errors import ConfigError
from blockdraft.interop.zlab import write_zlab
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.fakes.models import tiny_target

TARGET = tiny_target()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tiny_drafter_config()
    path = tmp_path / "mine"
    write_zlab(path, config, random_tensors(config), {"target_name": TARGET.info.name})
    return path


def test_built_in_names() -> None:
    assert {"none", "ngram", "dflash", "dflash2"} <= set(registry.drafter_names())
    assert registry.drafter_class("dflash2") is DFlash2Drafter


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys; from blockdraft import registry; registry.drafter_names();"
        "sys.exit('blockdraft.drafters.dflash2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_drafter_bc49() -> None:
    """BC-49: 0 draft tokens is speculation off; a wrong name is still told."""
    assert registry.load_drafter("none", TARGET) is None
    assert registry.load_drafter("ngram", TARGET, num_draft_tokens=0) is None
    with pytest.raises(ConfigError, match="no drafter 'no-such'"):
        registry.load_drafter("no-such", TARGET, num_draft_tokens=0)


def test_ngram_and_its_options() -> None:
    drafter = registry.load_drafter("ngram", TARGET)
    assert isinstance(drafter, NgramDrafter)
    assert drafter.num_draft_tokens == 7
    drafter = registry.load_drafter("ngram", TARGET, num_draft_tokens=3)
    assert isinstance(drafter, NgramDrafter)
    assert drafter.num_draft_tokens == 3


def test_a_folder_is_loaded_and_bound(folder: Path) -> None:
    for path in (folder, str(folder)):
        drafter = registry.load_drafter(path, TARGET, num_draft_tokens=2)
        assert isinstance(drafter, DFlash2Drafter)
        assert drafter.num_draft_tokens == 2
        assert drafter.model.target is TARGET
        assert drafter.model.dtype == torch.float32
        weights = (folder / "model.safetensors").read_bytes()
        assert drafter.model.provenance == {
            "target_name": TARGET.info.name,
            "checkpoint_fingerprint": hashlib.sha256(weights).hexdigest(),
        }
        assert drafter.describe()["fingerprint"] == hashlib.sha256(weights).hexdigest()


def test_dtype_can_be_chosen(folder: Path) -> None:
    drafter = registry.load_drafter(folder, TARGET, dtype=torch.bfloat16)
    assert isinstance(drafter, DFlash2Drafter)
    assert drafter.model.dtype == torch.bfloat16


def test_shipped_checkpoints_are_found_by_target(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"no dflash2 drafter .* for {TARGET.info.name}"):
        registry.load_drafter("dflash2", TARGET)
    folder.rename(folder.parent / f"{TARGET.info.name}-dflash2")
    monkeypatch.setattr(registry, "_SHIPPED", folder.parent)
    assert isinstance(registry.load_drafter("dflash2", TARGET), DFlash2Drafter)


def test_a_lookup_can_be_put_before_any_drafter_with_a_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry.load_drafter(f"{folder}+ngram", TARGET, num_draft_tokens=3)
    assert isinstance(found, LookupFirst)
    assert isinstance(found.inner, DFlash2Drafter)
    assert (found.name, found.num_draft_tokens, found.lookup.num_draft_tokens) == (
        "dflash2+ngram", 3, 3,
    )  # fmt: skip
    assert registry.load_drafter(f"{folder}+ngram", TARGET, num_draft_tokens=0) is None


@pytest.mark.parametrize("name", ["none+ngram", "ngram+ngram", "+ngram", "dflash2+ngram+ngram"])
def test_a_lookup_before_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="put one drafter with a model before"):
        registry.load_drafter(name, TARGET)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dflsh2", "did you mean dflash2"), ("engram", "did you mean ngram"), ("/no/such", "ngram")],
)
def test_unknown_names_list_what_exists(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.load_drafter(name, TARGET)
    for part in (repr(name), "none", "dflash", hint):
        assert part in str(error.value)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_draft_tokens is -1"):
        registry.load_drafter("ngram", TARGET, num_draft_tokens=-1)


def test_outside_packages_add_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Outside(NgramDrafter):
        bound_to: Any = None

        def bind(self, target: Any) -> None:
            self.bound_to = target

    module = types.ModuleType("outside_package")
    module.Outside = Outside  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outside_package", module)
    entries = [
        EntryPoint("outside", "outside_package:Outside", registry.ENTRY_POINT_GROUP),
        EntryPoint("broken", "no_such_package:X", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    assert "outside" in registry.drafter_names()
    drafter = registry.load_drafter("outside", TARGET, num_draft_tokens=5)
    assert isinstance(drafter, Outside)
    assert drafter.num_draft_tokens == 5
    assert drafter.bound_to is TARGET
    with pytest.raises(ConfigError, match=r"'broken' .* fails to load"):
        registry.load_drafter("broken", TARGET)
