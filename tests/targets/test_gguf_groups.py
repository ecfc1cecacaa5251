"""Quantised matrices of a GGUF file as they are: the same numbers as dequantising gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from numpy.typing import NDArray

from blockdraft import LLM, SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.kernels import native
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.targets import native as native_targets
from blockdraft.targets.sources import SourceFiles, load_grouped_weights, load_weights, resolve
from blockdraft.targets.sources.gguf_groups import read_grouped
from blockdraft.targets.sources.gguf_header import TensorPlace
from blockdraft.targets.sources.gguf_quants import read_tensor
from tests.fakes.oracle import ids_of, random_prompts
from tests.targets.gguf_writing import write_gguf
from tests.targets.tiny_models import state, tiny_model

QUANTS = (Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1, Quant.Q8_0)
PARAMS = SamplingParams(max_tokens=16, ignore_eos=True)
needs_native = pytest.mark.skipif(
    not native.available(), reason=f"native kernels: {native.why_unavailable()}"
)


def random_blocks(quant: Quant, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Any bytes at all, but for scales and offsets, which are finite halves."""
    rng = np.random.default_rng(seed)
    size, num_bytes = gguf.GGML_QUANT_SIZES[quant]
    raw = rng.integers(0, 256, (rows, columns // size, num_bytes), dtype=np.uint8)
    halves = 2 if quant in (Quant.Q4_1, Quant.Q5_1) else 1
    scales = rng.normal(0, 0.05, (rows, columns // size, halves)).astype(np.float16)
    raw[..., : 2 * halves] = scales.view(np.uint8).reshape(rows, columns // size, -1)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("quant", QUANTS)
def test_every_type_gives_the_numbers_of_the_gguf_package(tmp_path: Path, quant: Quant) -> None:
    raw = random_blocks(quant, 50, 96, seed=1)
    path = tmp_path / "raw"
    path.write_bytes(raw.tobytes())
    place = TensorPlace((50, 96), quant, 0, raw.size)
    weight = read_grouped(path, place)
    assert weight is not None
    assert weight.bits == (4 if quant in (Quant.Q4_0, Quant.Q4_1) else 8)
    expected = read_tensor(path, "raw", place).bfloat16()
    assert torch.equal(weight.dequantise(), expected)


@pytest.mark.parametrize(("quant", "scale"), [(Quant.Q8_0, 600.0), (Quant.Q4_1, np.nan)])
def test_what_halves_cannot_hold_is_left_to_be_dequantised(
    tmp_path: Path, quant: Quant, scale: float
) -> None:
    """128 times the scale of Q8_0 must be a half; a scale must be a number."""
    raw = random_blocks(quant, 2, 32, seed=2)
    raw[0, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    path = tmp_path / "raw"
    path.write_bytes(raw.tobytes())
    assert read_grouped(path, TensorPlace((2, 32), quant, 0, raw.size)) is None


def written(path: Path, **quants: Quant) -> SourceFiles:
    """A tiny Llama file: matrices of one type, but for those named by a part of their names."""
    model = tiny_model("Llama", vocab_size=300, tie_word_embeddings=True)
    tensors = state(model)
    types = {name: Quant.Q4_1 for name, tensor in tensors.items() if tensor.ndim == 2}
    for part, quant in quants.items():
        types |= {name: quant for name in types if part in name}
    write_gguf(path / "tiny.gguf", "llama", tensors, model.config, quants=types)
    return resolve(str(path / "tiny.gguf"), progress=lambda message: None)


def test_rows_are_reordered_as_those_of_the_dequantised_tensors(tmp_path: Path) -> None:
    source = written(tmp_path, v_proj=Quant.Q8_0, o_proj=Quant.F16, embed=Quant.Q8_0)
    loaded = load_grouped_weights(source, dtype=torch.bfloat16)
    plain = load_weights(source, dtype=torch.bfloat16)
    assert loaded.keys() == plain.keys()
    for name, weight in loaded.items():
        is_grouped = isinstance(weight, GroupedWeight)
        assert is_grouped == (plain[name].ndim == 2 and "o_proj" not in name), name
        found = weight.dequantise() if isinstance(weight, GroupedWeight) else weight
        assert torch.equal(found, plain[name]), name


@needs_native
@pytest.mark.parametrize("quants", [{}, {"v_proj": Quant.Q8_0}, {"k_proj": Quant.F16}])
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "amx"])
def test_texts_and_logits_are_those_of_expanded_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quants: dict[str, Quant], isa: str
) -> None:
    """With drafts too, and where some of the matrices that are stacked are not grouped."""
    if isa not in native.usable_isas():
        pytest.skip(f"this machine does not run {isa}")
    monkeypatch.setenv("BLOCKDRAFT_NATIVE_ISA", isa)
    monkeypatch.setattr(native_targets, "expands_quickly", lambda: True)
    written(tmp_path, **quants)
    path = str(tmp_path / "tiny.gguf")
    own, whole = (
        LLM(path, "ngram", dtype="bfloat16", weights=weights) for weights in (None, "bfloat16")
    )
    assert whole.loaded.weights_in_memory == "bfloat16"
    formats = "bfloat16 and group4" if "k_proj" in quants else "group4"
    formats = "group4 and group8" if "v_proj" in quants else formats
    assert own.loaded.weights_in_memory == formats
    prompts = random_prompts([6, 40, 3], vocab_size=300)
    assert ids_of(own.generate(prompts, PARAMS)) == ids_of(whole.generate(prompts, PARAMS))
    ids = torch.arange(20)
    assert torch.equal(own.target.head_rows(ids)[0], whole.target.head_rows(ids)[0])


@needs_native
def test_both_are_one_target(tmp_path: Path) -> None:
    """The numbers are the same, so is the name; only the bytes in memory differ."""
    written(tmp_path)
    path = str(tmp_path / "tiny.gguf")
    own, whole = (
        LLM(path, "none", dtype="bfloat16", weights=weights).describe()
        for weights in (None, "bfloat16")
    )
    different = {key for key in own if own[key] != whole[key]}
    assert different <= {"weights_in_memory"}
    assert own["weights"] == "bfloat16"


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"dtype": None, "weights": "int4"}])
def test_expanding_is_for_bfloat16(tmp_path: Path, settings: dict[str, Any]) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match=r"weights '(bfloat16|int4)' are"):
        LLM(str(tmp_path / "tiny.gguf"), "none", **{"weights": "bfloat16", **settings})
