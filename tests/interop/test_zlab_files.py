"""Folders in the z-lab format: both spellings, every kind of damage, writes that are killed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.interop import zlab
from blockdraft.interop.zlab import read_provenance, read_zlab, write_zlab
from tests.drafters.tiny import random_tensors, tiny_drafter_config

CONFIG = tiny_drafter_config()
TENSORS = random_tensors(CONFIG)
NOTES = {"target_name": "tiny-0", "target_fingerprint": "abc"}
PREDECESSORS = "candidate_selector.predecessor_codebook"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "drafter"
    write_zlab(path, CONFIG, TENSORS, NOTES)
    return path


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a folder behind the writer's back."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def reconfigure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def assert_reads_equal(folder: Path) -> None:
    config, tensors = read_zlab(folder)
    assert config == CONFIG
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_round_trip_with_provenance(folder: Path) -> None:
    assert_reads_equal(folder)
    assert read_provenance(folder) == NOTES
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_names_on_disk_are_those_of_the_published_files(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert file.metadata()["format"] == "pt"
    assert PREDECESSORS in names
    assert f"{PREDECESSORS}.weight" not in names
    assert "layers.0.attention_conv.kernel_projection.weight" in names
    assert not any("embed" in name or "head" in name for name in names)


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_both_spellings_bc44(folder: Path, prefix: str, suffix: str) -> None:
    """BC-44: codebooks with and without `.weight`, and names with a `model.` prefix."""

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            ending = suffix if name.endswith("_codebook") else ""
            tensors[f"{prefix}{name}{ending}"] = tensors.pop(name)

    rewrite(folder, rename)
    assert_reads_equal(folder)


def test_both_spellings_at_once_are_refused(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({f"{PREDECESSORS}.weight": t[PREDECESSORS].clone()}))
    with pytest.raises(CheckpointError, match=f"{PREDECESSORS} under two names"):
        read_zlab(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: [t.pop(n) for n in list(t) if "0.mlp_conv" in n],
            "missing layers.0.mlp_conv.base_kernel; missing layers.0.mlp_conv.kernel_projection",
        ),
        (lambda t: t.update({"lm_head.weight": torch.ones(2)}), "unexpected lm_head.weight"),
        (
            lambda t: t.update({"norm.weight": torch.ones(63)}),
            r"norm.weight is \(63,\), not \(64,\)",
        ),
        (
            lambda t: t.update({"norm.weight": torch.ones(64, dtype=torch.int32)}),
            "norm.weight holds torch.int32",
        ),
        (
            lambda t: t.update(
                {"layers.1.mlp_conv.base_kernel": torch.full((2, 2, 64), torch.nan)}
            ),
            "layers.1.mlp_conv.base_kernel holds non-finite numbers",
        ),
    ],
)
def test_wrong_tensors_are_listed_bc44(
    folder: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    """BC-44: missing, unexpected, misshapen; the folder is named too."""
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message) as error:
        read_zlab(folder)
    assert str(folder) in str(error.value)


def test_many_faults_are_counted(folder: Path) -> None:
    rewrite(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith("layers.")])
    with pytest.raises(CheckpointError, match=r"\(and \d+ more\)"):
        read_zlab(folder)


def test_own_reduced_vocabulary_is_refused_bc47(folder: Path) -> None:
    """BC-47: a head of its own is never dropped or made up: the drafter is refused."""
    rewrite(
        folder, lambda t: t.update({"lm_head.weight": torch.ones(40, 64), "d2t": torch.ones(40)})
    )
    with pytest.raises(CheckpointError, match=r"unexpected d2t; unexpected lm_head\.weight"):
        read_zlab(folder)


@pytest.mark.parametrize("kept", [4, 7, 100, -1])
def test_truncated_weights_are_named(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    for read in (read_zlab, read_provenance):
        with pytest.raises(CheckpointError, match=f"{file} is damaged"):
            read(folder)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors, only model-00001-of-00002"):
        read_zlab(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        read_zlab(folder)
    with pytest.raises(ConfigError, match=r"nowhere is not a folder"):
        read_zlab(folder / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_damaged_config_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config.json (cannot be read|holds no table)"):
        read_zlab(folder)


def test_a_trained_mask_vector_is_refused(folder: Path) -> None:
    (folder / "mask_embedding.pt").touch()
    with pytest.raises(CheckpointError, match=r"mask_embedding\.pt"):
        read_zlab(folder)


@pytest.mark.parametrize(
    "changes", [{"pad_token_id": 155}, {"eos_token_id": 155}, {"eos_token_id": [3, 155]}]
)
def test_mask_that_is_pad_or_eos_warns_bc39(folder: Path, changes: dict[str, object]) -> None:
    """BC-39: an alias is a warning."""
    reconfigure(folder, **changes)
    with pytest.warns(UserWarning, match=f"mask_token_id 155 is also {next(iter(changes))}"):
        read_zlab(folder)


def test_other_ids_do_not_warn(folder: Path) -> None:
    reconfigure(folder, pad_token_id=None, eos_token_id=[1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_zlab(folder)


def test_writing_over_a_folder_leaves_its_other_files(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    other = random_tensors(CONFIG, seed=1)
    write_zlab(folder, CONFIG, other)
    assert torch.equal(read_zlab(folder)[1]["fc.weight"], other["fc.weight"])
    assert read_provenance(folder) == {}
    assert (folder / "README.md").read_text() == "mine"


@pytest.mark.parametrize("step", [0, 1])
def test_a_killed_write_never_loads_half(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Killed before the weights or before the config: the folder says that it is incomplete."""
    replace, calls = zlab._replace, []

    def killed(file: Path, write: Callable[[Path], object]) -> None:
        calls.append(file)
        if len(calls) > step:
            raise KeyboardInterrupt
        replace(file, write)

    monkeypatch.setattr(zlab, "_replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_zlab(folder, CONFIG, random_tensors(CONFIG, seed=1))
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        read_zlab(folder)
    monkeypatch.undo()
    write_zlab(folder, CONFIG, TENSORS)
    assert_reads_equal(folder)


def test_a_failed_write_leaves_no_scraps(tmp_path: Path) -> None:
    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        zlab._replace(tmp_path / "model.safetensors", fail)
    assert list(tmp_path.iterdir()) == []


def test_wrong_tensors_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing norm\.weight"):
        write_zlab(tmp_path / "x", CONFIG, {k: v for k, v in TENSORS.items() if k != "norm.weight"})
    assert not (tmp_path / "x").exists()


def test_views_and_other_dtypes_are_written_whole(tmp_path: Path) -> None:
    """Weights that are slices of one buffer, transposed or of lower precision."""
    tensors = {name: tensor.bfloat16() for name, tensor in TENSORS.items()}
    both = torch.stack([tensors["norm.weight"], tensors["hidden_norm.weight"]])
    tensors["norm.weight"], tensors["hidden_norm.weight"] = both
    tensors["fc.weight"] = tensors["fc.weight"].T.contiguous().T
    write_zlab(tmp_path, CONFIG, tensors)
    loaded = read_zlab(tmp_path)[1]
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
