"""Long prompts: in chunks, into a cache that is made once and as large as predicted."""

from __future__ import annotations

from typing import Any

import pytest

from blockdraft.cache.target_kv import PADDING_ROWS, KVCache
from blockdraft.engine.runner import RunnerLimits
from blockdraft.kernels import native
from blockdraft.targets.base import RowBatch
from blockdraft.types import SamplingParams
from tests.fakes.bfloat16 import native_target
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts

LENGTH, CHUNK = 4096, 512
PARAMS = SamplingParams(max_tokens=6)
SHAPE: dict[str, Any] = {"num_layers": 2, "max_context_len": 4200, "end_ids": ()}


@pytest.mark.parametrize("kind", ["decoder", "native"])
def test_4k_tokens_in_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass is longer than a chunk, the cache never moves, and the answer is that of one pass."""
    if kind == "native" and not native.available():
        pytest.skip("native kernels cannot be built here")
    target = tiny_target(**SHAPE) if kind == "decoder" else native_target(**SHAPE)
    forward, prompts = target.forward, random_prompts([LENGTH])
    passes: list[tuple[int, int, int]] = []

    def noted(cache: KVCache, batch: RowBatch) -> Any:
        passes.append((batch.input_ids.shape[1], cache.k.data_ptr(), cache.num_bytes()))
        return forward(cache, batch)

    whole = make_llm(target, prefill_chunk_len=LENGTH).generate(prompts, PARAMS)
    monkeypatch.setattr(target, "forward", noted)
    chunked = make_llm(target, prefill_chunk_len=CHUNK).generate(prompts, PARAMS)
    assert ids_of(chunked) == ids_of(whole)
    assert [width for width, _, _ in passes] == [CHUNK] * (LENGTH // CHUNK) + [1] * 5
    row_bytes = 2 * 2 * 2 * 16 * target.info.dtype.itemsize  # k and v, layers, KV heads, width
    assert {size for _, _, size in passes} == {row_bytes * (LENGTH + 6 + PADDING_ROWS)}
    assert len({place for _, place, _ in passes}) == 1
    assert RunnerLimits().prefill_chunk_len == CHUNK  # what users get
