"""`init-drafter` and `inspect`: what is written, what is said of it, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockdraft.interop.zlab import read_zlab
from tests.cli.conftest import Cli, Ran


def _rows(ran: Ran) -> dict[str, str]:
    assert ran.code == 0, ran.err
    return {line[:14].strip(): line[15:] for line in ran.out.splitlines()}


def test_a_new_drafter_is_described_and_loads(
    cli: Cli, target_folder: Path, tmp_path: Path
) -> None:
    ran = cli("init-drafter", target_folder, "-o", tmp_path / "new", "--selector-rank", 8)
    rows = _rows(ran)
    config, tensors = read_zlab(tmp_path / "new")
    assert rows["folder"] == str(tmp_path / "new")
    assert (rows["method"], rows["target"]) == ("dflash2", "tiny")
    assert rows["parameters"] == f"{sum(t.numel() for t in tensors.values()) / 1e6:.1f} M"
    assert rows["taps"] == str(list(config.target_layer_ids)) == "[1, 2, 3, 4, 5]"
    assert rows["mask token"] == "271 (padding row)"
    assert (config.block_size, config.num_layers, config.windows) == (8, 3, (1024,) * 3)


def test_every_option_reaches_the_drafter(cli: Cli, target_folder: Path, tmp_path: Path) -> None:
    options = [
        "--method",
        "dflash",
        "--layers",
        "2",
        "--block-size",
        "5",
        "--num-taps",
        "2",
        "--window",
        "0",
    ]
    options += ["--mask-token-id", "7", "--copy-layers", "--seed", "3"]
    ran = cli("init-drafter", target_folder, "-o", tmp_path / "new", *options)
    config, tensors = read_zlab(tmp_path / "new")
    assert _rows(ran)["method"] == config.method == "dflash"
    assert (config.num_layers, config.block_size) == (2, 5)
    assert (config.target_layer_ids, config.windows) == ((1, 5), (None, None))
    assert config.mask_token_id == 7
    target = load_file(target_folder / "model.safetensors")
    name = "mlp.up_proj.weight"
    assert torch.equal(tensors[f"layers.0.{name}"], target[f"model.layers.6.{name}"])
    cli("init-drafter", target_folder, "-o", tmp_path / "other", *options[:-1], 4)
    other = read_zlab(tmp_path / "other")[1]
    assert not torch.equal(tensors["fc.weight"], other["fc.weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "eagle"), "method 'eagle' does not exist; use dflash or dflash2"),
        (("--block-size", 1), "dflash2 config: block_size is 1; it must be 2 to 257"),
        (("--num-taps", 9), "cannot spread 9 taps over 8 target layers; ask for fewer"),
        (("--mask-token-id", 9999), "dflash2 config: mask_token_id is 9999; it must be a row of"),
        (("--window", -1), "dflash2 config: windows are (-1, -1, -1); each must be 1 or more"),
        (
            ("--copy-layers", "--layers", 9),
            "cannot copy 9 layers from a target of 8",
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_does_not_go_together_is_said(
    cli: Cli, target_folder: Path, tmp_path: Path, options: tuple[Any, ...], message: str
) -> None:
    ran = cli("init-drafter", target_folder, "-o", tmp_path / "new", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error.startswith(f"error: {message}")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_exists_is_never_written_to(
    cli: Cli, target_folder: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    ran = cli("init-drafter", target_folder, "-o", taken)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error == f"error: {taken} exists already; choose another folder or remove it"
    assert not list(taken.iterdir())


def test_a_folder_that_cannot_be_made_is_one_line(
    cli: Cli, target_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ran = cli("init-drafter", target_folder, "-o", tmp_path / "file" / "new")
    parent = tmp_path / "file"
    assert ran.code == 1
    assert ran.error == (
        f"error: {parent}/new cannot be written: {parent} cannot be made a folder (File exists)"
    )


def test_inspect_says_what_a_drafter_is(cli: Cli, drafter_folder: Path) -> None:
    rows = _rows(cli("inspect", drafter_folder))
    assert rows["method"] == "dflash2"
    assert rows["block"] == "8 rows: the anchor and 7 drafts"
    assert rows["taps"] == "target layers [1, 2, 3, 4, 5] of 8"
    assert rows["windows"] == "1024, 1024, 1024"
    assert rows["block rows"] == "see each other"
    assert rows["made for"] == "tiny"
    assert len(rows["target hash"]) == 64
    assert rows["trained steps"] == "0"
    assert rows["selector"] == "top 16, rank 8"


@pytest.mark.parametrize(
    ("name", "method"),
    [("dflash2", "dflash2"), ("dflash", "dflash"), ("auto", "dflash2"), ("dflash+ngram", "dflash")],
)
def test_inspect_takes_the_names_of_what_is_shipped(cli: Cli, name: str, method: str) -> None:
    rows = _rows(cli("inspect", name))
    folder = Path(rows["folder"])
    assert folder.is_dir()
    assert (folder.name, rows["method"]) == (f"smollm2-135m-{method}", method)


def test_inspect_names_every_tensor_that_is_wrong(cli: Cli, drafter_folder: Path) -> None:
    file = drafter_folder / "model.safetensors"
    tensors = load_file(file)
    tensors["strange.weight"] = tensors.pop("norm.weight")
    tensors["fc.weight"] = tensors["fc.weight"][:-1].contiguous()
    save_file(tensors, file)
    ran = cli("inspect", drafter_folder)
    assert (ran.code, ran.out) == (1, "")
    for word in ("missing norm.weight", "unexpected strange.weight", "fc.weight is (63, 320)"):
        assert word in ran.error
    assert str(drafter_folder) in ran.error


def test_inspect_refuses_what_is_no_drafter(cli: Cli, target_folder: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", target_folder / "config.json"):
        ran = cli("inspect", path)
        assert ran.code == 2
        assert ran.error.startswith(f"error: no drafter '{path}': not a name (dflash, ")
        assert "and not a folder" in ran.error
    ran = cli("inspect", "ngram")
    assert ran.code == 2
    assert ran.error == "error: 'ngram' is no trained drafter; give a checkpoint's folder"
    ran = cli("inspect", "dflash2", "--target", "another")
    assert ran.code == 2
    assert ran.error.startswith("error: no dflash2 drafter comes with the package for another; ")
    for folder, words in ((tmp_path, "holds no config.json"), (target_folder, "LlamaForCausalLM")):
        ran = cli("inspect", folder)
        assert (ran.code, ran.out) == (1, "")
        assert words in ran.error
