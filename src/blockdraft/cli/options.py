"""Options that several commands share, and the engine and parameters they make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Target = Annotated[
    str,
    typer.Option(help="smollm2-135m, a hub id, a local folder, or a .gguf file."),
]
Drafter = Annotated[
    str,
    typer.Option(
        help="auto: the one made for the target with ngram lookup before it, else ngram alone. Or "
        "ngram, dflash2, dflash, none, or a checkpoint folder; +ngram may follow a drafter."
    ),
]
NoDrafter = Annotated[bool, typer.Option("--no-drafter", help="The same as --drafter none.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32 or bfloat16. If not given: bfloat16 where the processor computes in it, "
        "else float32."
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Greedy text is that of plain decoding bit for bit, in bfloat16 too. Native kernels "
        "are so without it.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="int8: matrices rounded to 8 bits, half the bytes to read; the rounded model is then "
        "the target. bfloat16: expanded where kernels could read the bytes of a GGUF file itself. "
        "If not given: as they are."
    ),
]
NumDraftTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens drafted a cycle; 0 decodes plainly. If not given: the drafter's own."
    ),
]
Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive/--no-adaptive",
        help="Fit drafts to the load where several requests run at once: shorter, looked-up ones "
        "alone, or none. One request alone, or one sampled with a seed, has whole blocks.",
    ),
]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this sum.")]
TopK = Annotated[int, typer.Option(help="Keep this many likeliest tokens; 0: all.")]
MinP = Annotated[
    float, typer.Option(help="Drop tokens less likely than this share of the likeliest one.")
]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same text. If not given: a fresh one.")
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End the text before this string; may be given several times."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is: no chat template.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value over the recipe; may be given several times."),
]


def output(path: Path | None) -> Path | None:
    """A file to write, checked before the work and not after it.

    Raises: ConfigError if it is a folder, or cannot be in one.
    """
    from blockdraft.errors import ConfigError

    if path is not None and path.is_dir():
        raise ConfigError(f"{path} is a folder; give the file to write")
    parents = () if path is None else path.parents
    blocked = next((each for each in parents if each.exists() and not each.is_dir()), None)
    if blocked is not None:
        raise ConfigError(f"{path} cannot be written: {blocked} is a file and no folder")
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--out", callback=output, help="JSON file to write; folders that are missing are made."
    ),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        callback=output,
        help="HTML page to write; folders that are missing are made.",
    ),
]


def note(message: str) -> None:
    """One line for the user; results alone go to stdout."""
    print(message, file=sys.stderr, flush=True)


def check_text(name: str, text: str) -> None:
    """Raise ConfigError unless it can be written as UTF-8.

    Bytes that are no text come from the shell and from stdin as lone surrogates.
    """
    from blockdraft.errors import ConfigError

    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text; convert it first") from error


def read_prompt(prompt: str) -> str:
    """The prompt itself, or stdin for `-`; checked before a model is loaded for it."""
    from blockdraft.errors import ConfigError

    try:
        text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin is not {error.encoding} text; convert it first") from error
    check_text("the prompt", text)
    if not text:
        raise ConfigError("the prompt is empty; give some text")
    return text


def make_llm(
    target: str,
    drafter: str,
    *,
    dtype: str | None,
    exact: bool,
    num_draft_tokens: int | None,
    no_drafter: bool | None = None,
    **more: Any,
) -> Any:
    """The engine these options ask for. Imported late: `--help` must not wait for PyTorch.

    `no_drafter` is None for commands that have a use for a number of drafts without a drafter.
    """
    from blockdraft.engine.llm import LLM
    from blockdraft.errors import ConfigError

    if no_drafter and drafter not in ("auto", "none"):
        raise ConfigError(f"--no-drafter and --drafter {drafter} contradict each other; give one")
    drafter = "none" if no_drafter else drafter
    if no_drafter is not None and drafter == "none" and num_draft_tokens:
        raise ConfigError(
            f"--num-draft-tokens {num_draft_tokens} and no drafter contradict each other; give one"
        )
    return LLM(
        target,
        drafter,
        dtype=dtype,
        exact=exact,
        num_draft_tokens=num_draft_tokens,
        log=note,
        **more,
    )


def sampling(*, stop: Sequence[str] | None, **more: Any) -> Any:
    """The parameters these options ask for. Raises: ConfigError naming one that is not allowed."""
    from blockdraft.types import SamplingParams

    check_text("--stop", "".join(stop or ()))
    return SamplingParams(stop=tuple(stop or ()), **more)


_Number = TypeVar("_Number", int, float)


def numbers(option: str, given: str, kind: Callable[[str], _Number]) -> tuple[_Number, ...]:
    """A list like `1,4,16`. Raises: ConfigError naming the option."""
    from blockdraft.errors import ConfigError

    try:
        return tuple(kind(word) for word in given.split(","))
    except ValueError as error:
        raise ConfigError(f"{option} is {given!r}; give numbers separated by commas") from error


def refuse_given(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Options that would be ignored are not accepted.

    Args:
        names: parameters of the command.
        why: what makes them useless, for the message.
    Raises: ConfigError naming those that were given.
    """
    from blockdraft.errors import ConfigError

    flags = {p.name: max(p.opts, key=len) for p in context.command.params}
    given = [
        flags[name]
        for name in names
        if getattr(context.get_parameter_source(name), "name", "DEFAULT") == "COMMANDLINE"
    ]
    if given:
        raise ConfigError(f"{', '.join(given)}: of no use with {why}; leave it out")
