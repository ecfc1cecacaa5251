"""`blockdraft evaluate`: acceptance, speed and text of several methods on the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockdraft.cli import options
from blockdraft.cli.evaluate_table import print_table

if TYPE_CHECKING:
    from blockdraft.evaluation.benchmark import Settings
    from blockdraft.evaluation.engines import Engine
    from blockdraft.evaluation.tasks import Task


#: Options that say how our own engine runs.
_OF_OUR_ENGINE = (
    "target",
    "methods",
    "candidates",
    "num_draft_tokens",
    "adaptive",
    "dtype",
    "exact",
    "weights",
)


_Out = Annotated[
    Path,
    typer.Option(
        "--out",
        callback=options.output,
        help="JSON file to write; folders that are missing are made.",
    ),
]
_Tasks = Annotated[
    str,
    typer.Option(
        help="gsm8k, math500, humaneval, mbpp, mt-bench, long-context, offline, or JSONL "
        "files; separated by commas."
    ),
]
_Methods = Annotated[
    str,
    typer.Option(help="plain, ngram, dflash2, dflash, or checkpoint folders; separated by commas."),
]
_NumPrompts = Annotated[int, typer.Option(help="Prompts of each task, drawn always alike; 0: all.")]
_Concurrency = Annotated[
    str, typer.Option(help="Prompts that run at once; several numbers by commas.")
]
_Temperature = Annotated[
    str, typer.Option(help="0 takes the likeliest token; several numbers by commas.")
]
_TopP = Annotated[
    float, typer.Option(help="Keep the likeliest tokens up to this sum, where sampled.")
]
_TopK = Annotated[int, typer.Option(help="Keep this many likeliest tokens, where sampled; 0: all.")]
_Seed = Annotated[
    int,
    typer.Option(
        help="Of sampling; prompt i takes seed + i, unless drafts are fitted to several requests."
    ),
]
_DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with local copies of the tasks, as eval/gsm8k.jsonl; the hub has the "
        "others. If not given: $BLOCKDRAFT_DATA."
    ),
]
_Candidates = Annotated[
    bool,
    typer.Option(
        "--candidates/--no-candidates",
        help="Also run the drafters untimed, for the recall of their candidates and the "
        "oracle's tau.",
    ),
]
_RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code",
        help="Run the programs that the target writes, to mark humaneval. No sandbox.",
    ),
]
_BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="Measure OpenAI-compatible servers in place of --target and --methods: a URL up "
        "to /v1, or name=URL parts separated by commas; one named plain is compared with."
    ),
]
_Model = Annotated[
    str | None,
    typer.Option(help="Model of those servers. If not given: the first that each lists."),
]


def evaluate(
    context: typer.Context,
    out: _Out,
    tasks: _Tasks = "offline",
    methods: _Methods = "plain,ngram",
    target: options.Target = "smollm2-135m",
    num_prompts: _NumPrompts = 20,
    max_tokens: options.MaxTokens = 256,
    concurrency: _Concurrency = "1",
    temperature: _Temperature = "0",
    top_p: _TopP = 1.0,
    top_k: _TopK = 0,
    seed: _Seed = 0,
    data_dir: _DataDir = None,
    candidates: _Candidates = True,
    run_code: _RunCode = False,
    base_url: _BaseUrl = None,
    model: _Model = None,
    num_draft_tokens: options.NumDraftTokens = None,
    adaptive: options.Adaptive = True,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
) -> None:
    """Measure methods on the same prompts, in turns. Interrupted, the same command resumes."""
    from blockdraft.evaluation.benchmark import Settings
    from blockdraft.evaluation.engines import local_engines
    from blockdraft.evaluation.lossless import rounding
    from blockdraft.evaluation.server_client import server_engines

    _check_server(context, base_url, model)
    settings = Settings(
        concurrency=options.numbers("--concurrency", concurrency, int),
        temperatures=options.numbers("--temperature", temperature, float),
        max_tokens=max_tokens,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        candidates=candidates,
        adaptive=adaptive and base_url is None,
    )
    loaded = _load_tasks(tasks, data_dir, num_prompts)
    engines: Mapping[str, Engine]
    if base_url is not None:
        engines, must_be_equal = server_engines(base_url, model), False
    else:
        llm = options.make_llm(
            target, "none", num_draft_tokens=None, dtype=dtype, exact=exact, weights=weights
        )
        engines = local_engines(
            llm, _names("--methods", methods), num_draft_tokens, adaptive=adaptive
        )
        must_be_equal = rounding.must_be_equal(llm)
    _measure(engines, loaded, settings, out, must_be_equal=must_be_equal, run_code=run_code)


def _check_server(context: typer.Context, base_url: str | None, model: str | None) -> None:
    from blockdraft.errors import ConfigError

    if base_url is not None:
        options.refuse_given(context, _OF_OUR_ENGINE, "--base-url: the server decides it")
    elif model is not None:
        raise ConfigError("--model is of no use without --base-url; name the target with --target")


def _load_tasks(names: str, data_dir: Path | None, num_prompts: int) -> list[Task]:
    from blockdraft.evaluation.tasks import load_task

    num = num_prompts if num_prompts else None
    return [
        load_task(name, data_dir=data_dir, num_prompts=num, log=options.note)
        for name in _names("--tasks", names)
    ]


def _measure(
    engines: Mapping[str, Engine],
    tasks: Sequence[Task],
    settings: Settings,
    out: Path,
    *,
    must_be_equal: bool,
    run_code: bool,
) -> None:
    from blockdraft.evaluation.evaluate import check_equal, evaluate

    result = evaluate(
        engines,
        tasks,
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
