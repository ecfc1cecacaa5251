"""`blockdraft check-lossless`: does drafting change the output of these models?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM

_BATCH = 16

#: What --quick takes in place of the defaults.
_QUICK = {"num_prompts": 6, "max_tokens": 48, "num_contexts": 2, "num_samples": 400, "depth": 3}


def check_lossless(
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "auto",
    task: Annotated[
        str,
        typer.Option(
            help="Prompts: offline, gsm8k, math500, humaneval, mbpp, mt-bench, or a JSONL file."
        ),
    ] = "offline",
    num_prompts: Annotated[
        int | None, typer.Option(help="Greedy texts to compare. If not given: 16.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of each. If not given: 96.")
    ] = None,
    contexts: Annotated[
        int | None,
        typer.Option(help="Texts after which the law is tested. If not given: 4."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Sampled requests after each. If not given: 2000.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Tokens of each request to test. If not given: 4.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the sampled requests; above 0.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this sum.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens less likely than this share of the likeliest one.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    alpha: Annotated[
        float, typer.Option(help="Chance that a run without a fault fails all the same.")
    ] = 1e-3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer texts and requests: sees gross faults only.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with local copies of the tasks. If not given: $BLOCKDRAFT_DATA."),
    ] = None,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32 or bfloat16. If not given: greedy texts in both, the law of sampled "
            "tokens in the one that `generate` takes."
        ),
    ] = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
    out: Annotated[Path | None, typer.Option("--out", help="JSON file to write.")] = None,
) -> None:
    """Does drafting change the output? Compares greedy texts, tests the law of sampled tokens."""
    from blockdraft.evaluation.lossless.check import PASS, write
    from blockdraft.evaluation.lossless.check import check_lossless as check
    from blockdraft.evaluation.lossless.lines import lines
    from blockdraft.evaluation.lossless.settings import LosslessSettings
    from blockdraft.evaluation.tasks import load_task

    given = {
        "num_prompts": num_prompts,
        "max_tokens": max_tokens,
        "num_contexts": contexts,
        "num_samples": samples,
        "depth": depth,
    }
    sizes = (_QUICK if quick else {}) | {k: v for k, v in given.items() if v is not None}
    settings = LosslessSettings(
        **sizes,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        alpha=alpha,
    )
    prompts = load_task(task, data_dir=data_dir, log=options.note)
    last: list[LLM] = []

    def make(kind: str) -> LLM:
        last.clear()
        llm: LLM = options.make_llm(
            target,
            drafter,
            dtype=kind,
            exact=exact and kind == "bfloat16",
            num_draft_tokens=num_draft_tokens,
            max_batch_size=_BATCH,
            weights=weights,
        )
        last.append(llm)
        return llm

    result = check(make, _dtypes(dtype, weights), prompts, settings, options.note)
    for line in lines(result, last[0].loaded.codec.decode):
        print(line)
    if out is not None:
        write(result, out)
    if result.verdict != PASS:
        raise typer.Exit(1)


def _dtypes(given: str | None, weights: str | None) -> list[str]:
    """Those to check; the last one also samples."""
    if given is not None:
        return [given]
    if weights is not None:  # rounded weights are computed with in bfloat16 alone
        return ["bfloat16"]
    import torch

    from blockdraft.targets.load import find_dtype

    default = str(find_dtype(None, torch.device("cpu"))).removeprefix("torch.")
    return [name for name in ("float32", "bfloat16") if name != default] + [default]
