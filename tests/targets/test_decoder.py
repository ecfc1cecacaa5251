"""The decoder against transformers, family by family, and its passes against each other."""

from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.errors import CheckpointError
from blockdraft.kernels.choose import choose_kernels
from blockdraft.targets.base import RowBatch
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import TargetInfo
from tests.fakes.models import random_weights, tiny_config, tiny_target

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FAMILIES = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama yarn": ("Llama", {"rope_parameters": {**YARN, "rope_theta": 1e4}}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 sliding": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


def reference_and_ours(family: str) -> tuple[torch.nn.Module, DecoderTarget]:
    kind, extra = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **extra})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:  # ones and zeros would hide a mistake
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    ours = DecoderConfig.from_dict(config.to_dict())
    info = TargetInfo(
        name=family,
        source="tests",
        fingerprint=family,
        model_type=ours.model_type,
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        num_layers=ours.num_layers,
        max_context_len=ours.max_context_len,
        end_ids=(),
        dtype=torch.float32,
        num_parameters=0,
    )
    weights = dict(model.state_dict())
    if ours.tie_embeddings:
        del weights["lm_head.weight"]
    return model, DecoderTarget(ours, weights, choose_kernels(torch.float32, CPU), info, CPU)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_features_equal_transformers(family: str) -> None:
    model, target = reference_and_ours(family)
    ids = torch.randint(0, 97, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = model(ids, output_hidden_states=True)
    cache = target.new_cache(2, 64)
    logits, features = [], []
    for start, end in ((0, 21), (21, 22), (22, 30), (30, 40)):
        out = target.forward(
            cache, RowBatch(ids[:, start:end], (end - start,), first_slot=1, layer_ids=(0, 1))
        )
        logits.append(out.logits)
        features.append(out.features)
    scale = want.logits.abs().max()
    assert (torch.cat(logits, 1) - want.logits).abs().max() < 1e-4 * scale
    taps = torch.cat([want.hidden_states[1], want.hidden_states[2]], -1)
    torch.testing.assert_close(torch.cat(features, 1), taps, atol=1e-4, rtol=1e-4)


def run(target: DecoderTarget, ids: Tensor, splits: list[int]) -> Tensor:
    """Logits of one sequence run in pieces of the given lengths."""
    cache, out, start = target.new_cache(1, 64), [], 0
    for length in splits:
        piece = ids[None, start : start + length]
        out.append(target.forward(cache, RowBatch(piece, (length,))).logits)
        start += length
    return torch.cat(out, 1)[0]


@settings(max_examples=25, deadline=None)
@given(
    lens=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    rows=st.integers(1, 9),
    window=st.one_of(st.none(), st.integers(1, 24)),
    data=st.data(),
)
def test_ragged_batches_equal_solo_runs(
    lens: list[int], rows: int, window: int | None, data: st.DataObject
) -> None:
    """Rows of different lengths, padding included: each sees only itself (BC-32)."""
    target = tiny_target(windows=(None, window, window, None))
    valid = [data.draw(st.integers(1, rows)) for _ in lens]
    gen = torch.Generator().manual_seed(7)
    ids = [torch.randint(0, 150, (n + v,), generator=gen) for n, v in zip(lens, valid, strict=True)]
    cache = target.new_cache(len(lens), 64)
    for slot, n in enumerate(lens):
        target.forward(cache, RowBatch(ids[slot][None, :n], (n,), slot, "none"))
    batch = torch.full((len(lens), rows), 3)
    for i, v in enumerate(valid):
        batch[i, :v] = ids[i][lens[i] :]
    out = target.forward(cache, RowBatch(batch, tuple(valid)))
    assert cache.lens[: len(lens)] == [n + v for n, v in zip(lens, valid, strict=True)]
    for i, v in enumerate(valid):
        want = run(target, ids[i], [lens[i], v])[lens[i] :]
        torch.testing.assert_close(out.logits[i, :v], want, atol=2e-4, rtol=2e-4)


def test_last_logits_are_those_of_the_last_valid_row() -> None:
    target = tiny_target()
    ids = torch.randint(0, 150, (2, 9))
    cache = target.new_cache(2, 64)
    last = target.forward(cache, RowBatch(ids, (4, 9), logits_for="last")).logits
    assert last.shape == (2, 1, 160)
    torch.testing.assert_close(last[0, 0], run(target, ids[0, :4], [4])[3], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(last[1, 0], run(target, ids[1], [9])[8], atol=1e-4, rtol=1e-4)


def test_rejected_rows_leave_no_trace() -> None:
    """BC-25: crop after wrong rows, then go on: as if they had never been there."""
    target = tiny_target()
    ids = torch.randint(0, 150, (20,))
    clean = run(target, ids, [12, 8])
    cache = target.new_cache(1, 64)
    target.forward(cache, RowBatch(ids[None, :12], (12,)))
    for kept in range(8):
        wrong = torch.randint(0, 150, (1, 8))
        wrong[0, :kept] = ids[12 : 12 + kept]
        target.forward(cache, RowBatch(wrong, (8,)))
        cache.crop(0, 12)
    out = target.forward(cache, RowBatch(ids[None, 12:], (8,))).logits
    torch.testing.assert_close(out[0], clean[12:], atol=1e-4, rtol=1e-4)


def test_tied_head_shares_storage_with_the_embedding() -> None:
    """BC-47."""
    target = tiny_target(tie_embeddings=True)
    assert target._head.weight.data_ptr() == target.embedding.data_ptr()


@pytest.mark.parametrize("change", ["missing", "unexpected", "misshapen"])
def test_wrong_weights_are_named(change: str) -> None:
    config, name = tiny_config(), "model.layers.1.mlp.up_proj.weight"
    weights = random_weights(config)
    if change == "missing":
        del weights[name]
    elif change == "unexpected":
        name = "model.layers.1.mlp.router.weight"
        weights[name] = torch.zeros(2, 2)
    else:
        weights[name] = weights[name][:5]
    info = tiny_target().info
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        DecoderTarget(config, weights, choose_kernels(torch.float32, CPU), info, CPU)
