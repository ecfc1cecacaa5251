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

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end figures -->)", re.DOTALL)


def decode_speed(result: dict[str, Any]) -> str:
    """The table of README's section on speed."""
    rows, about = result["rows"], result["provenance"]
    plain, cost, cycle = rows["plain"], rows["rows"], rows["cycle"]
    ngram, limit = rows["ngram"], rows["limit"]
    rate = plain["tokens_per_s"]
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
        f"| outside the two models (select, accept, bookkeeping) | "
        f"{cycle['outside_models_share']:.1%} of a cycle of {cycle['cycle_ms']:.1f} ms with a "
        f"3-layer DFlash 2 drafter; convolutions and selector "
        f"{cycle['conv_and_selector_share']:.1%} |",
        f"| memory limit | {limit['weight_bytes'] / 1e6:.0f} MB of weights at "
        f"{limit['read_gb_s']:.0f} GB/s would take {limit['limit_ms']:.1f} ms; a pass of one row "
        f"takes {limit['pass_ms']:.1f} ms |",
    ]
    return "\n".join(lines) + "\n"


FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {"decode_speed": decode_speed}


def rewrite(text: str) -> str:
    """Every block of figures made anew from its JSON."""

    def block(match: re.Match[str]) -> str:
        head, name, tail = match.groups()
        result = json.loads((RESULTS / f"{name}.json").read_text())
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
    for name in stale:
        print(f"{'out of date' if '--check' in sys.argv[1:] else 'rewritten'}: {name}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
