"""Untrained drafters: shapes for any target, parts without effect, copied layers."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch

from blockdraft.drafters.config import spread_target_layers
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.drafters.init import init_drafter
from blockdraft.drafters.tensors import check_tensors
from blockdraft.errors import ConfigError
from tests.drafters.tiny import batch_of, features_for
from tests.fakes.models import random_weights, tiny_config, tiny_target

TARGET = tiny_target()
TARGET_CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}


def fresh(**options: Any) -> Any:
    settings = {"method": "dflash2", "mask_token_id": 155, "num_taps": 1, "num_layers": 2}
    return init_drafter(
        TARGET.info, options.pop("config", TARGET_CONFIG), **{**settings, **options}
    )


@pytest.mark.parametrize(
    ("num_layers", "num_taps", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (30, 5, (1, 8, 14, 20, 27)),
        (30, 3, (1, 14, 27)),
        (30, 1, (15,)),
        (2, 1, (1,)),
        (5, 2, (1, 2)),
    ],
)
def test_taps_follow_the_rule(num_layers: int, num_taps: int, ids: tuple[int, ...]) -> None:
    assert spread_target_layers(num_layers, num_taps) == ids


@pytest.mark.parametrize(("num_layers", "num_taps"), [(4, 2), (6, 5), (3, 2), (30, 0)])
def test_targets_too_shallow_for_the_rule(num_layers: int, num_taps: int) -> None:
    with pytest.raises(ConfigError, match="ask for fewer or name target_layer_ids"):
        spread_target_layers(num_layers, num_taps)


def test_same_seed_same_weights() -> None:
    config, tensors = fresh(seed=3)
    check_tensors(config, tensors)
    again, other = fresh(seed=3)[1], fresh(seed=4)[1]
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)
    assert not torch.equal(tensors["fc.weight"], other["fc.weight"])
    assert abs(float(tensors["layers.0.mlp.up_proj.weight"].std()) - 0.02) < 0.002


def test_a_mask_that_ends_texts_is_told_at_the_start_bc39() -> None:
    """BC-39: not first when a trained drafter is bound to its target."""
    [end_id] = TARGET.info.end_ids
    with pytest.warns(UserWarning, match=f"mask_token_id is {end_id}, an end token of") as told:
        config, _ = fresh(mask_token_id=end_id)
    assert (len(told), config.mask_token_id) == (1, end_id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh()


def test_a_draft_vocabulary_with_the_end_of_texts_cannot_have_it_as_the_mask_bc39() -> None:
    """The message names what was written: training adds the ends to the vocabulary itself."""
    [end_id] = TARGET.info.end_ids
    with pytest.raises(ConfigError, match=f"mask_token_id is {end_id}, .* draft vocabulary holds"):
        fresh(mask_token_id=end_id, draft_vocab_ids=range(40))


def test_new_parts_have_no_effect() -> None:
    """An untrained DFlash 2 drafter drafts what the DFlash drafter of its layers drafts."""
    config, tensors = fresh()
    plain_config, _ = fresh(method="dflash")
    plain = DFlashDrafter.from_tensors(
        plain_config,
        {k: v for k, v in tensors.items() if "_conv." not in k and "selector" not in k},
    )
    both = [DFlash2Drafter.from_tensors(config, tensors), plain]
    proposals = []
    for drafter in both:
        drafter.bind(TARGET)
        context = drafter.new_context(1, 32)
        context.append(features_for(config, 9)[None], 0, [0], [9])
        batch = batch_of([3], [9])
        proposals.append(drafter.select(drafter.draft(context, batch), batch))
    assert torch.equal(proposals[0].ids, proposals[1].ids)


def test_layers_are_copied_from_the_end_of_the_target() -> None:
    weights = random_weights(tiny_config())
    config, tensors = fresh(copy_layers_from=weights, window=16)
    assert config.windows == (16, 16)
    for i, origin in enumerate((2, 3)):
        for part in ("self_attn.k_proj", "mlp.down_proj", "input_layernorm"):
            mine = tensors[f"layers.{i}.{part}.weight"]
            assert torch.equal(mine, weights[f"model.layers.{origin}.{part}.weight"])
        assert bool((tensors[f"layers.{i}.self_attn.q_norm.weight"] == 1).all())
    assert torch.equal(tensors["norm.weight"], weights["model.norm.weight"])
    assert tensors["norm.weight"].data_ptr() != weights["model.norm.weight"].data_ptr()


def test_biases_of_the_target_are_copied_and_the_missing_one_is_zero() -> None:
    """Qwen2 has biases on q, k, v and none on o; a drafter has all four or none."""
    weights = random_weights(tiny_config(qkv_bias=True))
    config, tensors = fresh(copy_layers_from=weights)
    assert config.attention_bias
    q_bias = weights["model.layers.2.self_attn.q_proj.bias"]
    assert torch.equal(tensors["layers.0.self_attn.q_proj.bias"], q_bias)
    assert not bool(tensors["layers.0.self_attn.o_proj.bias"].any())


def test_soft_cap_and_rotary_settings_come_from_the_target() -> None:
    scaled = {**TARGET_CONFIG, "final_logit_softcapping": 30.0}
    scaled["rope_parameters"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    config, _ = fresh(config=scaled)
    assert config.final_logit_softcapping == 30.0
    assert (config.rope.rope_type, config.rope.factor, config.rope.theta) == ("linear", 4.0, 5e5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_token_id": 160}, "mask_token_id is 160; .* 0 to 159"),
        ({"mask_token_id": -1}, "mask_token_id is -1"),
        ({"conv_group_size": 48}, "conv_group_size 48 does not divide"),
        ({"block_size": 1}, "block_size is 1"),
        ({"num_layers": 5, "copy_layers_from": random_weights(tiny_config())}, "cannot copy 5"),
        ({"copy_layers_from": {}}, "no tensor model.norm.weight to copy|no tensor model.layers"),
        ({"config": {**TARGET_CONFIG, "intermediate_size": None}}, "intermediate_size is None"),
        (
            {
                "config": {**TARGET_CONFIG, "intermediate_size": 32},
                "copy_layers_from": random_weights(tiny_config()),
            },
            "layers cannot be copied: .*mlp.down_proj.weight",
        ),
        (
            {
                "config": {**TARGET_CONFIG, "hidden_act": "gelu"},
                "copy_layers_from": random_weights(tiny_config()),
            },
            "only layers with 'silu'",
        ),
    ],
)
def test_what_cannot_work_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fresh(**options)


def test_config_names_every_fault_at_once() -> None:
    config, _ = fresh()
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(
            config, num_heads=3, windows=(0,), target_layer_ids=(1, 1), selector_top_k=161
        )
    for part in (
        "num_heads 3",
        "windows has 1",
        "windows are (0,)",
        "named twice",
        "selector_top_k is",
    ):
        assert part in str(error.value)
