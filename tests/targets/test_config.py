"""DecoderConfig reads what transformers writes, and refuses what it would have to ignore."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.layers.rope import RopeConfig, inverse_frequencies
from blockdraft.targets.config import DecoderConfig

_SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def _written(config_class: type, **keys: Any) -> dict[str, Any]:
    """What transformers puts into config.json, defaults included."""
    return config_class(**_SIZES, **keys).to_dict()


def _llama(**keys: Any) -> dict[str, Any]:
    return {"model_type": "llama", "rms_norm_eps": 1e-5, **_SIZES, **keys}


def test_llama_sizes() -> None:
    config = DecoderConfig.from_dict(_written(LlamaConfig, rms_norm_eps=1e-5, eos_token_id=7))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (160, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (4, 4, 2)
    assert (config.head_dim, config.norm_eps, config.max_context_len) == (16, 1e-5, 128)
    assert config.windows == (None,) * 4
    assert config.end_ids == (7,)
    switches = (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm)
    assert switches == (False,) * 4
    assert not config.tie_embeddings


def test_llama_biases_cover_output_and_mlp() -> None:
    config = DecoderConfig.from_dict(_written(LlamaConfig, attention_bias=True, mlp_bias=True))
    assert config.qkv_bias
    assert config.o_bias
    assert config.mlp_bias


def test_qwen2_always_has_qkv_bias_and_no_output_bias() -> None:
    config = DecoderConfig.from_dict(_written(Qwen2Config, tie_word_embeddings=True))
    assert config.qkv_bias
    assert not config.o_bias
    assert not config.qk_norm
    assert config.tie_embeddings


def test_qwen3_has_head_norms_and_its_own_head_width() -> None:
    config = DecoderConfig.from_dict(_written(Qwen3Config, head_dim=32))
    assert config.qk_norm
    assert config.head_dim == 32
    assert not config.qkv_bias


def test_mistral_window_is_for_all_layers() -> None:
    windows = DecoderConfig.from_dict(_written(MistralConfig, sliding_window=16)).windows
    assert windows == (16,) * 4
    windows = DecoderConfig.from_dict(_written(MistralConfig, sliding_window=None)).windows
    assert windows == (None,) * 4


def test_mistral_file_without_window_key_has_the_default_one() -> None:
    written = {**_llama(), "model_type": "mistral"}
    assert DecoderConfig.from_dict(written).windows == (4096,) * 4


@pytest.mark.parametrize("config_class", [Qwen2Config, Qwen3Config])
def test_qwen_windows(config_class: type) -> None:
    off = _written(config_class, use_sliding_window=False, sliding_window=16)
    assert DecoderConfig.from_dict(off).windows == (None,) * 4
    old = _written(config_class, use_sliding_window=True, sliding_window=16, max_window_layers=3)
    assert DecoderConfig.from_dict(old).windows == (None, None, None, 16)
    del old["layer_types"]
    assert DecoderConfig.from_dict(old).windows == (None, None, None, 16)
    kinds = ["sliding_attention", "full_attention"] * 2
    new = _written(config_class, use_sliding_window=True, sliding_window=8, layer_types=kinds)
    assert DecoderConfig.from_dict(new).windows == (8, None, 8, None)


_SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.5,
        "truncate": False,
    },
]


@pytest.mark.parametrize("scaling", _SCALINGS)
def test_rotary_frequencies_equal_those_of_transformers(scaling: dict[str, Any]) -> None:
    written = _written(LlamaConfig, rope_parameters={"rope_theta": 5e4, **scaling})
    rope = DecoderConfig.from_dict(written).rope
    reference = LlamaRotaryEmbedding(LlamaConfig(**written))
    torch.testing.assert_close(inverse_frequencies(rope, 16), reference.inv_freq)
    assert rope.attention_factor == pytest.approx(reference.attention_scaling)


@pytest.mark.parametrize("scaling", _SCALINGS[1:])
def test_old_and_new_rotary_spelling_say_the_same(scaling: dict[str, Any]) -> None:
    old = DecoderConfig.from_dict(_llama(rope_theta=5e4, rope_scaling=scaling))
    new = DecoderConfig.from_dict(_llama(rope_parameters={"rope_theta": 5e4, **scaling}))
    assert old.rope == new.rope
    both = _llama(rope_scaling=scaling, rope_parameters={"rope_theta": 5e4, **scaling})
    assert DecoderConfig.from_dict(both).rope == new.rope


def test_rope_theta_alone() -> None:
    assert DecoderConfig.from_dict(_llama(rope_theta=1e5)).rope == RopeConfig(
        theta=1e5, original_max_len=128
    )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "gemma2"}, "gemma2"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attention_multiplier": 0.5}, "attention_multiplier"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"residual_multiplier": 0.2}, "residual_multiplier"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"use_rope": False}, "use_rope"),
        ({"is_encoder_decoder": True}, "cross attention"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "longrope"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [4, 4]}}, "mrope_section"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
        ({"head_dim": 15}, "head_dim is 15"),
    ],
)
def test_settings_that_change_the_maths_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        DecoderConfig.from_dict(_llama(**keys))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"vocab_size": "160"}, "vocab_size is '160'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"hidden_size": 66}, "multiple of num_attention_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [1, -2]}, "eos_token_id"),
        ({"rope_scaling": "linear"}, "rotary settings"),
        ({"rope_scaling": {"type": "linear"}}, "needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "needs low_freq_factor"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}, "rope_theta is 10000.0"),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "differ",
        ),
    ],
)
def test_wrong_or_missing_values_are_named(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        DecoderConfig.from_dict(_llama(**keys))


@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_a_missing_kv_head_count_is_not_guessed(model_type: str) -> None:
    written = {**_llama(), "model_type": model_type}
    del written["num_key_value_heads"]
    with pytest.raises(CheckpointError, match="num_key_value_heads"):
        DecoderConfig.from_dict(written)
    del (plain := _llama())["num_key_value_heads"]
    assert DecoderConfig.from_dict(plain).num_kv_heads == 4


def test_qwen_layer_types_must_agree_with_the_switch() -> None:
    written = {**_llama(), "model_type": "qwen2", "layer_types": ["sliding_attention"] * 4}
    with pytest.raises(CheckpointError, match="use_sliding_window is false"):
        DecoderConfig.from_dict(written)
    with pytest.raises(CheckpointError, match="2 layer types for 4 layers"):
        DecoderConfig.from_dict(
            {**written, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}
        )
    with pytest.raises(UnsupportedError, match="chunked_attention"):
        DecoderConfig.from_dict(
            {**written, "use_sliding_window": True, "layer_types": ["chunked_attention"] * 4}
        )


def test_switches_of_siblings_may_be_off_and_notes_are_ignored() -> None:
    written = _llama(
        use_sliding_window=False,
        sliding_window=None,
        pruned_heads={},
        _name_or_path="somewhere",
        unsloth_version="1",
        torch_dtype="bfloat16",
    )
    assert DecoderConfig.from_dict(written).windows == (None,) * 4
