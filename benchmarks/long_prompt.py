"""Prompts of up to 4k tokens: time of each chunk, and memory against what was predicted.

python -m benchmarks.long_prompt --out benchmarks/results/long_prompt.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_speed import prompt_ids
from benchmarks.harness import write_result
from blockdraft import LLM
from blockdraft.cache.target_kv import PADDING_ROWS
from blockdraft.evaluation.provenance import provenance
from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import RowBatch


def main() -> None:
    """Prefill once in chunks, and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=512)
    args = parser.parse_args()
    llm = LLM(args.target, "none", dtype=args.dtype, kernels=args.kernels)
    ids = torch.tensor([prompt_ids(llm, args.tokens)])
    with torch.inference_mode(), torch_on_one_thread(llm.target.has_own_threads):
        _prefill(llm, ids[:, : args.chunk], args.chunk)  # warm up
        rows = _prefill(llm, ids, args.chunk)
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    write_result(args.out, provenance(llm.describe(), seed=0), settings, rows)


def _prefill(llm: LLM, ids: torch.Tensor, chunk_len: int) -> dict[str, Any]:
    num_tokens = ids.shape[1]
    cache = llm.target.new_cache(1, num_tokens)
    chunk_ms = []
    for start in range(0, num_tokens, chunk_len):
        part = ids[:, start : start + chunk_len]
        begin = time.perf_counter()
        llm.target.forward(cache, RowBatch(part, (part.shape[1],), logits_for="last"))
        chunk_ms.append((time.perf_counter() - begin) * 1e3)
    config = llm.target.config  # type: ignore[attr-defined]
    row_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    row_bytes *= llm.target.info.dtype.itemsize
    return {
        "num_tokens": num_tokens,
        "chunk_ms": chunk_ms,
        "total_s": sum(chunk_ms) / 1e3,
        "tokens_per_s": num_tokens / sum(chunk_ms) * 1e3,
        "last_to_first_chunk": chunk_ms[-1] / chunk_ms[0],
        "predicted_cache_bytes": row_bytes * (num_tokens + PADDING_ROWS),
        "cache_bytes": cache.num_bytes(),
    }


if __name__ == "__main__":
    main()
