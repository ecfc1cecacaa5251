"""Any transformers model as a target: its own logits, raw features, exact rollback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.errors import CapacityError, ConfigError
from blockdraft.targets.base import RowBatch
from blockdraft.targets.slot_caches import SlotCaches
from blockdraft.targets.sources import resolve
from blockdraft.targets.transformers import TransformersTarget, load_transformers_target
from blockdraft.targets.transformers_loading import target_info
from tests.targets.gguf_writing import write_gguf
from tests.targets.tiny_models import save, state, tiny_model

_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 6},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Qwen3": {},
    "Gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0},
    "Gemma3Text": {"sliding_window": 6, "layer_types": _LAYERS, "query_pre_attn_scalar": 16},
    "Cohere2": {"sliding_window": 6, "layer_types": _LAYERS, "logit_scale": 0.25},
    "Olmo2": {},
    "Phi": {},
    "Granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "GPT2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "Mixtral": {"num_local_experts": 4, "sliding_window": 6},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_BUILT: dict[str, TransformersTarget] = {}


def _target(name: str) -> TransformersTarget:
    """Built once per model, without going through files."""
    if name not in _BUILT:
        model = tiny_model(name, **_MODELS[name])
        source = _FakeSource(name)
        _BUILT[name] = TransformersTarget(model, target_info(source, model, torch.float32))  # type: ignore[arg-type]
    return _BUILT[name]


class _FakeSource:
    """The part of a source that `target_info` reads."""

    source, fingerprint, end_ids = "test", "0" * 64, (2,)

    def __init__(self, name: str) -> None:
        self.name = name


def _ids(length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 160, (1, length), generator=generator)


def _feed(
    target: TransformersTarget, cache: SlotCaches, ids: Tensor, slot: int = 0, **keys: Any
) -> Any:
    return target.forward(cache, RowBatch(ids, (ids.shape[1],), first_slot=slot, **keys))


@torch.inference_mode()
def _full_logits(target: TransformersTarget, ids: Tensor) -> Tensor:
    logits: Tensor = target.model(input_ids=ids).logits
    return logits


@pytest.mark.parametrize("name", _MODELS)
def test_logits_after_crops_are_those_of_a_full_pass(name: str) -> None:
    """Beyond the window, with rejections on both sides of its edge."""
    target = _target(name)
    ids = _ids(24)
    expected = _full_logits(target, ids)[0]
    cache = target.new_cache(1, 64)
    end = 0
    for block_len, kept_len in ((3, 3), (4, 2), (5, 1), (4, 4), (6, 3), (8, 8), (3, 3)):
        block = ids[:, end : end + block_len].clone()
        block[:, kept_len:] = (block[:, kept_len:] + 1) % 160
        found = _feed(target, cache, block).logits[0, :kept_len]
        torch.testing.assert_close(found, expected[end : end + kept_len], rtol=1e-4, atol=1e-4)
        end += kept_len
        cache.crop(0, end)
        assert cache.lens == [end]
    assert end == 24


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "Gemma3Text"])
@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=8))
def test_any_pattern_of_crops(name: str, steps: list[tuple[int, int]]) -> None:
    target = _target(name)
    ids = _ids(64)
    expected = _full_logits(target, ids)[0]
    cache = target.new_cache(1, 128)
    end = 0
    for block_len, removed_len in steps:
        block_len = min(block_len, 64 - end)
        if not block_len:
            break
        found = _feed(target, cache, ids[:, end : end + block_len]).logits[0]
        torch.testing.assert_close(found, expected[end : end + block_len], rtol=1e-4, atol=1e-4)
        end = max(0, end + block_len - removed_len)
        cache.crop(0, end)


@pytest.mark.parametrize("name", ["Gemma2", "Llama"])
def test_ragged_batch_equals_each_sequence_alone(name: str) -> None:
    """Padding ids are outside the vocabulary: fed to the model, they would crash it."""
    target = _target(name)
    prompts = [_ids(n, seed=n) for n in (1, 9, 4)]
    padded = torch.full((3, 9), 10**6)
    for i, prompt in enumerate(prompts):
        padded[i, : prompt.shape[1]] = prompt[0]
    cache = target.new_cache(5, 32)
    batch = RowBatch(padded, (1, 9, 4), first_slot=1, layer_ids=(0, 2))
    output = target.forward(cache, batch)
    assert cache.lens == [0, 1, 9, 4, 0]
    assert output.logits.shape == (3, 9, 160)
    assert output.features.shape == (3, 9, 128)
    for i, prompt in enumerate(prompts):
        alone = _feed(target, target.new_cache(1, 32), prompt, layer_ids=(0, 2))
        length = prompt.shape[1]
        assert torch.equal(output.logits[i, :length], alone.logits[0])
        assert torch.equal(output.features[i, :length], alone.features[0])
        assert not output.logits[i, length:].any()


def test_logits_only_where_asked() -> None:
    target = _target("Llama")
    ids = torch.cat([_ids(5), _ids(5, seed=1)])
    cache = target.new_cache(2, 32)
    everything = target.forward(cache, RowBatch(ids, (5, 3))).logits
    last = target.forward(target.new_cache(2, 32), RowBatch(ids, (5, 3), logits_for="last"))
    assert last.logits.shape == (2, 1, 160)
    torch.testing.assert_close(last.logits[:, 0], everything[[0, 1], [4, 2]])
    cache = target.new_cache(2, 32)
    none = target.forward(cache, RowBatch(ids, (5, 3), logits_for="none"))
    assert none.logits is None
    assert none.features is None
    assert cache.lens == [5, 3]


@pytest.mark.parametrize("name", _MODELS)
def test_features_are_layer_outputs_before_the_final_norm(name: str) -> None:
    """BC-45: hidden_states[i + 1], and for the last layer what the final norm has not seen."""
    target = _target(name)
    ids = _ids(9)
    with torch.inference_mode():
        reference = target.model(input_ids=ids, output_hidden_states=True).hidden_states
    found = _feed(target, target.new_cache(1, 32), ids, layer_ids=(0, 1, 2)).features[0]
    parts = found.split(64, -1)
    torch.testing.assert_close(parts[0], reference[1][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parts[1], reference[2][0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(parts[2], reference[3][0], rtol=1e-2, atol=1e-2)
    norm = _final_norm(target.model.get_decoder())
    torch.testing.assert_close(norm(parts[2]), reference[3][0], rtol=1e-4, atol=1e-4)


def _final_norm(decoder: Any) -> Any:
    names = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
    inner = getattr(decoder, "decoder", decoder)
    return next(getattr(inner, name) for name in names if hasattr(inner, name))


def test_features_come_in_the_order_asked_also_twice() -> None:
    target = _target("Llama")
    ids = _ids(4)
    one, two = (
        _feed(target, target.new_cache(1, 32), ids, layer_ids=layers).features
        for layers in ((0, 2), (2, 0, 2))
    )
    first, last = one.split(64, -1)
    assert torch.equal(two, torch.cat([last, first, last], -1))


def test_listening_leaves_no_hooks_behind() -> None:
    target = _target("Llama")

    def num_hooks() -> int:
        return sum(len(module._forward_hooks) for module in target.model.modules())

    before = num_hooks()
    _feed(target, target.new_cache(1, 32), _ids(3), layer_ids=(0, 1))
    assert num_hooks() == before


@pytest.mark.parametrize("layer_id", [-1, 3])
def test_a_layer_that_is_not_there_is_an_error(layer_id: int) -> None:
    target = _target("Llama")
    with pytest.raises(ConfigError, match="layers 0 to 2"):
        _feed(target, target.new_cache(1, 32), _ids(3), layer_ids=(layer_id,))


def test_embedding_is_raw_and_head_has_no_soft_cap() -> None:
    """Gemma scales embeddings by sqrt(width) and caps logits; a drafter gets neither."""
    target = _target("Gemma2")
    ids = torch.tensor([[3, 5], [7, 3]])
    weights = target.model.state_dict()
    assert torch.equal(target.embed(ids), weights["model.embed_tokens.weight"][ids])
    scaled = target.model.get_input_embeddings()(ids)
    torch.testing.assert_close(scaled, target.embed(ids) * 8.0)
    features = _feed(target, target.new_cache(1, 32), _ids(6), layer_ids=(2,)).features[0]
    raw = target.head(target.model.model.norm(features))
    capped = _feed(target, target.new_cache(1, 32), _ids(6)).logits[0]
    assert float(raw.abs().max()) > 5.0
    torch.testing.assert_close(torch.tanh(raw / 5.0) * 5.0, capped)


def test_head_keeps_its_bias() -> None:
    target = _target("Phi")
    head = target.model.lm_head
    assert head.bias.abs().sum() > 0
    hidden = torch.randn(4, 64)
    torch.testing.assert_close(target.head(hidden), hidden @ head.weight.T + head.bias)


def test_capacity_is_checked_before_anything_runs() -> None:
    target = _target("Llama")
    cache = target.new_cache(2, 8)
    _feed(target, cache, _ids(6))
    ids = torch.cat([_ids(3), _ids(3)])
    with pytest.raises(CapacityError, match="9 tokens"):
        target.forward(cache, RowBatch(ids, (3, 3)))
    assert cache.lens == [6, 0]
    _feed(target, cache, _ids(2))
    assert cache.lens == [8, 0]


def test_move_clear_and_memory() -> None:
    target = _target("Llama")
    cache = target.new_cache(3, 32)
    assert cache.num_bytes() == 0
    prompt, next_id = _ids(5), _ids(1, seed=9)
    _feed(target, cache, prompt, slot=2)
    row_bytes = 2 * 3 * 2 * 16 * 4  # keys and values, layers, KV heads, width, float32
    assert cache.num_bytes() == 5 * row_bytes
    cache.move(2, 0)
    assert cache.lens == [5, 0, 0]
    expected = _full_logits(target, torch.cat([prompt, next_id], 1))[0, -1:]
    torch.testing.assert_close(_feed(target, cache, next_id).logits[0], expected)
    cache.move(0, 0)
    assert cache.lens == [6, 0, 0]
    cache.clear(0)
    assert cache.lens == [0, 0, 0]
    assert cache.num_bytes() == 0
    again = _feed(target, cache, prompt).logits
    torch.testing.assert_close(again, _full_logits(target, prompt))


def test_cropping_forward_is_a_bug_of_ours() -> None:
    cache = _target("Llama").new_cache(1, 32)
    with pytest.raises(AssertionError):
        cache.crop(0, 1)


@pytest.mark.parametrize("name", ["Gemma2", "GPT2", "Mixtral"])
def test_loading_from_a_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through files, and without the network."""

    def refuse(*args: Any, **keys: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    model = tiny_model(name, **_MODELS[name])
    source = resolve(str(save(model, tmp_path / name)), progress=lambda message: None)
    target = load_transformers_target(source, torch.float32)
    ids = _ids(9)
    torch.testing.assert_close(
        _feed(target, target.new_cache(1, 32), ids).logits, _full_logits(_target(name), ids)
    )
    info = target.info
    assert (info.name, info.model_type) == (name, model.config.model_type)
    assert (info.vocab_size, info.hidden_size, info.num_layers) == (160, 64, 3)
    assert (info.max_context_len, info.end_ids, info.dtype) == (128, (2,), torch.float32)
    assert info.num_parameters == sum(p.numel() for p in model.parameters())
    assert info.fingerprint == source.fingerprint


def test_loading_in_bfloat16(tmp_path: Path) -> None:
    source = resolve(str(save(tiny_model(), tmp_path)), progress=lambda message: None)
    target = load_transformers_target(source, torch.bfloat16)
    assert target.info.dtype == torch.bfloat16
    output = _feed(target, target.new_cache(1, 32), _ids(5), layer_ids=(2,))
    assert output.logits.dtype == output.features.dtype == torch.bfloat16
    expected = state(tiny_model())["model.norm.weight"].bfloat16()
    assert torch.equal(target.model.model.norm.weight, expected)


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    """BC-47: the same storage, nothing made up."""
    folder = save(tiny_model("Qwen3", tie_word_embeddings=True), tmp_path)
    target = load_transformers_target(
        resolve(str(folder), progress=lambda message: None), torch.float32
    )
    embedding = target.model.get_input_embeddings().weight
    assert target._head.weight.data_ptr() == embedding.data_ptr()
    assert torch.equal(
        embedding, state(tiny_model("Qwen3", tie_word_embeddings=True))["model.embed_tokens.weight"]
    )


def test_loading_from_a_gguf_file(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=300)
    path = write_gguf(tmp_path / "tiny.gguf", "llama", state(model), model.config)
    source = resolve(str(path), progress=lambda message: None)
    target = load_transformers_target(source, torch.float32)
    ids = _ids(9)
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
    torch.testing.assert_close(_feed(target, target.new_cache(1, 32), ids).logits, expected)
