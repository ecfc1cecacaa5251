"""`blockdraft generate`: one prompt, streamed, with its speed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM
    from blockdraft.engine.outputs import Output


_Prompt = Annotated[
    str, typer.Argument(help="The prompt; - reads it from stdin, less one newline at its end.")
]
_System = Annotated[str | None, typer.Option(help="System message of the chat.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, no text.")]
_Stats = Annotated[
    bool, typer.Option("--stats", help="Afterwards say on stderr where the time went.")
]


def generate(
    prompt: _Prompt,
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
    system: _System = None,
    raw: options.Raw = False,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
    as_json: _AsJson = False,
    stats: _Stats = False,
) -> None:
    """Generate text: exactly what the target alone would write, faster."""
    _check_system(system, raw)
    params = options.sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop,
    )
    text = options.read_prompt(prompt)
    llm: LLM = options.make_llm(
        target,
        drafter,
        no_drafter=no_drafter,
        num_draft_tokens=num_draft_tokens,
        dtype=dtype,
        exact=exact,
        weights=weights,
    )
    output = _run(llm, _as_prompt(llm, text, system, raw), params, show=not as_json)
    if as_json:
        print(json.dumps(as_dict(llm, output), ensure_ascii=False))
    if stats:
        _print_stats(llm, output)
    if output.error is not None:
        options.note(f"error: {output.error}")
        raise typer.Exit(1)


def _check_system(system: str | None, raw: bool) -> None:
    from blockdraft.errors import ConfigError

    if raw and system is not None:
        raise ConfigError("--raw and --system contradict each other; give one")
    options.check_text("--system", system or "")


def _as_prompt(llm: LLM, text: str, system: str | None, raw: bool) -> Any:
    if raw:
        return llm.loaded.codec.encode(text)
    if system is None:
        return text
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def _run(llm: LLM, prompt: Any, params: Any, show: bool) -> Output:
    output, is_line_open = None, False
    try:
        for piece in llm.stream(prompt, params):
            if show:
                print(piece.text, end="", flush=True)
                is_line_open = True
            output = piece.output or output
    finally:
        if is_line_open:  # also after Ctrl-C: what is said next begins a line
            print()
    assert output is not None
    return output


def as_dict(llm: LLM, output: Output) -> dict[str, Any]:
    """The public JSON object of one answer (`docs/reference/generate_json.md`)."""
    from blockdraft.evaluation.provenance import provenance

    speculation, timing = output.speculation, output.timing
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "error": output.error,
        "usage": vars(output.usage),
        "speculation": {
            "cycles": speculation.cycles,
            "drafted": speculation.drafted,
            "accepted": speculation.accepted,
            "committed": speculation.committed,
            "mean_acceptance_length": speculation.mean_acceptance_length,
            "accepted_by_position": list(speculation.accepted_by_position),
            "drafted_by_position": list(speculation.drafted_by_position),
        },
        "timing": {
            "prefill_s": timing.prefill_s,
            "draft_s": timing.draft_s,
            "select_s": timing.select_s,
            "verify_s": timing.verify_s,
            "other_s": timing.other_s,
            "decode_s": timing.decode_s,
            "total_s": timing.total_s,
        },
        "provenance": provenance(llm.describe(), seed=output.seed),
    }


def _print_stats(llm: LLM, output: Output) -> None:
    from rich.console import Console
    from rich.table import Table

    timing, speculation, tokens = output.timing, output.speculation, output.usage.completion_tokens
    table = Table(title="whole clock", title_justify="left")
    for name in ("phase", "seconds", "share"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for name in ("prefill", "draft", "select", "verify", "other", "total"):
        seconds = getattr(timing, f"{name}_s")
        share = seconds / timing.total_s if timing.total_s else 0.0
        table.add_row(name, f"{seconds:.4f}", f"{share:.1%}")
    console = Console(stderr=True)
    console.print(table)
    rate = f", {(tokens - 1) / timing.decode_s:.1f}/s after the first" if tokens > 1 else ""
    length = speculation.mean_acceptance_length
    console.print(
        f"drafter: {llm.describe()['drafter']['name']}; tokens: {tokens}{rate}; drafts accepted: "
        f"{speculation.accepted} of {speculation.drafted}; cycles: {speculation.cycles}"
        + (f", {length:.2f} tokens each" if length is not None else ""),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
