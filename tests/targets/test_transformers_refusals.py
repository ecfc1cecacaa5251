"""Models that cannot roll back, and checkpoints that do not fit, are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from blockdraft.errors import CheckpointError, NumericsError, UnsupportedError
from blockdraft.targets import transformers_loading
from blockdraft.targets.base import RowBatch
from blockdraft.targets.rollback import check_by_trial
from blockdraft.targets.sources import SourceFiles, resolve
from blockdraft.targets.transformers import TransformersTarget, load_transformers_target
from blockdraft.targets.transformers_loading import target_info
from tests.targets.tiny_models import save, state, tiny_model


def _source(config: dict[str, Any], weights: dict[str, Tensor] | None = None) -> SourceFiles:
    return SourceFiles(
        name="tiny-model",
        source="test",
        config=config,
        generation_config={},
        weights=weights or {},
        weight_paths=(),
    )


def _load(source: SourceFiles) -> TransformersTarget:
    return load_transformers_target(source, torch.float32)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Mamba", "recurrent state"),
        ("Mamba2", "recurrent state"),
        ("FalconMamba", "recurrent state"),
        ("Rwkv", "recurrent state"),
        ("RecurrentGemma", "recurrent state"),
        ("Qwen3Next", "recurrent state"),
        ("Jamba", "recurrent state"),
        ("Bamba", "recurrent state"),
        ("FalconH1", "recurrent state"),
        ("Zamba2", "recurrent state"),
        ("MiniMax", "LinearAttentionLayer"),
        ("DeepseekV32", "DynamicIndexedLayer"),
        ("OpenAIGPT", "key-value cache"),
        ("XLNet", "key-value cache"),
    ],
)
def test_models_that_cannot_roll_back(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BC-26. The refusal comes before any weight is read: these are full-size configs."""
    monkeypatch.delattr(transformers_loading, "load_weights")
    config = getattr(transformers, f"{name}Config")().to_dict()
    with pytest.raises(UnsupportedError, match=reason) as caught:
        _load(_source(config))
    assert "tiny-model" in str(caught.value)
    assert "roll back" in str(caught.value)


def test_a_hybrid_folder_is_refused(tmp_path: Path) -> None:
    kinds = ["conv", "full_attention", "conv"]
    model = tiny_model("Lfm2", layer_types=kinds, block_ff_dim=96)
    source = resolve(str(save(model, tmp_path)), progress=lambda message: None)
    with pytest.raises(UnsupportedError, match="its layer 0 keeps a state"):
        _load(source)


def test_encoder_decoders_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(transformers_loading, "load_weights")
    config = transformers.BartConfig().to_dict()
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        _load(_source(config))


class _HiddenState(nn.Module):
    """A model that looks like one with a plain cache, and sums up all it ever saw."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.seen = 0.0

    def get_input_embeddings(self) -> Any:
        return self.model.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def get_decoder(self) -> Any:
        return self.model.get_decoder()

    def forward(self, input_ids: Tensor, **keys: Any) -> Any:
        output = self.model(input_ids=input_ids, **keys)
        self.seen += float(input_ids.sum())
        output.logits += self.seen
        return output


def test_a_state_that_no_config_tells_of_is_found_by_trial() -> None:
    model = tiny_model()
    info = target_info(_source(model.config.to_dict()), model, torch.float32)
    TransformersTarget(model, info)
    with pytest.raises(UnsupportedError, match="logits differ after rows were taken back"):
        TransformersTarget(_HiddenState(model), info)


def test_the_trial_tells_not_a_number_from_a_good_result() -> None:
    with pytest.raises(NumericsError, match="tiny-model gives logits that are not finite"):
        check_by_trial("tiny-model", lambda cache, ids: torch.full((8,), torch.nan), 100)


def test_unknown_model_types_are_refused_without_running_their_code() -> None:
    config = {"model_type": "brand_new", "auto_map": {"AutoModel": "modeling.Model"}}
    with pytest.raises(UnsupportedError, match="'brand_new'"):
        _load(_source(config))
    with pytest.raises(UnsupportedError, match="None"):
        _load(_source({}))


def test_other_kinds_of_model_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="not a causal language model"):
        _load(_source(transformers.ViTConfig().to_dict()))


def test_quantised_checkpoints_are_refused() -> None:
    config = {**tiny_model("Gemma2").config.to_dict(), "quantization_config": {"bits": 4}}
    with pytest.raises(UnsupportedError, match="quantised"):
        _load(_source(config))


def test_a_config_of_the_wrong_form_is_named() -> None:
    config = {**tiny_model("Gemma2").config.to_dict(), "hidden_size": "wide"}
    with pytest.raises(CheckpointError, match="not that of a gemma2 model") as caught:
        _load(_source(config))
    assert "\n" not in str(caught.value)


def _gemma(change: Any) -> SourceFiles:
    model = tiny_model("Gemma2")
    weights = state(model)
    change(weights)
    return _source(model.config.to_dict(), weights)


def test_missing_unexpected_and_misshapen_weights_are_named() -> None:
    """BC-47: never initialised at random."""
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match=f"missing weights: {name}"):
        _load(_gemma(lambda weights: weights.pop(name)))
    with pytest.raises(CheckpointError, match=r"unexpected weights: model\.extra"):
        _load(_gemma(lambda weights: weights.update({"model.extra": torch.ones(2)})))
    with pytest.raises(CheckpointError, match="do not fit its config"):
        _load(_gemma(lambda weights: weights.update({name: torch.ones(2, 2)})))


def test_an_untied_model_without_its_head_is_refused(tmp_path: Path) -> None:
    """BC-47."""
    folder = save(tiny_model("Qwen3"), tmp_path)
    tensors = state(tiny_model("Qwen3"))
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing weights: lm_head\.weight"):
        _load(resolve(str(folder), progress=lambda message: None))


def test_embeddings_of_another_width_are_refused() -> None:
    model = tiny_model("OPT", ffn_dim=96, word_embed_proj_dim=32)
    with pytest.raises(UnsupportedError, match="embeds in width 32"):
        _load(_source(model.config.to_dict(), state(model)))


def test_layers_that_carry_several_streams_give_no_features() -> None:
    """Gemma3n's layers pass on four rows a token; such a target still runs without features."""
    keys = {
        "laurel_rank": 4,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 160,
        "num_kv_shared_layers": 1,
        "intermediate_size": 96,
        "activation_sparsity_pattern": [0.0] * 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "sliding_window": 6,
    }
    model = tiny_model("Gemma3nText", **keys)
    info = target_info(_source(model.config.to_dict()), model, torch.float32)
    target = TransformersTarget(model, info)
    ids = torch.arange(12)[None]
    cache = target.new_cache(1, 32)
    with pytest.raises(UnsupportedError, match="layer 1 of tiny-model gives"):
        target.forward(cache, RowBatch(ids, (12,), layer_ids=(1,)))
    cache.clear(0)
    target.forward(cache, RowBatch(ids, (12,)))
    cache.crop(0, 9)
    found = target.forward(cache, RowBatch(ids[:, 9:], (3,))).logits
    with torch.inference_mode():
        expected = model(input_ids=ids).logits[:, 9:]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_long_rope_is_exact_up_to_the_original_length_only() -> None:
    """Its angles depend on the longest row of a pass, so blocks across the edge would differ."""
    factors = [1.0] * 8
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": factors,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 32,
    }
    model = tiny_model("Phi3", rope_parameters=rope, original_max_position_embeddings=32)
    info = target_info(_source(model.config.to_dict()), model, torch.float32)
    assert info.max_context_len == 32
    assert "32 of 128" in info.extra["context_note"]
    plain = tiny_model("Phi3")
    info = target_info(_source(plain.config.to_dict()), plain, torch.float32)
    assert info.max_context_len == 128
    assert info.extra == {}
