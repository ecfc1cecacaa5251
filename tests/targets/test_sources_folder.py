"""Model folders: what is read, and that every kind of damage is named with its file."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.targets.sources import SourceFiles, load_weights, resolve
from blockdraft.targets.sources import fingerprint as fingerprint_module
from tests.targets.tiny_models import save, state, tiny_model


def _resolve(path: Path) -> SourceFiles:
    return resolve(str(path), progress=lambda message: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_model(), tmp_path / "single")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = save(tiny_model(), tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def _change(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_a_folder_gives_config_and_weights(folder: Path) -> None:
    source = _resolve(folder)
    expected = state(tiny_model())
    assert set(source.weights) == set(expected)
    assert len(source.weights) == len(expected)
    for name, tensor in load_weights(source).items():
        assert torch.equal(tensor, expected[name])
    assert source.name == "single"
    assert source.source == f"folder:{folder.resolve()}"
    assert source.config["model_type"] == "llama"


def test_shards_give_the_same(sharded: Path) -> None:
    source = _resolve(sharded)
    loaded = load_weights(source)
    expected = state(tiny_model())
    assert set(loaded) == set(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert len(source.weight_paths) > 1


def test_tied_head_is_not_a_tensor_of_its_own(tmp_path: Path) -> None:
    """BC-47: what a tied file lacks is not made up."""
    tied = _resolve(save(tiny_model(tie_word_embeddings=True), tmp_path / "tied"))
    untied = _resolve(save(tiny_model(), tmp_path / "untied"))
    assert "lm_head.weight" not in tied.weights
    assert "lm_head.weight" in untied.weights
    with pytest.raises(CheckpointError, match=r"no tensor lm_head\.weight"):
        load_weights(tied, ["model.norm.weight", "lm_head.weight"])


def test_weights_are_converted_only_when_asked(folder: Path) -> None:
    source = _resolve(folder)
    name = "model.norm.weight"
    assert load_weights(source, [name])[name].dtype == torch.float32
    assert load_weights(source, [name], dtype=torch.bfloat16)[name].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (7, None, (7,)),
        (None, 8, (8,)),
        (7, [7, 9], (7, 9)),
        ([3, 5], 9, (3, 5, 9)),
        ([], [4], (4,)),
        (None, None, ()),
    ],
)
def test_end_ids_are_those_of_both_files(
    folder: Path, config: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    """BC-03."""
    _change(folder / "config.json", eos_token_id=config)
    _change(folder / "generation_config.json", eos_token_id=generation)
    assert _resolve(folder).end_ids == expected


def test_no_generation_config_is_fine(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    source = _resolve(folder)
    assert source.generation_config == {}
    assert source.end_ids == (2,)


@pytest.mark.parametrize("value", ["</s>", -1, [1, None], True, 2.0])
def test_end_ids_must_be_ids(folder: Path, value: Any) -> None:
    _change(folder / "generation_config.json", eos_token_id=value)
    with pytest.raises(CheckpointError, match="eos_token_id"):
        _resolve(folder)


def test_an_end_id_outside_the_vocabulary_is_an_error(folder: Path) -> None:
    _change(folder / "config.json", eos_token_id=160)
    with pytest.raises(CheckpointError, match="160 is outside the vocabulary"):
        _resolve(folder)


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_cut_file_is_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    _cut(path, keep if keep >= 0 else path.stat().st_size + keep)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        _resolve(folder)


def test_a_file_that_is_too_long_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match="its header says"):
        _resolve(folder)


def test_a_broken_header_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[8:12] = b"!!!!"
    path.write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match="damaged header"):
        _resolve(folder)


def test_a_tensor_that_does_not_fit_its_shape_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    assert raw.count(b'"shape":[64,96]') > 0
    path.write_bytes(raw.replace(b'"shape":[64,96]', b'"shape":[64,95]'))
    with pytest.raises(CheckpointError, match="damaged header"):
        _resolve(folder)


def test_a_cut_shard_is_named(sharded: Path) -> None:
    path = sorted(sharded.glob("model-*.safetensors"))[1]
    _cut(path, path.stat().st_size - 10)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        _resolve(sharded)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    path = sorted(sharded.glob("model-*.safetensors"))[0]
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is missing"):
        _resolve(sharded)


def test_an_index_that_names_a_missing_tensor(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = next(iter(index["weight_map"].values()))
    index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = shard
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.layers\.9\.mlp\.up_proj\.weight"):
        _resolve(sharded)


def test_an_index_that_names_the_wrong_shard(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shards = sorted(set(index["weight_map"].values()))
    name = next(n for n, shard in index["weight_map"].items() if shard == shards[0])
    index["weight_map"][name] = shards[1]
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=re.escape(name)):
        _resolve(sharded)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_named(sharded: Path, text: str) -> None:
    path = sharded / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        _resolve(sharded)


def test_an_index_may_not_point_elsewhere(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../single/model.safetensors"}}))
    with pytest.raises(CheckpointError, match="beside its index"):
        _resolve(sharded)


def test_tensors_no_index_speaks_of_are_not_dropped(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    assert "model.norm.weight" in _resolve(sharded).weights


def test_damage_under_an_open_source_is_named(folder: Path) -> None:
    source = _resolve(folder)
    path = folder / "model.safetensors"
    _cut(path, 100)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_weights(source)


@pytest.mark.parametrize(
    ("file", "words"),
    [("pytorch_model.bin", "save the model again as safetensors"), ("m.gguf", r"m\.gguf")],
)
def test_a_folder_without_safetensors_says_what_to_do(folder: Path, file: str, words: str) -> None:
    (folder / "model.safetensors").rename(folder / file)
    with pytest.raises(CheckpointError, match=words):
        _resolve(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\ud800"])
def test_a_broken_config_is_named(folder: Path, text: str) -> None:
    path = folder / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        _resolve(folder)


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        _resolve(tmp_path)


def test_quantised_safetensors_are_refused_by_name(folder: Path) -> None:
    tensors = state(tiny_model())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight is torch\.int8"):
        load_weights(_resolve(folder))


def test_fingerprint_of_one_file_is_its_sha256(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert _resolve(folder).fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_fingerprint_of_shards_covers_every_shard(sharded: Path) -> None:
    before = _resolve(sharded).fingerprint
    path = sorted(sharded.glob("model-*.safetensors"))[-1]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))
    assert _resolve(sharded).fingerprint != before


def test_fingerprint_is_remembered_until_the_file_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    real = fingerprint_module.hash_file
    monkeypatch.setattr(
        fingerprint_module, "hash_file", lambda path: hashed.append(path) or real(path)
    )
    first = _resolve(folder).fingerprint
    assert _resolve(folder).fingerprint == first
    assert len(hashed) == 1
    save(tiny_model(seed=1), folder)
    assert _resolve(folder).fingerprint != first
    assert len(hashed) == 2


@pytest.mark.parametrize("text", ["not json", "[]", '{"model.safetensors": 3}'])
def test_a_broken_memory_of_hashes_is_not_believed(folder: Path, text: str) -> None:
    expected = _resolve(folder).fingerprint
    (folder / fingerprint_module.MEMORY_NAME).write_text(text)
    assert _resolve(folder).fingerprint == expected


def test_a_folder_that_cannot_be_written_still_has_a_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **keys: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(fingerprint_module.tempfile, "mkstemp", refuse)
    assert len(_resolve(folder).fingerprint) == 64
