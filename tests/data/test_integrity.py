"""Every fault of recorded states is found, and named with its file and sample."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdraft.config import build_recipe
from blockdraft.data.answer_sources import EngineSource
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.data.integrity import IntegrityReport, check_features
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.data.regenerate import regenerate
from blockdraft.engine.llm import LLM
from blockdraft.errors import CheckpointError, ConfigError
from tests.data.conftest import silent

LAYERS = (0, 3, 6)
SHARD_SAMPLES = 8


@pytest.fixture(scope="session")
def sound_folder(tmp_path_factory: pytest.TempPathFactory, llm: LLM, target_folder: Path) -> Path:
    """Shards of 48 answers to prompts of a few letters each."""
    folder = tmp_path_factory.mktemp("sound")
    words = ["hello", "all", "he", "a hell", "lace", "cell", "heal", "each"]
    texts = [f"{a} {b}" for a in words for b in words[:6]]
    rows = [{"id": f"p/{i}", "turns": text} for i, text in enumerate(texts)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = build_recipe(
        {
            "target": str(target_folder),
            "out": str(folder / "out"),
            "data_dir": str(folder),
            "max_tokens": 24,
            "sources": [{"name": "p", "file": "p.jsonl", "variants": [{"temperature": 1.0}]}],
            "features": {
                "layer_ids": list(LAYERS),
                "shard_samples": SHARD_SAMPLES,
                "reserve_gib": 0,
            },
        },
        AnswersRecipe,
    )
    regenerate(recipe, log=silent, source=EngineSource(recipe, silent, llm))
    return folder / "out" / "shards"


@pytest.fixture
def folder(sound_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound_folder, tmp_path / "shards")


Change = Callable[[list[Tensor]], None]


def spoil(folder: Path, change: Change) -> None:
    """Change the states of the second shard's samples, keeping its lengths."""
    path = folder / "00001.safetensors"
    tensors = load_file(path)
    parts = list(tensors["features"].split(tensors["lens"].tolist()))
    change(parts)
    save_file({**tensors, "features": torch.cat(parts)}, path)


def sample_ids(folder: Path) -> list[str]:
    return [sample.id for sample in FeatureStore(folder).answers]


def faults(report: IntegrityReport) -> set[tuple[str, str | None]]:
    return {(Path(fault.file).name, fault.sample) for fault in report.faults}


def test_sound_states_have_no_fault(sound_folder: Path, llm: LLM) -> None:
    store = FeatureStore(sound_folder)
    report = check_features(store, llm.target, layer_ids=LAYERS, share=1.0, has_hashes=True)
    assert report.faults == ()
    report.require_sound()
    assert (report.num_shards, report.num_samples, report.num_recomputed) == (6, 48, 48)
    assert report.num_rows == sum(len(store.sample(i).features) for i in range(48))
    assert report.worst_difference < 0.02


def shift(parts: list[Tensor]) -> None:
    parts[2] = parts[2].roll(-1, 0)


def shift_late(parts: list[Tensor]) -> None:
    parts[2] = torch.cat([parts[2][:1], parts[2][2:], parts[2][-1:]])


def zero(parts: list[Tensor]) -> None:
    parts[2] = parts[2].clone()
    parts[2][5, 64:128] = 0


def not_finite(parts: list[Tensor]) -> None:
    parts[2] = parts[2].clone()
    parts[2][5, 70] = torch.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shift, "its first row is not the one its first token has elsewhere"),
        (shift_late, "its rows fit the tokens beside them better: shifted by one?"),
        (zero, r"row 5 of layer 3 is all zero \(1 such rows\)"),
        (not_finite, r"row 5 of layer 3 is not finite \(1 such rows\)"),
    ],
)
def test_spoiled_states_are_named_without_a_pass(
    folder: Path, change: Change, message: str
) -> None:
    spoil(folder, change)
    report = check_features(FeatureStore(folder))
    sample = sample_ids(folder)[SHARD_SAMPLES + 2]
    assert faults(report) == {("00001.safetensors", sample)}
    with pytest.raises(CheckpointError, match=f"1 faults .*00001.* sample {sample}: {message}"):
        report.require_sound()


def swap_equal_lens(parts: list[Tensor]) -> None:
    lens = [len(part) for part in parts]
    a, b = next(
        (i, j) for i in range(len(lens)) for j in range(i + 1, len(lens)) if lens[i] == lens[j]
    )
    parts[a], parts[b] = parts[b], parts[a]


def test_swapped_samples_are_named_without_a_pass(folder: Path) -> None:
    spoil(folder, swap_equal_lens)
    report = check_features(FeatureStore(folder))
    assert len(report.faults) == 2
    assert all("do not fit its tokens: swapped" in fault.what for fault in report.faults)


@pytest.mark.parametrize("change", [shift, shift_late, swap_equal_lens])
def test_misplaced_states_differ_from_those_computed_anew(
    folder: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    from blockdraft.data import integrity

    spoil(folder, change)
    monkeypatch.setattr(integrity, "place_faults", lambda *_: [])
    report = check_features(FeatureStore(folder), llm.target, share=1.0)
    assert len(report.faults) == (2 if change is swap_equal_lens else 1)
    assert all("from the states the target gives" in fault.what for fault in report.faults)
    assert report.worst_difference > 0.3


def test_states_of_another_target_or_layer_are_named(folder: Path, llm: LLM) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "fingerprint": "f" * 64}))
    report = check_features(FeatureStore(folder), llm.target, layer_ids=(0, 3, 5))
    assert [fault.file for fault in report.faults] == [str(folder / "index.json")] * 2
    with pytest.raises(CheckpointError, match=r"layers \[0, 3, 6\], not \[0, 3, 5\].*another targ"):
        report.require_sound()


def test_states_of_other_weights_under_the_same_name_are_caught(folder: Path, llm: LLM) -> None:
    """The fingerprint was forged, or the layers are not the ones the index says."""
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "layer_ids": [1, 3, 6]}))
    report = check_features(FeatureStore(folder), llm.target, share=1.0)
    assert len(report.faults) == 48


def test_damaged_and_missing_files_are_named(folder: Path) -> None:
    path = folder / "00001.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    (folder / "00002.safetensors").unlink()
    report = check_features(FeatureStore(folder))
    assert faults(report) == {("00001.safetensors", None), ("00002.safetensors", None)}
    assert report.faults[0].what.startswith("is missing or damaged")


def test_a_changed_file_is_caught_by_its_hash(folder: Path) -> None:
    spoil(folder, lambda parts: None)
    path = folder / "00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert check_features(FeatureStore(folder)).faults == ()
    report = check_features(FeatureStore(folder), has_hashes=True)
    assert faults(report) == {("00001.safetensors", None)}


def test_lengths_that_do_not_agree_are_named(folder: Path) -> None:
    store = FeatureStore(folder)
    answer = store.answers[SHARD_SAMPLES + 1]
    store.answers[SHARD_SAMPLES + 1] = dataclasses.replace(answer, token_ids=answer.token_ids[:-1])
    report = check_features(store)
    assert faults(report) == {("00001.safetensors", answer.id)}
    assert "there must be one row less than tokens" in report.faults[0].what


def test_an_index_that_disagrees_with_a_shard_is_named(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    lens = index["shards"][1]["lens"]
    lens[0], lens[1] = lens[0] + 1, lens[1] - 1
    (folder / "index.json").write_text(json.dumps(index))
    report = check_features(FeatureStore(folder))
    assert [fault.what for fault in report.faults] == ["lens differ from the index"]


def test_a_share_of_the_shards_is_enough_where_asked(sound_folder: Path) -> None:
    report = check_features(FeatureStore(sound_folder), scan_share=0.01)
    assert report.faults == ()


def test_an_empty_folder_is_a_fault(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "shards": []}))
    assert [fault.what for fault in check_features(FeatureStore(folder)).faults] == ["no samples"]


@pytest.mark.parametrize("text", [None, "{", "{}", "[]", '{"shards": 3}'])
def test_an_index_that_is_none_is_refused(folder: Path, text: str | None) -> None:
    path = folder / "index.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json (does not exist|is no index)"):
        FeatureStore(folder)


def test_states_made_online_are_those_of_the_store(sound_folder: Path, llm: LLM) -> None:
    store = FeatureStore(sound_folder)
    online = OnlineFeatures(store.answers, llm.target, LAYERS, max_pass_tokens=100)
    assert len(online) == len(store)
    order = [40, 3, 3, 17]
    for i, sample in zip(order, online.batch(order), strict=True):
        kept = store.sample(i)
        assert (sample.id, sample.prompt_len) == (kept.id, kept.prompt_len)
        assert torch.equal(sample.token_ids, kept.token_ids)
        assert sample.features.dtype == kept.features.dtype == torch.bfloat16
        torch.testing.assert_close(sample.features, kept.features, rtol=2e-2, atol=2e-2)
    assert online.sample(5).id == store.sample(5).id


def test_online_states_of_no_such_layer_are_refused(sound_folder: Path, llm: LLM) -> None:
    answers = FeatureStore(sound_folder).answers
    for wrong in ((), (8,), (-1,)):
        with pytest.raises(ConfigError, match="give some of 0 to 7"):
            OnlineFeatures(answers, llm.target, wrong)
