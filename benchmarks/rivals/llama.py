"""llama.cpp through llama-cpp-python's own C interface: one sequence, greedy.

    python -m benchmarks.rivals.llama MODEL.gguf THREADS [no-repacking]

Logits come from `llama_decode` as they are and the greatest is found by numpy: no sampler chain,
no text, nothing of the Python wrapper in the clock.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.rivals.worker import median_ms, serve

CONTEXT_LEN, BATCH_LEN = 2048, 512
_QUIET = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)


class Llama:
    """A model and one context of it.

    `repacks` lets it lay weights out anew for AMX and the like. Release 0.3.36 then crashes at Q4_1
    in its first pass of several rows.
    """

    def __init__(self, path: str, num_threads: int, *, repacks: bool = True) -> None:
        llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        # Memory of its own and no flash attention: the quickest of the four ways when tried.
        settings = llama_cpp.llama_model_default_params()
        settings.use_mmap = False
        settings.use_extra_bufts = repacks
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT_LEN, BATCH_LEN, BATCH_LEN
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_threads = params.n_threads_batch = num_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self.cached: list[int] = []
        self.batch = llama_cpp.llama_batch_init(BATCH_LEN, 0, 1)

    def decode(self, ids: Sequence[int], start: int, *, all_logits: bool) -> None:
        """One pass over `ids` at positions from `start` on."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token_id in enumerate(ids):
            batch.token[i], batch.pos[i] = token_id, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == len(ids) - 1
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def logits(self, row: int = -1) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logits of a row of the last pass (a view)."""
        pointer = llama_cpp.llama_get_logits_ith(self.context, row)
        return np.ctypeslib.as_array(
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocab_size,)
        )

    def crop(self, length: int) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, 0, length, -1)

    def prefill(self, ids: Sequence[int]) -> None:
        self.cached = list(ids)
        self.crop(0)
        for start in range(0, len(ids), BATCH_LEN):
            self.decode(ids[start : start + BATCH_LEN], start, all_logits=False)


def main() -> None:
    """Serve."""
    llama = Llama(sys.argv[1], int(sys.argv[2]), repacks="no-repacking" not in sys.argv[3:])

    def generate(ids: list[int], tokens: int, end_ids: Sequence[int] = ()) -> dict[str, Any]:
        """Greedy text, up to and with the first of `end_ids`."""
        start = time.perf_counter()
        llama.prefill(ids)
        llama.cached = []
        out = [int(np.argmax(llama.logits()))]
        first = time.perf_counter()
        while len(out) < tokens and out[-1] not in end_ids:
            llama.decode(out[-1:], len(ids) + len(out) - 1, all_logits=False)
            out.append(int(np.argmax(llama.logits())))
        end = time.perf_counter()
        return {"token_ids": out, "total_s": end - start, "decode_s": end - first}

    def gaps(ids: list[int], among: list[int]) -> dict[str, Any]:
        """The logits of tokens `among` after `ids`."""
        llama.prefill(ids)
        return {"logits": [float(llama.logits()[i]) for i in among]}

    def one_pass(context: list[int], rows: list[int], repeats: int = 5) -> dict[str, Any]:
        """Time of one pass over `rows` after `context`, logits of every row."""
        if llama.cached != context:
            llama.prefill(context)
        length = len(context)
        run = lambda: llama.decode(rows, length, all_logits=True)  # noqa: E731
        return {"ms": median_ms(run, lambda: llama.crop(length), repeats)}

    info = llama_cpp.llama_print_system_info().decode()
    about = {"engine": f"llama-cpp-python {llama_cpp.__version__}", "system": info}
    serve({"generate": generate, "gaps": gaps, "pass": one_pass}, about)


if __name__ == "__main__":
    main()
