"""Our own engine as a worker.

python -m benchmarks.rivals.ours --kernels native --drafter none --batch 64
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.rivals.worker import median_ms, serve
from blockdraft import LLM, SamplingParams
from blockdraft.cache.base import TargetCache
from blockdraft.evaluation.provenance import provenance
from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import RowBatch
from blockdraft.targets.native import NativeTarget

ROOM = 128  # rows of the longest pass


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--weights", help="bfloat16: expanded in memory")
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    llm = LLM(
        args.target,
        args.drafter,
        dtype="bfloat16",
        kernels=args.kernels,
        weights=args.weights,
        max_batch_size=args.batch,
        prefill_chunk_len=1024,
    )

    def params(tokens: int, end_ids: Sequence[int]) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, ignore_eos=not end_ids)

    def generate(ids: list[int], tokens: int, end_ids: Sequence[int] = ()) -> dict[str, Any]:
        [out] = llm.generate([ids], params(tokens, end_ids))
        spec = out.speculation
        return {
            "token_ids": list(out.token_ids),
            "total_s": out.timing.total_s,
            "decode_s": out.timing.decode_s,
            "mean_acceptance_length": spec.mean_acceptance_length,
        }

    def batch(
        prompts: list[list[int]],
        tokens: int,
        end_ids: Sequence[int],
        record_layer_ids: Sequence[int] = (),
    ) -> dict[str, Any]:
        start, total = time.perf_counter(), 0
        asked = llm.generate_each(
            prompts, params(tokens, end_ids), record_layer_ids=tuple(record_layer_ids)
        )
        for _, output in asked:
            total += len(output.token_ids)
        return {"seconds": time.perf_counter() - start, "tokens": total}

    @functools.cache
    def cached(context: tuple[int, ...]) -> TargetCache:
        """A cache that holds `context` and has room for the rows of a pass."""
        cache = llm.target.new_cache(1, len(context) + ROOM)
        batch = RowBatch(torch.tensor([context]), (len(context),), logits_for="none")
        llm.target.forward(cache, batch)
        return cache

    @torch.inference_mode()
    def one_pass(context: list[int], rows: list[int], repeats: int = 5) -> dict[str, Any]:
        length = len(context)
        with torch_on_one_thread(llm.target.has_own_threads):
            cache = cached(tuple(context))
            asked = RowBatch(torch.tensor([rows]), (len(rows),))
            ms = median_ms(
                lambda: llm.target.forward(cache, asked), lambda: cache.crop(0, length), repeats
            )
        return {"ms": ms}

    operations = {"generate": generate, "batch": batch, "pass": one_pass}
    end_ids = list(llm.target.info.end_ids)
    about: dict[str, Any] = {"end_ids": end_ids, **provenance(llm.describe(), seed=0)}
    if isinstance(llm.target, NativeTarget):
        about["weight_bytes"] = llm.target.num_weight_bytes()
    serve(operations, about)


if __name__ == "__main__":
    main()
