"""Rotary tables against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from blockdraft.errors import UnsupportedError
from blockdraft.layers.rope import RopeConfig, rope_tables

SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": 5e5,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": 1e4,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 16.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "original_max_position_embeddings": 128,
        "rope_theta": 1e4,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_tables_equal_transformers(name: str) -> None:
    raw = dict(SCALINGS[name])
    reference = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=128,
            num_attention_heads=4,
            max_position_embeddings=1024,
            rope_parameters=raw,
        )
    )
    cos, sin = reference(torch.zeros(1), torch.arange(600)[None])
    config = RopeConfig.from_dict({"rope_parameters": raw, "max_position_embeddings": 1024})
    ours_cos, ours_sin = rope_tables(config, 32, 600, torch.float32)
    torch.testing.assert_close(ours_cos, cos[0], atol=1e-5, rtol=1e-5)
    # The rotation's minus sign sits in our sine's first half.
    torch.testing.assert_close(ours_sin[:, 16:], sin[0][:, 16:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours_sin[:, :16], -sin[0][:, :16], atol=1e-5, rtol=1e-5)


def test_older_spelling_is_read() -> None:
    old = {"rope_theta": 3e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}}
    assert RopeConfig.from_dict(old) == RopeConfig.from_dict(new)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "longrope"),
        ({"rope_type": "linear", "factor": 2.0, "short_factor": [1.0]}, "short_factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_unknown_rotary_settings_are_errors(raw: dict[str, object], word: str) -> None:
    with pytest.raises(UnsupportedError, match=word):
        RopeConfig.from_dict({"rope_parameters": raw})
