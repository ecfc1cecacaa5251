"""GGUF files: the same model as the transformers one it was written from, or a named error."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from transformers import AutoModelForCausalLM

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.layers.rope import inverse_frequencies
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.sources import SourceFiles, load_weights, resolve
from blockdraft.targets.sources.gguf_header import read_header
from tests.targets.gguf_writing import gguf_name, interleave, tokenizer_metadata, write_gguf
from tests.targets.tiny_models import state, tiny_model

_VOCAB = {"vocab_size": 300}


def _resolve(path: Path) -> SourceFiles:
    return resolve(str(path), progress=lambda message: None)


def _written(path: Path, name: str = "Llama", arch: str = "llama", **keys: Any) -> Path:
    model_keys = {k: keys.pop(k) for k in list(keys) if k.islower() and k in _MODEL_KEYS}
    model = tiny_model(name, **_VOCAB, **model_keys)
    return write_gguf(path / "tiny.gguf", arch, state(model), model.config, **keys)


_MODEL_KEYS = {"tie_word_embeddings", "attention_bias", "mlp_bias", "rope_parameters", "head_dim"}


@pytest.mark.parametrize(
    ("name", "arch", "keys"),
    [
        ("Llama", "llama", {}),
        ("Llama", "llama", {"tie_word_embeddings": True}),
        ("Llama", "llama", {"attention_bias": True, "mlp_bias": True}),
        ("Llama", "llama", {"head_dim": 32}),
        ("Qwen2", "qwen2", {"head_dim": 16}),
        ("Qwen3", "qwen3", {"tie_word_embeddings": True}),
        ("Qwen3", "qwen3", {"attention_bias": True}),
    ],
)
def test_tensors_and_logits_are_those_of_the_model(
    tmp_path: Path, name: str, arch: str, keys: dict[str, Any]
) -> None:
    """BC-47 too: a tied head has no tensor of its own, an untied one keeps its own."""
    path = _written(tmp_path, name, arch, **keys)
    source = _resolve(path)
    model = tiny_model(name, **_VOCAB, **keys)
    expected, loaded = state(model), load_weights(source)
    assert set(loaded) == set(expected)
    assert all(torch.equal(loaded[n], expected[n]) for n in expected)
    assert source.config["tie_word_embeddings"] is keys.get("tie_word_embeddings", False)
    config = type(model.config)(**source.config)
    rebuilt = AutoModelForCausalLM.from_config(config).eval()
    rebuilt.load_state_dict(loaded, strict=False)
    ids = torch.arange(10)[None]
    torch.testing.assert_close(rebuilt(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("name", "arch"), [("Llama", "llama"), ("Qwen2", "qwen2"), ("Qwen3", "qwen3")]
)
def test_config_is_that_of_the_model(tmp_path: Path, name: str, arch: str) -> None:
    path = _written(tmp_path, name, arch, rope_parameters={"rope_theta": 5e4})
    found = DecoderConfig.from_dict(_resolve(path).config)
    model = tiny_model(name, **_VOCAB, rope_parameters={"rope_theta": 5e4})
    assert found == DecoderConfig.from_dict(model.config.to_dict())


def test_the_permutation_is_undone_only_for_llama(tmp_path: Path) -> None:
    """The order matters: a file read as if it were the other kind gives other tensors."""
    model = tiny_model(**_VOCAB)
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = interleave(model.state_dict()[name].numpy(), 4)
    assert not np.array_equal(stored, model.state_dict()[name].numpy())
    qwen = tiny_model("Qwen2", **_VOCAB)
    path = _written(tmp_path, "Qwen2", "qwen2")
    assert torch.equal(_resolve(path).weights[name], qwen.state_dict()[name])


@pytest.mark.parametrize("quant", [Quant.Q8_0, Quant.Q4_1, Quant.Q4_0, Quant.Q5_0, Quant.Q5_1])
def test_quantised_tensors_are_dequantised_to_float32(tmp_path: Path, quant: Quant) -> None:
    model = tiny_model(**_VOCAB)
    names = {n: quant for n, t in state(model).items() if t.ndim == 2}
    source = _resolve(_written(tmp_path, quants=names))
    for name, tensor in state(model).items():
        raw = gguf.quantize(tensor.numpy(), quant) if name in names else tensor.numpy()
        expected = gguf.dequantize(raw, quant) if name in names else raw
        assert source.weights[name].dtype == torch.float32
        assert np.array_equal(source.weights[name].numpy(), expected), name


@pytest.mark.parametrize(
    ("quant", "dtype"), [(Quant.F16, torch.float16), (Quant.BF16, torch.bfloat16)]
)
def test_float_types_of_the_file_are_kept(tmp_path: Path, quant: Quant, dtype: torch.dtype) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    tensor = _resolve(_written(tmp_path, quants={name: quant})).weights[name]
    assert torch.equal(tensor, state(tiny_model(**_VOCAB))[name].to(dtype))


def test_a_type_that_cannot_be_dequantised_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    assert struct.unpack_from("<I", raw, at)[0] == Quant.F32
    struct.pack_into("<I", raw, at, Quant.I32)
    path.write_bytes(bytes(raw))
    with pytest.raises(UnsupportedError, match=r"output_norm\.weight is I32"):
        load_weights(_resolve(path))


def test_header_agrees_with_the_reader_of_the_gguf_package(tmp_path: Path) -> None:
    names = {"model.embed_tokens.weight": Quant.Q8_0}
    path = _written(tmp_path, quants=names, settings={"rope.scaling.finetuned": True})
    header, reader = read_header(path), gguf.GGUFReader(path)
    fields = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("GGUF.")}
    assert dict(header.metadata) == fields
    for tensor in reader.tensors:
        place = header.tensors[tensor.name]
        assert place.shape == tuple(reversed(tensor.shape.tolist()))
        assert (place.offset, place.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert place.quant == tensor.tensor_type
    assert len(header.tensors) == len(reader.tensors)


def test_llama3_scaling_is_found_from_its_factors(tmp_path: Path) -> None:
    """GGUF files hold the divisors that the parameters lead to, not the parameters."""
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model(**_VOCAB, rope_parameters=scaling)
    rope = DecoderConfig.from_dict(model.config.to_dict()).rope
    divisors = 5e5 ** -(np.arange(0, 16, 2) / 16) / inverse_frequencies(rope, 16).numpy()
    extra = {"rope_freqs.weight": divisors.astype(np.float32)}
    path = write_gguf(tmp_path / "a.gguf", "llama", state(model), model.config, extra=extra)
    source = _resolve(path)
    assert DecoderConfig.from_dict(source.config).rope == rope
    assert "rope_freqs.weight" not in source.weights
    extra = {"rope_freqs.weight": np.linspace(1, 32, 8, dtype=np.float32)}
    path = write_gguf(tmp_path / "b.gguf", "llama", state(model), model.config, extra=extra)
    with pytest.raises(UnsupportedError, match="not the scaling of Llama 3"):
        _resolve(path)


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    settings = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    rope = _resolve(_written(tmp_path, settings=settings)).config["rope_parameters"]
    assert rope == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    settings = {**settings, "rope.scaling.type": "yarn"}
    settings["rope.scaling.original_context_length"] = 32
    rope = _resolve(_written(tmp_path, settings=settings)).config["rope_parameters"]
    assert rope["rope_type"] == "yarn"
    assert rope["original_max_position_embeddings"] == 32


@pytest.mark.parametrize(
    ("arch", "settings", "words"),
    [
        ("gemma2", {}, "architecture 'gemma2'"),
        ("llama", {"expert_count": 8}, "expert_count"),
        ("llama", {"attention.sliding_window": 64}, "sliding_window"),
        ("llama", {"logit_scale": 0.5}, "logit_scale"),
        ("llama", {"rope.dimension_count": 8}, "dimension_count is 8"),
        ("llama", {"attention.value_length": 8}, "value_length is 8"),
        ("llama", {"rope.scaling.type": "longrope"}, "longrope"),
        ("llama", {"rope.scaling.attn_factor": 2.0}, "attn_factor"),
    ],
)
def test_settings_that_are_not_implemented_are_refused(
    tmp_path: Path, arch: str, settings: dict[str, Any], words: str
) -> None:
    model = tiny_model(**_VOCAB)
    path = write_gguf(tmp_path / "t.gguf", arch, state(model), model.config, settings=settings)
    with pytest.raises(UnsupportedError, match=words):
        _resolve(path)


def test_no_experts_may_be_said_with_a_zero(tmp_path: Path) -> None:
    assert _resolve(_written(tmp_path, settings={"expert_count": 0})).config["vocab_size"] == 300


def test_a_tensor_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(UnsupportedError, match="ffn_gate_exps"):
        _resolve(_written(tmp_path, extra=extra))


def test_biases_in_some_products_only_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    with pytest.raises(UnsupportedError, match="biases only in attn_q"):
        _resolve(_written(tmp_path, extra=extra))


@pytest.mark.parametrize("keep", [0, 3, 4, 12, 40, 3000, -1])
def test_a_cut_file_is_named(tmp_path: Path, keep: int) -> None:
    path = _written(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[:keep])
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        _resolve(path)


def _damage_found(path: Path) -> str | None:
    """The message of a user error; any other exception escapes."""
    try:
        read_header(path)
    except (CheckpointError, UnsupportedError) as error:
        return str(error)
    return None


def test_damage_in_the_header_never_ends_in_another_exception(tmp_path: Path) -> None:
    raw = _written(tmp_path, tokenizer=tokenizer_metadata(size=280)).read_bytes()
    generator = np.random.default_rng(0)
    damaged = tmp_path / "damaged.gguf"
    messages = []
    for at in generator.integers(0, 12_000, 60):
        flipped = bytearray(raw)
        flipped[at] ^= int(generator.integers(1, 256))
        for version in (bytes(flipped), raw[:at]):
            damaged.write_bytes(version)
            messages.append(_damage_found(damaged))
    found = [message for message in messages if message is not None]
    assert all(str(damaged) in message for message in found)
    assert len(found) >= 60  # every cut is found; a flipped letter of a token cannot be


def test_other_files_are_not_taken_for_gguf(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("a text")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        _resolve(path)


def test_another_version_and_parts_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, 4, 1)
    path.write_bytes(bytes(raw))
    with pytest.raises(UnsupportedError, match="version 1"):
        _resolve(path)
    path.unlink()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="one of 3 parts"):
        _resolve(path)


def test_more_tokens_than_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="310 tokens but 300 embedding rows"):
        _resolve(_written(tmp_path, tokenizer=tokenizer_metadata(size=310)))


def test_names_and_fingerprint(tmp_path: Path) -> None:
    path = _written(tmp_path)
    source = _resolve(path)
    assert source.name == "tiny"
    assert source.source == f"gguf:{path.resolve()}"
    assert source.weight_paths == (path,)
    assert len(source.weights) == len(read_header(path).tensors)
    assert "model.norm.weight" in source.weights
    assert "output_norm.weight" not in source.weights
    assert gguf_name("model.layers.2.mlp.up_proj.weight") == "blk.2.ffn_up.weight"
