"""The default target in float32: logits and tapped layers are those of transformers."""

from __future__ import annotations

import pytest
import torch

from benchmarks.decode_speed import transformers_model
from blockdraft import LLM
from blockdraft.targets.base import RowBatch
from blockdraft.targets.sources.wheel import cache_folder

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (cache_folder() / "targets" / "smollm2-135m").is_dir(),
        reason="the default target is not in the cache: run `blockdraft pull smollm2-135m`",
    ),
]


@torch.inference_mode()
def test_logits_and_taps_equal_transformers() -> None:
    """A prompt and a block of eight; the last tap is held against the final norm's output."""
    llm = LLM("smollm2-135m", "none", dtype="float32")
    ids = torch.tensor([llm.loaded.codec.encode("Rivers carry water and sand to the sea. " * 4)])
    model = transformers_model("smollm2-135m", torch.float32)
    want = model(ids, output_hidden_states=True)
    cache, layers, end = llm.target.new_cache(1, 64), (0, 14, 29), ids.shape[1]
    logits, features = [], []
    for start, stop in ((0, end - 8), (end - 8, end)):
        batch = RowBatch(ids[:, start:stop], (stop - start,), layer_ids=layers)
        out = llm.target.forward(cache, batch)
        logits.append(out.logits)
        features.append(out.features)
    difference = (torch.cat(logits, 1) - want.logits).abs().max()
    assert difference < 1e-4 * want.logits.abs().max()
    first, middle, last = torch.cat(features, 1).split(576, -1)
    for got, i in ((first, 1), (middle, 15)):
        scale = want.hidden_states[i].abs().max()
        assert (got - want.hidden_states[i]).abs().max() < 1e-4 * scale
    normed = model.model.norm(last)
    assert (normed - want.hidden_states[30]).abs().max() < 1e-4 * normed.abs().max()
