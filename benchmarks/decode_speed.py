"""Decoding speed at batch 1: against transformers, against rows a pass, and where a cycle goes.

python -m benchmarks.decode_speed --out benchmarks/results/decode_speed.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import alternate, milliseconds, read_bandwidth_gb_s, write_result
from blockdraft import LLM, SamplingParams
from blockdraft.evaluation.provenance import provenance
from blockdraft.registry import load_drafter
from blockdraft.targets.base import RowBatch
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.targets.native import NativeTarget
from blockdraft.targets.sources import resolve

ROWS = (1, 2, 4, 8, 16, 32)
SUMMARISE = (
    "Write the minutes of this meeting: repeat each decision word for word, then who said it.\n\n"
    "Anna: We decided to move the library to the new building in March. Ben: We decided to close "
    "the old reading room on the first of February. Carla: We decided to keep the opening hours "
    "from nine in the morning to six in the evening. Anna: We decided to ask the town for forty "
    "new chairs and ten tables. Ben: We decided to sell the old shelves. Carla: We decided to "
    "meet again on the second of May."
)


def main() -> None:
    """Measure everything and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--context", type=int, default=256, help="cached tokens")
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    llm = LLM(args.target, "none", dtype="bfloat16", kernels=args.kernels)
    rows: dict[str, Any] = {}
    with torch.inference_mode():
        rows["plain"] = against_transformers(llm, args.target, args)
        rows["rows"] = cost_of_rows(llm, args)
        rows["cycle"] = cycle_split(llm, args)
        rows["ngram"] = ngram_gain(llm, args)
        rows["limit"] = memory_limit(llm, rows["rows"])
    settings = {key: value for key, value in vars(args).items() if key != "out"}
    write_result(args.out, provenance(llm.describe(), seed=0), settings, rows)


def prompt_ids(llm: LLM, length: int) -> list[int]:
    """Real text of a given length."""
    text = " ".join([SUMMARISE] * (length // 60 + 1))
    return llm.loaded.codec.encode(text)[:length]


def against_transformers(llm: LLM, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens/s after the first token: ours plain, and transformers `generate`, same weights."""
    reference, ids = transformers_model(name), prompt_ids(llm, args.context)
    batch = torch.tensor([ids])
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)

    def ours() -> float:
        [output] = llm.generate(ids, params)
        return (args.tokens - 1) / output.timing.decode_s

    def theirs() -> float:
        def seconds(tokens: int) -> float:
            start = time.perf_counter()
            reference.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
            return time.perf_counter() - start

        return (args.tokens - 1) / (seconds(args.tokens) - seconds(1))

    rates = alternate({"blockdraft": ours, "transformers": theirs}, args.rounds)
    ratio = rates["blockdraft"]["median"] / rates["transformers"]["median"]
    return {"tokens_per_s": rates, "ratio": ratio}


def transformers_model(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The same weights in transformers."""
    import transformers

    source = resolve(name)
    config = transformers.AutoConfig.for_model(**source.config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = model.to_empty(device="cpu")
    state = {key: source.weights[key].to(dtype) for key in source.weights}
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


def cost_of_rows(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    """Time of one pass against the rows it checks."""
    ids = torch.tensor([prompt_ids(llm, args.context + max(ROWS))])
    cache = llm.target.new_cache(1, ids.shape[1])
    prefix = RowBatch(ids[:, : args.context], (args.context,), logits_for="none")
    llm.target.forward(cache, prefix)

    def one_pass(num_rows: int) -> Callable[[], object]:
        batch = RowBatch(ids[:, args.context : args.context + num_rows], (num_rows,))

        def run() -> None:
            llm.target.forward(cache, batch)
            cache.crop(0, args.context)

        return run

    times = alternate({str(n): milliseconds(one_pass(n)) for n in ROWS}, args.rounds)
    return {"pass_ms": times, "ratio_8_to_1": times["8"]["median"] / times["1"]["median"]}


def cycle_split(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    """What a cycle with the shipped drafters pays beside the target's pass.

    The convolutions' cost is the difference between a DFlash 2 and a DFlash pass.
    """
    ids = prompt_ids(llm, args.context)
    engines = {
        method: LLM.from_parts(llm.loaded, load_drafter(method, llm.target))
        for method in ("dflash2", "dflash")
    }
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
    phases = ("draft", "select", "verify", "other")

    def per_cycle(engine: LLM, phase: str, store: dict[str, float]) -> Callable[[], float]:
        def run() -> float:
            if phase == phases[0]:
                [output] = engine.generate(ids, params)
                cycles = output.speculation.cycles
                for name in phases:
                    store[name] = getattr(output.timing, f"{name}_s") / cycles * 1e3
            return store[phase]

        return run

    runs = {}
    for method, engine in engines.items():
        store: dict[str, float] = {}
        runs |= {f"{method} {phase}": per_cycle(engine, phase, store) for phase in phases}
    times = alternate(runs, args.rounds)
    ms = {name: value["median"] for name, value in times.items()}
    total = sum(ms[f"dflash2 {phase}"] for phase in phases)
    conv = max(0.0, ms["dflash2 draft"] - ms["dflash draft"])
    return {
        "ms_per_cycle": times,
        "cycle_ms": total,
        "outside_models_share": (ms["dflash2 select"] + ms["dflash2 other"]) / total,
        "conv_and_selector_share": (conv + ms["dflash2 select"]) / total,
    }


def ngram_gain(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    """End to end, prompt included: n-gram drafting on a prompt whose answer repeats it."""
    drafting = LLM.from_parts(llm.loaded, load_drafter("ngram", llm.target))
    params = SamplingParams(max_tokens=160)
    outputs: dict[str, Any] = {}

    def run(name: str, engine: LLM) -> Callable[[], float]:
        def measure() -> float:
            [outputs[name]] = engine.generate(SUMMARISE, params)
            return outputs[name].usage.completion_tokens / outputs[name].timing.total_s

        return measure

    rates = alternate({"plain": run("plain", llm), "ngram": run("ngram", drafting)}, args.rounds)
    return {
        "tokens_per_s": rates,
        "speedup": rates["ngram"]["median"] / rates["plain"]["median"],
        "mean_acceptance_length": outputs["ngram"].speculation.mean_acceptance_length,
        "same_tokens": outputs["ngram"].token_ids == outputs["plain"].token_ids,
    }


def memory_limit(llm: LLM, rows: dict[str, Any]) -> dict[str, Any]:
    """The least time of a pass if reading the weights were all of it."""
    target = llm.target
    assert isinstance(target, DecoderTarget | NativeTarget)
    bandwidth, weights = read_bandwidth_gb_s(), target.num_weight_bytes()
    limit_ms = weights / bandwidth / 1e6
    return {
        "weight_bytes": weights,
        "read_gb_s": bandwidth,
        "limit_ms": limit_ms,
        "pass_ms": rows["pass_ms"]["1"]["median"],
        "share_of_limit": limit_ms / rows["pass_ms"]["1"]["median"],
    }


if __name__ == "__main__":
    main()
