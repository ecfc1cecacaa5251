"""Candidates, ways to choose among them, and repeated text: what the selector of DFlash 2 gives.

    python -m benchmarks.findings.selector --out benchmarks/results/findings_selector.json

Greedy answers to the first turns of five public sets (see `asked`). The drafter drafts after every
token of the answers and nothing is accepted, so that each way to choose can be followed along the
cycles it would have had. That this is what decoding does is checked on decoding itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.findings.asked import Asked, ask, ids_of, open_drafter
from benchmarks.findings.blocks import AnswerBlocks, collect
from benchmarks.findings.figures import COUNTS, chooser_figures, count_figures, repeat_figures
from benchmarks.findings.selector_time import measure_times
from benchmarks.harness import write_result
from blockdraft import LLM, SamplingParams
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.errors import ConfigError
from blockdraft.evaluation.provenance import provenance


def main() -> int:
    """Returns 1 if decoding itself has other cycles than were found."""
    args = _arguments()
    llm = LLM(args.target, "none", dtype=args.dtype, max_batch_size=args.batch)
    shipped = open_drafter(args.drafter, llm.target)
    if not isinstance(shipped, DFlash2Drafter):
        raise ConfigError(f"{args.drafter} is a {shipped.name} drafter: it has no selector")
    asked, top_k = ask(args.per_set), shipped.model.config.selector_top_k
    wide = open_drafter(args.drafter, llm.target, selector_top_k=max(*COUNTS, top_k))
    assert isinstance(wide, DFlash2Drafter)
    _say(f"{len(asked)} prompts: drafting after every token")
    answers = collect(llm, wide, asked, args.tokens)
    _say("comparing")
    rows: dict[str, Any] = {
        "selector_top_k": top_k,
        "num_draft_tokens": shipped.num_draft_tokens,
        "num_answers": len(answers),
        "candidates": count_figures(answers, top_k),
        "choosers": chooser_figures(answers, top_k),
        "repeats": repeat_figures(answers, top_k),
    }
    _say("decoding with each number of candidates")
    rows["decoding"] = {
        str(n): _decoded(llm, args, asked, answers, n) for n in (top_k, *args.check)
    }
    _say("timing")
    rows["times"] = measure_times(llm, args.drafter, COUNTS[1:], args.rounds)
    about = LLM.from_parts(llm.loaded, shipped).describe()
    settings = {
        name: getattr(args, name) for name in ("target", "dtype", "per_set", "tokens", "batch")
    }
    write_result(
        args.out,
        provenance(about, seed=0, prompts=ids_of(asked)),
        settings | {"greedy": True},
        rows,
    )
    return 0 if _agrees(rows) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", default="dflash2", help="a dflash2 checkpoint's folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-set", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="prompts answered at once")
    parser.add_argument("--rounds", type=int, default=15, help="of the times")
    parser.add_argument(
        "--check",
        type=int,
        nargs="*",
        choices=COUNTS[1:],
        default=[2, 32],
        help="more numbers of candidates to decode with",
    )
    return parser.parse_args()


def _decoded(
    llm: LLM,
    args: argparse.Namespace,
    asked: Sequence[Asked],
    answers: Sequence[AnswerBlocks],
    num_candidates: int,
) -> dict[str, Any]:
    """Real decoding, with a drafter opened with so many candidates."""
    drafter = open_drafter(args.drafter, llm.target, selector_top_k=num_candidates)
    engine = LLM.from_parts(llm.loaded, drafter, llm.limits)
    outputs = engine.generate([each.text for each in asked], SamplingParams(max_tokens=args.tokens))
    written = dict(zip(asked, (output.token_ids for output in outputs), strict=True))
    # An output leaves its end token out.
    different = [
        each.asked.id
        for each in answers
        if written[each.asked] not in (each.answer_ids, each.answer_ids[:-1])
    ]
    committed = sum(output.speculation.committed for output in outputs)
    cycles = sum(output.speculation.cycles for output in outputs)
    return {
        "committed": committed,
        "cycles": cycles,
        "tau_pooled": committed / cycles,
        "num_different_texts": len(different),
    }


def _agrees(rows: dict[str, Any]) -> bool:
    """Whether decoding wrote the same texts in as many cycles as were found."""
    return all(
        own["cycles"] == rows["candidates"][n]["walk"]["cycles"] and not own["num_different_texts"]
        for n, own in rows["decoding"].items()
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
