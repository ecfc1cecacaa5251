"""Attention of the rows that are drafted: to their own block, and to the context, by layer.

    python -m benchmarks.findings.attention --out benchmarks/results/findings_attention.json \\
        --checkpoints dflash2 path/to/a/dflash/checkpoint

Every checkpoint decodes the same prompts greedily (see `asked`), with its backbone in PyTorch and
bfloat16, one prompt at a time; every cycle counts alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.findings.asked import Asked, ask, ids_of, open_drafter
from benchmarks.findings.attention_watch import PARTS, AttentionWatch
from benchmarks.harness import write_result
from blockdraft import LLM, SamplingParams
from blockdraft.drafters.backbone import Backbone
from blockdraft.engine.runner import RunnerLimits
from blockdraft.evaluation.provenance import provenance
from blockdraft.kernels import onednn


def main() -> None:
    """Measure every checkpoint; the JSON grows with each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--checkpoints", nargs="+", default=["dflash2"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-set", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    llm = LLM(args.target, "none", dtype=args.dtype)
    asked, rows, drafters = ask(args.per_set), [], []
    for place in args.checkpoints:
        print(f"{place}: {len(asked)} prompts", file=sys.stderr, flush=True)
        row, drafter = measure(llm, place, asked, args.tokens)
        rows.append(row)
        drafters.append(drafter)
        about = {**llm.describe(), "drafter": drafters}
        settings = {name: getattr(args, name) for name in ("target", "dtype", "per_set", "tokens")}
        write_result(
            args.out,
            provenance(about, seed=0, prompts=ids_of(asked)),
            settings | {"greedy": True},
            rows,
        )


def measure(
    llm: LLM, place: str, asked: Sequence[Asked], num_tokens: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attention of one checkpoint over the cycles of its own greedy decoding.

    Returns: the result row, and what the drafter is.
    """
    # Native passes keep no attention; these kernels differ from them in rounding alone.
    can_pack = str(llm.target.device) == "cpu" and onednn.is_available()
    drafter = open_drafter(place, llm.target, kernels="onednn" if can_pack else "torch")
    backbone, config = drafter.model.backbone, drafter.model.config
    assert isinstance(backbone, Backbone)
    watch = AttentionWatch(backbone.kernels, config.num_layers, 1 + drafter.num_draft_tokens)
    backbone.kernels = watch
    engine = LLM.from_parts(llm.loaded, drafter, RunnerLimits(max_batch_size=1))
    outputs = engine.generate(
        [each.text for each in asked],
        SamplingParams(max_tokens=num_tokens),
        on_output=lambda i, _: print(f"  {i + 1} of {len(asked)}", file=sys.stderr, flush=True),
    )
    by_row = watch.figures()
    cycles = sum(output.speculation.cycles for output in outputs)
    row = {
        "method": drafter.name,
        "drafter": drafter.model.source,
        "has_convolution": config.has_selector,
        "windows": list(config.windows),
        "num_blocks": watch.num_blocks,
        "mean_context_len": watch.context_len / max(watch.num_blocks, 1),
        "tau_pooled": sum(output.speculation.committed for output in outputs) / cycles,
        "layers": [_drafted(rows) for rows in by_row],
        "layers_by_row": by_row,
    }
    return row, drafter.describe()


def _drafted(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the rows that draft: all but the anchor's."""
    return {part: sum(row[part] for row in rows[1:]) / (len(rows) - 1) for part in PARTS}


if __name__ == "__main__":
    main()
