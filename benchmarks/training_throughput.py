"""Trained slots a second: our step against that of speculators, on the CPU.

    pip install --no-deps --target FOLDER speculators==0.9.0   # in an environment of its own
    python -m benchmarks.training_throughput --speculators-python VENV/bin/python [--threads 1]

The same drafter (DFlash 2: 3 layers of width 576, the whole vocabulary of 49,152), the same
sequences, blocks and loss (cross entropy, fixed decay, the selector's), bfloat16 products over
float32 masters, AdamW. Each runs in a process of its own, in turns, one step at a time; medians are
told. speculators computes its eager losses, with both attentions that run on a CPU; the faster one
is compared with. Results of several `--threads` stand side by side in the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import alternate, write_result
from benchmarks.rivals.process import Rival
from benchmarks.rivals.training_shape import Sizes

OUT = Path(__file__).parent / "results" / "training_throughput.json"

#: What issue and README ask for.
BAR = 1.5


def main() -> None:
    """Measure one number of threads, and write it beside the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--speculators-python", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--anchors", type=int, default=32, help="blocks of a sequence")
    parser.add_argument("--draft-vocab-size", type=int, default=8192, help="of ours, beside")
    parser.add_argument("--attention", default="eager,sdpa", help="of speculators")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    sizes = Sizes(args.sequences, args.length, args.prompt_len, args.anchors)
    found, about = measure(args, sizes)
    rows = _others(args.out, args.threads, asdict(sizes))
    rows[str(args.threads)] = row(found, about)
    settings = {**asdict(sizes), "slots_per_step": sizes.num_slots, "loss": "ce", "bar": BAR}
    write_result(args.out, about["ours"]["provenance"], settings, rows)


def measure(args: argparse.Namespace, sizes: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Slots a second of each, and what each says of itself."""
    told = [part for k, v in asdict(sizes).items() for part in (f"--{k.replace('_', '-')}", str(v))]
    small = ["--draft-vocab-size", str(args.draft_vocab_size)]
    with contextlib.ExitStack() as stack:

        def start(module: str, *more: str, python: Path | str = sys.executable) -> Rival:
            rival = Rival(module, *told, *more, python=python, threads=args.threads)
            return stack.enter_context(rival)

        workers = {"ours": start("train_ours")}
        workers["ours, draft vocabulary"] = start("train_ours", *small)
        for kind in args.attention.split(","):
            workers[f"speculators, {kind}"] = start(
                "train_speculators", "--attention", kind, python=args.speculators_python
            )
        about = {name: worker.about for name, worker in workers.items()}

        def speed(name: str) -> float:
            done = workers[name].ask("step")
            return float(done["slots"] / done["seconds"])

        runs = {name: (lambda name=name: speed(name)) for name in workers}
        return alternate(runs, args.rounds, warmup=1), about


def row(found: Mapping[str, Mapping[str, float]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Speeds, and ours by the rival's better one."""
    rivals = {name: each["median"] for name, each in found.items() if "speculators" in name}
    best = max(rivals, key=rivals.__getitem__)
    ratio = found["ours"]["median"] / rivals[best]
    workers = {
        name: {k: v for k, v in each.items() if k != "provenance"} for name, each in about.items()
    }
    return {
        "slots_per_s": dict(found),
        "compared_with": best,
        "ratio": ratio,
        "is_reached": ratio >= BAR,
        "workers": workers,
    }


def _others(out: Path, threads: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Rows of other numbers of threads, if they are of the same sizes."""
    if not out.is_file():
        return {}
    before = json.loads(out.read_text("utf-8"))
    is_same = all(before["settings"].get(name) == value for name, value in sizes.items())
    return {k: v for k, v in before["rows"].items() if k != str(threads)} if is_same else {}


if __name__ == "__main__":
    main()
