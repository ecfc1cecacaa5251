"""The z-lab config: what is read, what is refused by name, what is written."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from blockdraft.drafters.config import DFlashConfig
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.interop.zlab_config import parse_zlab_config
from blockdraft.interop.zlab_config_dict import zlab_config_dict
from blockdraft.layers.rope import RopeConfig

#: Shape of a drafter for SmolLM2-135M, as a z-lab folder says it.
RAW: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 3,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 1024,
    "max_window_layers": 0,
    "is_causal": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "eos_token_id": 0,
    "pad_token_id": None,
    "block_size": 8,
    "num_target_layers": 30,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 16,
        "target_layer_ids": [1, 8, 14, 20, 27],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
        "input_embedding_scale": 1.0,
        "output_multiplier": 1.0,
        "final_logit_softcapping": None,
    },
}
#: A value that takes a key out.
GONE = object()


def raw(changes: dict[str, Any] | None = None, **table: Any) -> dict[str, Any]:
    """RAW with top-level changes and changes of `dflash_config`."""
    out = copy.deepcopy(RAW)
    for place, values in ((out, changes or {}), (out["dflash_config"], table)):
        for key, value in values.items():
            place.pop(key, None) if value is GONE else place.update({key: value})
    return out


def dflash(changes: dict[str, Any] | None = None, **table: Any) -> dict[str, Any]:
    """A config of plain DFlash."""
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    table = {**dict.fromkeys(names, GONE), **table}
    return raw({"architectures": ["DFlashDraftModel"], **(changes or {})}, **table)


def test_everything_is_read() -> None:
    config = parse_zlab_config(RAW)
    assert config == DFlashConfig(
        method="dflash2",
        num_layers=3,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        max_context_len=8192,
        windows=(1024,) * 3,
        causal=(False,) * 3,
        block_size=8,
        mask_token_id=16,
        target_layer_ids=(1, 8, 14, 20, 27),
        num_target_layers=30,
        norm_eps=1e-5,
        rope=RopeConfig(theta=100000.0, original_max_len=8192),
        conv_kernel_size=2,
        conv_group_size=16,
        selector_rank=256,
        selector_top_k=16,
    )
    assert parse_zlab_config(dflash()).method == "dflash"


@pytest.mark.parametrize(
    "key",
    [
        "architectures",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "num_target_layers",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        parse_zlab_config(raw({key: GONE}))


@pytest.mark.parametrize(
    "key",
    [
        "mask_token_id",
        "target_layer_ids",
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
    ],
)
def test_a_missing_key_of_the_table_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"missing keys: {key}"):
        parse_zlab_config(raw(**{key: GONE}))


def test_all_missing_keys_are_named_at_once() -> None:
    with pytest.raises(CheckpointError, match="missing keys: block_size, head_dim, rope_theta"):
        parse_zlab_config(
            raw(
                {"head_dim": GONE, "block_size": GONE, "rope_theta": GONE, "rope_parameters": GONE},
                block_size=GONE,
            )
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (raw(selector_topk=16), "unknown keys in dflash_config: selector_topk"),
        (raw(causal=True, markov_rank=4), "dflash_config: causal, markov_rank"),
        (raw({"is_casual": True, "swa": 1}), "unknown keys: is_casual, swa"),
        (raw({"block_size": 16}), "block_size is 8 in dflash_config, but 16 beside it"),
        (raw({"mask_token_id": 4}), "mask_token_id is 16 in dflash_config, but 4"),
        (raw({"rope_theta": 5.0}), "rope_theta is 5.0 and 100000.0"),
        (raw({"use_sliding_window": False}), "use_sliding_window is false"),
        (raw({"use_sliding_window": GONE}), "use_sliding_window is false"),
        (raw({"sliding_window": None}), "sliding_window is not set"),
        (raw({"layer_types": ["full_attention"]}), "windows has 1 entries|1 layer types for 3"),
        (raw({"layer_types": ["full_attention", "linear_attention", "full_attention"]}), "linear"),
        (raw({"is_causal": "no"}), "is_causal is 'no'"),
        (raw({"hidden_act": "gelu"}), "hidden_act is 'gelu'"),
        (raw({"model_type": "llama"}), "model_type is 'llama'"),
        (raw({"architectures": ["Qwen3ForCausalLM"]}), "architectures is"),
        (raw({"dflash_config": [1]}), "dflash_config is"),
        (raw({"attention_sink_bias": True}), "attention_sink_bias"),
        (raw({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (raw({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e5}}), "longrope"),
        (raw(conv_group_size=17), "conv_group_size 17 does not divide"),
        (raw(block_size="8"), "block_size is '8', but|block_size is 8"),
        (raw({"block_size": GONE}, block_size="8"), "block_size is '8', not a number"),
        (raw(output_multiplier=0.0), "output_multiplier is 0.0"),
        (raw(output_multiplier="1"), "output_multiplier is '1', not a number"),
        (raw(final_logit_softcapping=-3.0), "final_logit_softcapping is -3.0"),
        (dflash(selector_rank=4), "selector_rank is 4, but dflash has none"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_zlab_config(config)


@pytest.mark.parametrize("value", [-1, 49152, 2.5, True])
def test_mask_token_out_of_range_bc39(value: Any) -> None:
    """BC-39: an error that names the field (absent: see the missing keys)."""
    with pytest.raises(CheckpointError, match="mask_token_id is"):
        parse_zlab_config(raw(mask_token_id=value))


@pytest.mark.parametrize("ids", [[-1], [30], [1, 8, 8], [], [1.5], 3, [[1]]])
def test_wrong_taps_bc45(ids: Any) -> None:
    """BC-45: negative, too large, twice, none at all."""
    with pytest.raises(CheckpointError, match="target_layer_ids is"):
        parse_zlab_config(raw(target_layer_ids=ids))


def test_the_last_layer_may_be_tapped_bc45() -> None:
    """BC-45: the last layer's raw output is a feature like any other."""
    assert parse_zlab_config(raw(target_layer_ids=[0, 29])).target_layer_ids == (0, 29)


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({"is_causal": True}, (1024,) * 3, (True,) * 3),
        ({"is_causal": GONE}, (1024,) * 3, (True,) * 3),
        (
            {"is_causal": None, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
            (1024, 1024, None),
            (True, True, False),
        ),
        (
            {"layer_types": GONE, "max_window_layers": 2, "is_causal": GONE},
            (None, None, 1024),
            (False, False, True),
        ),
        (
            {"layer_types": GONE, "use_sliding_window": False, "is_causal": GONE},
            (None,) * 3,
            (False,) * 3,
        ),
    ],
)
def test_windows_and_causality_follow_the_rule(
    changes: dict[str, Any], windows: tuple[int | None, ...], causal: tuple[bool, ...]
) -> None:
    config = parse_zlab_config(raw(changes))
    assert (config.windows, config.causal) == (windows, causal)


def test_keys_may_stand_beside_the_table() -> None:
    """Older files keep them at the top level only."""
    table = RAW["dflash_config"]
    flat = {**raw({"dflash_config": GONE}), **{k: v for k, v in table.items() if v is not None}}
    assert parse_zlab_config(flat) == parse_zlab_config(RAW)


def test_keys_of_any_transformers_config_are_known() -> None:
    extra = {"transformers_version": "5.15.0", "torch_dtype": "bfloat16", "auto_map": {"a": "b"}}
    extra |= {"_name_or_path": "x", "bos_token_id": 1, "chunk_size_feed_forward": 0}
    assert parse_zlab_config(raw(extra)) == parse_zlab_config(RAW)


def test_a_soft_cap_of_zero_is_none() -> None:
    assert parse_zlab_config(raw(final_logit_softcapping=0.0)).final_logit_softcapping is None
    assert parse_zlab_config(raw(final_logit_softcapping=30)).final_logit_softcapping == 30.0


BASE = parse_zlab_config(RAW)
ROPES = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16.0},
]


@pytest.mark.parametrize(
    "config",
    [
        BASE,
        parse_zlab_config(dflash()),
        dataclasses.replace(BASE, windows=(None,) * 3),
        dataclasses.replace(BASE, windows=(None,) * 3, causal=(True,) * 3),
        dataclasses.replace(BASE, windows=(64, None, 64), causal=(True, False, True)),
        dataclasses.replace(BASE, windows=(64, None, 64)),
        dataclasses.replace(BASE, attention_bias=True, output_multiplier=0.5),
        dataclasses.replace(BASE, input_embedding_scale=24.0, final_logit_softcapping=30.0),
        *(parse_zlab_config(raw({"rope_parameters": {**r, "rope_theta": 1e5}})) for r in ROPES),
    ],
)
def test_what_is_written_reads_the_same(config: DFlashConfig) -> None:
    written = zlab_config_dict(config, torch.bfloat16)
    assert parse_zlab_config(written) == config
    assert written["block_size"] == written["dflash_config"]["block_size"] == config.block_size
    assert "is_causal" in written
    assert written["dtype"] == "bfloat16"


def test_what_the_format_cannot_say_is_refused() -> None:
    with pytest.raises(ConfigError, match="knows one width"):
        zlab_config_dict(dataclasses.replace(BASE, windows=(64, 32, 64)), torch.float32)
    mixed = dataclasses.replace(BASE, windows=(64, None, 64), causal=(False, True, True))
    with pytest.raises(ConfigError, match="cannot mix it so"):
        zlab_config_dict(mixed, torch.float32)
