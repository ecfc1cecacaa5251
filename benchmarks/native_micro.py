"""What a pass costs against its number of rows: the matrices alone, and the whole pass.

    python benchmarks/native_micro.py [--out R.json]

A random model of SmolLM2-135M's shape (30 layers, width 576, vocabulary 49,152; 121 matrices,
269 MB in bfloat16). Row counts are measured alternately, round by round, so that a neighbour on
the same cores disturbs all of them alike; minimum and median are told. The last line of stdout is
the JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockdraft.kernels.native import (
    LayerWeights,
    ModelWeights,
    NativeLinear,
    NativePass,
    Span,
    set_num_threads,
    usable_isas,
)
from blockdraft.kernels.native.library import default_num_threads, load
from blockdraft.kernels.native.structs import ISAS, OUT_BF16

ROWS = (1, 4, 8, 12, 16, 32, 64)
LAYERS, WIDTH, HEADS, KV_HEADS, DIM, FFN, VOCAB = 30, 576, 9, 3, 64, 1536, 49152


def matrix(*shape: int) -> Tensor:
    return (torch.randn(*shape) * shape[-1] ** -0.5).bfloat16()


def random_model(max_len: int) -> ModelWeights:
    angles = torch.arange(max_len)[:, None] * 1e5 ** (-torch.arange(0, DIM, 2) / DIM)
    layers = [
        LayerWeights(
            attention_norm=torch.ones(WIDTH),
            qkv=matrix((HEADS + 2 * KV_HEADS) * DIM, WIDTH),
            output=matrix(WIDTH, HEADS * DIM),
            mlp_norm=torch.ones(WIDTH),
            gate_up=matrix(2 * FFN, WIDTH),
            down=matrix(WIDTH, FFN),
        )
        for _ in range(LAYERS)
    ]
    return ModelWeights(
        layers=layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        final_norm=torch.ones(WIDTH),
        head=matrix(VOCAB, WIDTH),
        cosine=angles.cos(),
        sine=angles.sin(),
        norm_eps=1e-5,
    )


def matrices_runner(weights: ModelWeights, isa: str, dtype: torch.dtype) -> Callable[[int], None]:
    """All 121 products back to back, called as directly as Python can."""
    tensors = [w for x in weights.layers for w in (x.qkv, x.output, x.gate_up, x.down)]
    assert isinstance(weights.head, Tensor)
    layers = [NativeLinear(w, isa=isa, dtype=dtype) for w in (*tensors, weights.head)]
    x = torch.randn(max(ROWS), max(w.shape[1] for w in tensors)).bfloat16()
    y = torch.empty(max(ROWS), VOCAB, dtype=torch.bfloat16)
    run, index = load().bd_run_linear, ISAS.index(isa)

    def runner(num_rows: int) -> None:
        for layer in layers:
            struct = ctypes.byref(layer.linear.struct)
            run(index, struct, x.data_ptr(), num_rows, y.data_ptr(), OUT_BF16)

    return runner


def pass_runner(
    weights: ModelWeights, isa: str, dtype: torch.dtype, context: int, top_k: int
) -> Callable[[int], None]:
    """Whole passes of one sequence after `context` cached rows."""
    model = NativePass(weights, isa, dtype)
    shape = (LAYERS, 1, context + max(ROWS), KV_HEADS, DIM)
    k, v = torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(shape, dtype=torch.bfloat16)
    ids = torch.randint(0, VOCAB, (context + max(ROWS),))
    model.forward(k, v, ids[:context], [Span(0, 0, context)], head_rows=())

    def runner(num_rows: int) -> None:
        spans = [Span(0, context, num_rows)]
        logits = None if top_k else torch.float32
        model.forward(k, v, ids[context : context + num_rows], spans, logits=logits, top_k=top_k)

    return runner


def measure(runners: dict[str, Callable[[int], None]], repeats: int) -> dict[str, Any]:
    """Times of each runner and row count in milliseconds, taken in turns."""
    times: dict[str, dict[int, list[float]]] = {
        name: {rows: [] for rows in ROWS} for name in runners
    }
    for repeat in range(repeats + 1):
        for name, runner in runners.items():
            for rows in ROWS:
                start = time.perf_counter()
                runner(rows)
                if repeat > 0:  # the first round warms up
                    times[name][rows].append(1e3 * (time.perf_counter() - start))
    return {name: summary(by_rows) for name, by_rows in times.items()}


def summary(by_rows: dict[int, list[float]]) -> dict[str, Any]:
    medians = [statistics.median(by_rows[rows]) for rows in ROWS]
    minima = [min(by_rows[rows]) for rows in ROWS]
    return {
        "median_ms": [round(value, 3) for value in medians],
        "min_ms": [round(value, 3) for value in minima],
        "median_of_8_rows_over_1": round(medians[ROWS.index(8)] / medians[0], 3),
        "min_of_8_rows_over_1": round(minima[ROWS.index(8)] / minima[0], 3),
    }


def provenance() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": models[0] if models else platform.processor(),
        "load_average": [round(load_, 2) for load_ in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=default_num_threads())
    parser.add_argument("--isa", action="append", choices=ISAS, help="default: the fastest")
    parser.add_argument("--weights", action="append", choices=("bfloat16", "int8"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    set_num_threads(arguments.threads)
    weights = random_model(arguments.context + max(ROWS))
    runners: dict[str, Callable[[int], None]] = {}
    for isa in arguments.isa or usable_isas()[-1:]:
        for name in arguments.weights or ["bfloat16"]:
            dtype = getattr(torch, name)
            matrices = matrices_runner(weights, isa, dtype)
            logits = pass_runner(weights, isa, dtype, arguments.context, 0)
            argmax = pass_runner(weights, isa, dtype, arguments.context, 1)
            runners[f"{isa} {name}: 121 matrices"] = matrices
            runners[f"{isa} {name}: pass, logits"] = logits
            runners[f"{isa} {name}: pass, argmax"] = argmax
    results = measure(runners, arguments.repeats)
    for name, result in results.items():
        cells = zip(ROWS, result["min_ms"], result["median_ms"], strict=True)
        print(
            f"{name:32}",
            *(f"{rows}: {low:.2f}-{mid:.2f}" for rows, low, mid in cells),
            file=sys.stderr,
        )
    report = {
        "provenance": provenance(),
        "settings": {
            "rows": list(ROWS),
            "context": arguments.context,
            "threads": arguments.threads,
            "repeats": arguments.repeats,
            "weight_bytes": 2 * (LAYERS * 3_538_944 + VOCAB * WIDTH),
        },
        "results": results,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
