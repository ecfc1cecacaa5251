"""`blockdraft check-lossless`: does drafting change the output of these models?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM
    from blockdraft.evaluation.lossless.settings import LosslessSettings
    from blockdraft.evaluation.tasks import Task

_BATCH = 16

#: What --quick takes in place of the defaults.
_QUICK = {"num_prompts": 6, "max_tokens": 48, "num_contexts": 2, "num_samples": 400, "depth": 3}


_Task = Annotated[
    str,
    typer.Option(
        help="Prompts: offline, gsm8k, math500, humaneval, mbpp, mt-bench, or a JSONL file."
    ),
]
_NumPrompts = Annotated[int | None, typer.Option(help="Greedy texts to compare. If not given: 16.")]
_MaxTokens = Annotated[int | None, typer.Option(help="Most tokens of each. If not given: 96.")]
_Contexts = Annotated[
    int | None, typer.Option(help="Texts after which the law is tested. If not given: 4.")
]
_Samples = Annotated[
    int | None, typer.Option(help="Sampled requests after each. If not given: 2000.")
]
_Depth = Annotated[
    int | None, typer.Option(help="Tokens of each request to test. If not given: 4.")
]
_Temperature = Annotated[float, typer.Option(help="Of the sampled requests; above 0.")]
_Seed = Annotated[int, typer.Option(help="Of sampling.")]
_Alpha = Annotated[
    float, typer.Option(help="Chance that a run without a fault fails all the same.")
]
_Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer texts and requests: sees gross faults only.")
]
_DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with local copies of the tasks. If not given: $BLOCKDRAFT_DATA."),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32 or bfloat16. If not given: greedy texts in both, the law of sampled "
        "tokens in the one that `generate` takes."
    ),
]


def check_lossless(
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "auto",
    task: _Task = "offline",
    num_prompts: _NumPrompts = None,
    max_tokens: _MaxTokens = None,
    contexts: _Contexts = None,
    samples: _Samples = None,
    depth: _Depth = None,
    temperature: _Temperature = 1.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: _Seed = 0,
    alpha: _Alpha = 1e-3,
    quick: _Quick = False,
    data_dir: _DataDir = None,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: _Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
    out: options.JsonFile = None,
) -> None:
    """Does drafting change the output? Compares greedy texts, tests the law of sampled tokens."""
    from blockdraft.evaluation.lossless.settings import LosslessSettings
    from blockdraft.evaluation.tasks import load_task

    sizes = _sizes(
        quick,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        num_contexts=contexts,
        num_samples=samples,
        depth=depth,
    )
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

    def make(kind: str) -> LLM:
        llm: LLM = options.make_llm(
            target,
            drafter,
            num_draft_tokens=num_draft_tokens,
            dtype=kind,
            exact=exact and kind == "bfloat16",
            max_batch_size=_BATCH,
            weights=weights,
        )
        return llm

    _check(make, _dtypes(dtype, weights), prompts, settings, out)


def _sizes(quick: bool, **given: int | None) -> dict[str, int]:
    """What was given; without it what --quick takes, or else the settings' own."""
    return (_QUICK if quick else {}) | {k: v for k, v in given.items() if v is not None}


def _check(
    make: Callable[[str], LLM],
    dtypes: list[str],
    prompts: Task,
    settings: LosslessSettings,
    out: Path | None,
) -> None:
    from blockdraft.evaluation.lossless.check import PASS, check_lossless, write
    from blockdraft.evaluation.lossless.lines import lines

    last: list[LLM] = []

    def make_alone(kind: str) -> LLM:
        last.clear()  # the models of one dtype make room for those of the next
        last.append(make(kind))
        return last[0]

    result = check_lossless(make_alone, dtypes, prompts, settings, options.note)
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
