"""transformers `generate` on the same weights, greedy.

python -m benchmarks.rivals.hf TARGET
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from benchmarks.decode_speed import transformers_model
from benchmarks.rivals.worker import serve


def main() -> None:
    """Serve."""
    model = transformers_model(sys.argv[1])

    def run(prompts: list[list[int]], tokens: int, end_ids: Sequence[int]) -> list[list[int]]:
        """Answers without padding: each up to and with its end token."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        limits: dict[str, Any] = {"eos_token_id": list(end_ids)} if end_ids else {}
        if not end_ids:
            limits["min_new_tokens"] = tokens
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                **limits,
            )
        return [_until_end(row, end_ids) for row in out[:, width:].tolist()]

    def timed(prompts: list[list[int]], tokens: int, end_ids: Sequence[int]) -> Any:
        start = time.perf_counter()
        found = run(prompts, tokens, end_ids)
        return found, time.perf_counter() - start

    def generate(ids: list[int], tokens: int, end_ids: Sequence[int] = ()) -> dict[str, Any]:
        _, first_s = timed([ids], 1, end_ids)
        [found], total_s = timed([ids], tokens, end_ids)
        return {"token_ids": found, "total_s": total_s, "decode_s": total_s - first_s}

    def batch(prompts: list[list[int]], tokens: int, end_ids: Sequence[int]) -> dict[str, Any]:
        found, seconds = timed(prompts, tokens, end_ids)
        return {"seconds": seconds, "tokens": sum(map(len, found))}

    about = {"engine": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    serve({"generate": generate, "batch": batch}, about)


def _until_end(ids: list[int], end_ids: Sequence[int]) -> list[int]:
    for i, token_id in enumerate(ids):
        if token_id in end_ids:
            return ids[: i + 1]
    return ids


if __name__ == "__main__":
    main()
