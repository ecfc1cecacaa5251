"""Options that several commands share, and the engine and parameters they make."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

Target = Annotated[
    str,
    typer.Option(help="smollm2-135m, a hub id, a local folder, or a .gguf file."),
]
Drafter = Annotated[
    str,
    typer.Option(help="auto, ngram, dflash2, dflash, none, or a checkpoint folder."),
]
NoDrafter = Annotated[bool, typer.Option("--no-drafter", help="Decode plainly.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="float32 or bfloat16; bfloat16 where the machine computes in it."),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="bfloat16 with passes of one shape: drafting changes nothing."),
]
NumDraftTokens = Annotated[
    int | None, typer.Option(help="Most tokens drafted a cycle; 0 decodes plainly.")
]


def note(message: str) -> None:
    """One line for the user; results alone go to stdout."""
    print(message, file=sys.stderr, flush=True)


def make_llm(
    target: str,
    drafter: str,
    *,
    dtype: str | None,
    exact: bool,
    num_draft_tokens: int | None,
    no_drafter: bool = False,
    **more: Any,
) -> Any:
    """The engine these options ask for. Imported late: `--help` must not wait for PyTorch."""
    from blockdraft.engine.llm import LLM
    from blockdraft.errors import ConfigError

    if no_drafter and drafter not in ("auto", "none"):
        raise ConfigError(f"--no-drafter and --drafter {drafter} contradict each other; give one")
    return LLM(
        target,
        "none" if no_drafter else drafter,
        dtype=dtype,
        exact=exact,
        num_draft_tokens=num_draft_tokens,
        log=note,
        **more,
    )
