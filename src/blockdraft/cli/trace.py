"""`blockdraft trace`: a page that shows each cycle of one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM
    from blockdraft.types import SamplingParams


_Prompt = Annotated[
    str | None, typer.Argument(help="The prompt; - reads it from stdin. Or give --from.")
]
_JsonOut = Annotated[
    Path | None,
    typer.Option(
        "--json",
        callback=options.output,
        help="JSON file to write the trace to; folders that are missing are made.",
    ),
]
_Source = Annotated[
    Path | None,
    typer.Option("--from", help="Make the page of such a file; no model is loaded."),
]

#: Parameters that mean something beside --from.
_OF_THE_PAGE = ("prompt", "out", "json_out", "source")


def trace(
    context: typer.Context,
    prompt: _Prompt = None,
    out: options.HtmlFile = None,
    json_out: _JsonOut = None,
    source: _Source = None,
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "auto",
    no_drafter: options.NoDrafter = False,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    raw: options.Raw = False,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
) -> None:
    """Answer a prompt and show each cycle: candidates, path, what was accepted and why not."""
    _check_ends(prompt, source, out, json_out)
    if source is not None:
        found = _read(context, source)
    else:
        assert prompt is not None
        text = options.read_prompt(prompt)
        params = options.sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            stop=stop,
        )
        llm = options.make_llm(
            target,
            drafter,
            no_drafter=no_drafter,
            num_draft_tokens=num_draft_tokens,
            dtype=dtype,
            exact=exact,
            weights=weights,
        )
        found = _record(llm, text, raw, params)
    _write(found, out, json_out, source)


def _check_ends(
    prompt: str | None, source: Path | None, out: Path | None, json_out: Path | None
) -> None:
    from blockdraft.errors import ConfigError

    if (prompt is None) == (source is None):
        raise ConfigError("give either a PROMPT to answer, or --from with the JSON of a trace")
    if out is None and json_out is None:
        raise ConfigError("nothing to write; give -o PAGE.html or --json TRACE.json, or both")


def _read(context: typer.Context, source: Path) -> dict[str, Any]:
    """A trace that was made before; what would change how it is made is refused."""
    from blockdraft.report.load import load_trace

    names = [p.name for p in context.command.params if p.name and p.name not in _OF_THE_PAGE]
    options.refuse_given(context, names, "--from: the trace is made already")
    return load_trace(source)


def _record(llm: LLM, text: str, raw: bool, params: SamplingParams) -> dict[str, Any]:
    from blockdraft.evaluation.trace import record_trace

    return record_trace(llm, llm.loaded.codec.encode(text) if raw else text, params)


def _write(
    found: dict[str, Any], out: Path | None, json_out: Path | None, source: Path | None
) -> None:
    from blockdraft.report.trace_page import page_of_file, trace_page
    from blockdraft.report.write import write_text

    if json_out is not None:
        write_text(json_out, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
        options.note(f"wrote {json_out}")
    if out is not None:
        page = trace_page(found) if source is None else page_of_file(found, source)
        write_text(out, page)
        options.note(f"wrote {out}; open it in a browser")
    if found.get("error") is not None:
        options.note(f"error: {found['error']}")
        raise typer.Exit(1)
