"""`blockdraft trace`: a page that shows each cycle of one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blockdraft.cli import options


def trace(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - reads it from stdin. Or give --from.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="HTML page to write.")] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="JSON file to write the trace to.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Make the page of such a file; no model is loaded."),
    ] = None,
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "auto",
    no_drafter: options.NoDrafter = False,
    max_tokens: options.MaxTokens = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this sum.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many likeliest tokens; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens less likely than this share of the likeliest one.")
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed gives the same text. If not given: a fresh one."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End the text before this string; may be given several times."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")
    ] = False,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
) -> None:
    """Answer a prompt and show each cycle: candidates, path, what was accepted and why not."""
    from blockdraft.errors import ConfigError
    from blockdraft.report.load import load_trace
    from blockdraft.report.trace_page import trace_page
    from blockdraft.report.write import write_text

    if (prompt is None) == (source is None):
        raise ConfigError("give either a PROMPT to answer, or --from with the JSON of a trace")
    if out is None and json_out is None:
        raise ConfigError("nothing to write; give -o PAGE.html or --json TRACE.json, or both")
    if source is not None:
        kept = ("prompt", "out", "json_out", "source")
        names = [p.name for p in context.command.params if p.name and p.name not in kept]
        options.refuse_given(context, names, "--from: the trace is made already")
        found = load_trace(source)
    else:
        assert prompt is not None
        found = _record(
            options.read_prompt(prompt),
            raw,
            {
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "seed": seed,
                "stop": tuple(stop or ()),
            },
            {
                "target": target,
                "drafter": drafter,
                "dtype": dtype,
                "exact": exact,
                "weights": weights,
                "num_draft_tokens": num_draft_tokens,
                "no_drafter": no_drafter,
            },
        )
    if json_out is not None:
        write_text(json_out, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
        options.note(f"wrote {json_out}")
    if out is not None:
        write_text(out, trace_page(found))
        options.note(f"wrote {out}; open it in a browser")
    if found.get("error") is not None:
        options.note(f"error: {found['error']}")
        raise typer.Exit(1)


def _record(
    text: str, raw: bool, sampling: dict[str, Any], models: dict[str, Any]
) -> dict[str, Any]:
    from blockdraft.evaluation.trace import record_trace
    from blockdraft.types import SamplingParams

    options.check_text("--stop", "".join(sampling["stop"]))
    params = SamplingParams(**sampling)
    llm = options.make_llm(**models)
    return record_trace(llm, llm.loaded.codec.encode(text) if raw else text, params)
