"""Greedy text with every drafter, batch and block size against plain decoding and transformers.

    python -m benchmarks.greedy_equality --out benchmarks/results/greedy_equality.json
    python -m benchmarks.greedy_equality --dtype bfloat16 --per-set 40 --no-transformers --full \
        --batches 8 1 --blocks 8 --out benchmarks/results/greedy_equality_bfloat16.json

Prompts: the first of each evaluation set in $BLOCKDRAFT_DATA/eval (default ../shared/data/eval), or
any JSONL file of `{"id", "turns": [..]}` rows given with --tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_speed import transformers_model
from benchmarks.harness import write_result
from blockdraft import LLM, SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.engine.runner import RunnerLimits
from blockdraft.evaluation.provenance import provenance
from blockdraft.interop.new_drafter import NewDrafter, write_new_drafter
from blockdraft.registry import load_drafter
from tests.fakes.scripted import ScriptedDrafter

SETS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")
BATCHES, BLOCKS = (8, 3, 1), (2, 4, 8, 16)
#: `dflash` and `dflash2` are copied from the target, untrained; `shipped` comes with the package.
METHODS = ("ngram", "scripted", "dflash", "dflash2", "shipped")


def main() -> int:
    """Returns 1 if any text differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--tasks", type=Path, nargs="*")
    parser.add_argument("--per-set", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS)
    parser.add_argument("--full", action="store_true", help="every drafter everywhere")
    parser.add_argument("--no-transformers", action="store_true")
    args = parser.parse_args()
    llm = LLM(args.target, "none", dtype=args.dtype, exact=args.exact, kernels=args.kernels)
    prompts = [llm.loaded.codec.encode_chat(chat) for chat in read_prompts(args)]
    params = SamplingParams(max_tokens=args.tokens)
    oracle = [out.token_ids for out in llm.generate(prompts, params)]
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "tasks")}
    settings["num_prompts"] = len(prompts)
    rows: list[dict[str, Any]] = []
    drafters: dict[str, Any] = {}
    about = {**provenance(llm.describe(), seed=0), "drafter": drafters}
    if not args.no_transformers:
        rows.append(compare("transformers", 1, 1, oracle, theirs(args, llm, prompts)))
    for name, batch, block, drafter in runs(args, llm, prompts, oracle):
        engine = LLM.from_parts(llm.loaded, drafter, RunnerLimits(max_batch_size=batch))
        found = [out.token_ids for out in engine.generate(prompts, params)]
        described = engine.describe()["drafter"]
        # Where an untrained one was written for this run says nothing; its hash does.
        drafters[name] = {key: described[key] for key in described if key != "source"}
        rows.append(compare(name, batch, block, oracle, found))
        write_result(args.out, about, settings, rows)  # as it grows: the whole takes a while
    return 1 if any(row["num_different"] for row in rows) else 0


def read_prompts(args: argparse.Namespace) -> Iterator[list[dict[str, str]]]:
    """First user turns as chats."""
    folder = Path(os.environ.get("BLOCKDRAFT_DATA", "../shared/data")) / "eval"
    for path in args.tasks or [folder / f"{name}.jsonl" for name in SETS]:
        with path.open(encoding="utf-8") as file:
            for line in [next(file) for _ in range(args.per_set)]:
                yield [{"role": "user", "content": json.loads(line)["turns"][0]}]


def theirs(
    args: argparse.Namespace, llm: LLM, prompts: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """What transformers `generate` writes with the same weights."""
    model = transformers_model(args.target, getattr(torch, args.dtype))
    found = []
    for ids in prompts:
        batch = torch.tensor([ids])
        with torch.inference_mode():
            out = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=args.tokens,
                do_sample=False,
                eos_token_id=list(llm.target.info.end_ids),
                pad_token_id=0,
            )
        found.append(tuple(out[0, len(ids) :].tolist()))
    return found


def runs(
    args: argparse.Namespace,
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    oracle: Sequence[Sequence[int]],
) -> Iterator[tuple[str, int, int, Drafter | None]]:
    """Every batch and block size: name, batch size, block size, drafter.

    Unless `--full`, one drafter each, in rotation: every drafter meets every batch size, and three
    of the four block sizes.
    """
    known = {tuple(p): list(o) for p, o in zip(prompts, oracle, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        for method in ("dflash", "dflash2"):
            path = Path(folder) / method
            asked = NewDrafter(method=method, num_layers=2, block_size=16, copy_layers=True)
            write_new_drafter(args.target, asked, path, log=lambda _: None)
        for i, batch in enumerate(args.batches):
            yield "plain", batch, 1, None
            for j, block in enumerate(args.blocks):
                methods = METHODS if args.full else (METHODS[(i + j) % len(METHODS)],)
                for method in methods:
                    drafter = make_drafter(method, batch, block, Path(folder), llm, known)
                    yield method, batch, block, drafter


def make_drafter(
    method: str, batch: int, block: int, folder: Path, llm: LLM, known: dict[Any, Any]
) -> Drafter | None:
    """A drafter that drafts block - 1 tokens; `scripted` is right four times in five."""
    k = block - 1
    if method == "scripted":
        coin = random.Random(batch * 100 + block)
        vocab_size = llm.target.info.vocab_size
        return ScriptedDrafter(known, lambda cycle, j: coin.random() < 0.8, k, vocab_size)
    # The shipped drafter drafts seven tokens at most: a longer block is lowered with a notice.
    places: dict[str, str | Path] = {"ngram": "ngram", "shipped": "dflash2"}
    place = places.get(method, folder / method)
    return load_drafter(place, llm.target, num_draft_tokens=k)


def compare(
    name: str, batch: int, block: int, want: Sequence[Any], got: Sequence[Any]
) -> dict[str, Any]:
    """How many prompts' tokens differ."""
    different = [i for i, (a, b) in enumerate(zip(want, got, strict=True)) if tuple(a) != tuple(b)]
    row = {
        "method": name,
        "batch_size": batch,
        "block_size": block,
        "num_prompts": len(want),
        "num_tokens": sum(len(ids) for ids in want),
        "num_different": len(different),
        "different": different,
    }
    print(row, file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
