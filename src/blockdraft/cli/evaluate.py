"""`blockdraft evaluate`: acceptance, speed and text of several methods on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.evaluation.engines import Engine


#: Options that say how our own engine runs.
_OF_OUR_ENGINE = (
    "target",
    "methods",
    "candidates",
    "num_draft_tokens",
    "dtype",
    "exact",
    "weights",
)


def evaluate(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="JSON file to write.")],
    tasks: Annotated[
        str,
        typer.Option(
            help="gsm8k, math500, humaneval, mbpp, mt-bench, long-context, offline, or JSONL "
            "files; separated by commas."
        ),
    ] = "offline",
    methods: Annotated[
        str,
        typer.Option(
            help="plain, ngram, dflash2, dflash, or checkpoint folders; separated by commas."
        ),
    ] = "plain,ngram",
    target: options.Target = "smollm2-135m",
    num_prompts: Annotated[
        int, typer.Option(help="Prompts of each task, drawn always alike; 0: all.")
    ] = 20,
    max_tokens: options.MaxTokens = 256,
    concurrency: Annotated[
        str, typer.Option(help="Prompts that run at once; several numbers by commas.")
    ] = "1",
    temperature: Annotated[
        str, typer.Option(help="0 takes the likeliest token; several numbers by commas.")
    ] = "0",
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens up to this sum, where sampled.")
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Keep this many likeliest tokens, where sampled; 0: all.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of sampling; prompt i takes seed + i.")] = 0,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with local copies of the tasks, as eval/gsm8k.jsonl; the hub has the "
            "others. If not given: $BLOCKDRAFT_DATA."
        ),
    ] = None,
    candidates: Annotated[
        bool,
        typer.Option(
            "--candidates/--no-candidates",
            help="Also run the drafters untimed, for the recall of their candidates and the "
            "oracle's tau.",
        ),
    ] = True,
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run the programs that the target writes, to mark humaneval. No sandbox.",
        ),
    ] = False,
    base_url: Annotated[
        str | None,
        typer.Option(
            help="Measure OpenAI-compatible servers in place of --target and --methods: a URL up "
            "to /v1, or name=URL parts separated by commas; one named plain is compared with."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model of those servers. If not given: the first that each lists."),
    ] = None,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
) -> None:
    """Measure methods on the same prompts, in turns. Interrupted, the same command resumes."""
    from blockdraft.errors import ConfigError
    from blockdraft.evaluation.benchmark import Settings
    from blockdraft.evaluation.engines import local_engines
    from blockdraft.evaluation.evaluate import check_equal
    from blockdraft.evaluation.evaluate import evaluate as measure
    from blockdraft.evaluation.lossless import rounding
    from blockdraft.evaluation.server_client import server_engines
    from blockdraft.evaluation.tasks import load_task

    if base_url is not None:
        options.refuse_given(context, _OF_OUR_ENGINE, "--base-url: the server decides it")
    elif model is not None:
        raise ConfigError("--model is of no use without --base-url; name the target with --target")
    settings = Settings(
        concurrency=options.numbers("--concurrency", concurrency, int),
        temperatures=options.numbers("--temperature", temperature, float),
        max_tokens=max_tokens,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        candidates=candidates,
    )
    num = num_prompts if num_prompts else None
    loaded = [
        load_task(name, data_dir=data_dir, num_prompts=num, log=options.note)
        for name in _names("--tasks", tasks)
    ]
    engines: Mapping[str, Engine]
    if base_url is not None:
        engines, must_be_equal = server_engines(base_url, model), False
    else:
        llm = options.make_llm(
            target, "none", dtype=dtype, exact=exact, num_draft_tokens=None, weights=weights
        )
        engines = local_engines(llm, _names("--methods", methods), num_draft_tokens)
        must_be_equal = rounding.must_be_equal(llm)
    result = measure(
        engines,
        loaded,
        settings,
        out,
        must_be_equal=must_be_equal,
        run_code=run_code,
        log=options.note,
    )
    print_table(result["rows"])
    check_equal(result["rows"])


def _names(option: str, given: str) -> list[str]:
    from blockdraft.errors import ConfigError

    names = [name.strip() for name in given.split(",")]
    if not all(names):
        raise ConfigError(f"{option} is {given!r}; give names separated by commas")
    return names


#: Heads of the table's columns and how each is filled.
_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "task": lambda row: str(row["task"]),
    "method": lambda row: Path(row["method"]).name,
    "at once": lambda row: str(row["concurrency"]),
    "T": lambda row: f"{row['temperature']:g}",
    "tau": lambda row: _shown(row["tau"]),
    "95 %": lambda row: "{:.2f}-{:.2f}".format(*row["tau_ci95"]) if row["tau_ci95"] else "-",
    "pooled": lambda row: _shown(row["tau_pooled"]),
    "tokens/s": lambda row: _shown(row["tokens_per_s"], ".1f"),
    "speed-up": lambda row: _shown(row["speedup"]),
    "median": lambda row: _shown(row["speedup_median"]),
    "decode": lambda row: _shown(row["decode_speedup"]),
    "predicted": lambda row: _shown(row["predicted_speedup"]),
    "accuracy": lambda row: _shown(row["accuracy"], ".1%"),
    "diverged": lambda row: _shown(row["divergence_rate"], ".1%"),
    "repeat": lambda row: _shown(row["mean_longest_repeat"], ".0f"),
    "4-grams": lambda row: _shown(row["distinct_4grams"]),
}


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The figures that are looked at first; the file has all of them."""
    lines = [list(_COLUMNS), *([fill(row) for fill in _COLUMNS.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _shown(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
