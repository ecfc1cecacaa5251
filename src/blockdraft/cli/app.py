"""The command line: one file a command, one place for errors."""

from __future__ import annotations

import platform
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, cast

import typer
from rich.console import Console

from blockdraft.cli.check_lossless import check_lossless
from blockdraft.cli.demo import demo
from blockdraft.cli.doctor import doctor
from blockdraft.cli.evaluate import evaluate
from blockdraft.cli.generate import generate
from blockdraft.cli.init_drafter import init_drafter
from blockdraft.cli.inspect import inspect
from blockdraft.cli.plan import plan
from blockdraft.cli.pull import pull
from blockdraft.cli.regenerate import regenerate
from blockdraft.cli.report import report
from blockdraft.cli.trace import trace
from blockdraft.cli.train import train
from blockdraft.errors import ConfigError, UserError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command("generate")(generate)
app.command("demo")(demo)
app.command("evaluate")(evaluate)
app.command("check-lossless")(check_lossless)
app.command("plan")(plan)
app.command("report")(report)
app.command("trace")(trace)
app.command("pull")(pull)
app.command("regenerate")(regenerate)
app.command("train")(train)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.command("init-drafter")(init_drafter)

#: Exit codes: wrong usage; after Ctrl-C, as shells count it, 128 and the signal's number.
USAGE, INTERRUPTED = 2, 130

#: Whatever the parser refuses. Its module differs from one version of typer to the next.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


@app.callback(invoke_without_command=True)
def blockdraft(
    context: typer.Context,
    has_version: Annotated[
        bool, typer.Option("--version", help="Say which versions these are, and exit.")
    ] = False,
) -> None:
    """The same text from a frozen language model, faster."""
    if has_version:
        print(version_line())
        raise typer.Exit
    if context.invoked_subcommand is None:
        if text := context.get_help():  # with rich it is printed already
            print(text)
        raise typer.Exit(USAGE)


def version_line() -> str:
    """What a report of a fault should begin with; read without importing PyTorch."""
    python, torch = platform.python_version(), version("torch")
    return f"blockdraft {version('blockdraft')}, python {python}, torch {torch}"


def usage_line(error: typer.BadParameter) -> str:
    """What the parser refused, as one line in the form of our own errors."""
    said = " ".join(error.format_message().splitlines()).rstrip(".")
    said = said.replace(". Did you mean", "; did you mean") + _given(error)
    end = " " if said.endswith("?") else "; "
    return f"{said[:1].lower()}{said[1:]}{end}`{_path(error)} --help` says what is allowed"


def _given(error: typer.BadParameter) -> str:
    """The value that is wrong, where the message leaves it out: pydantic's tell of it apart."""
    errors = getattr(error.__cause__, "errors", None)
    return f" (given: {errors()[0]['input']!r})" if callable(errors) else ""


def _path(error: typer.BadParameter) -> str:
    """The command that was typed; an option that lacks its value does not know of which it is."""
    if error.ctx is not None:
        return error.ctx.command_path
    typed = {command.name or "" for command in app.registered_commands}.intersection(sys.argv[1:2])
    return " ".join(("blockdraft", *typed))


def main() -> None:
    """Run a command; whatever a user can cause prints one line.

    Exit codes: 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    warnings.showwarning = lambda message, *_: console.print(f"note: {message}", markup=False)
    try:
        sys.exit(app(prog_name="blockdraft", standalone_mode=False))
    except UsageError as error:
        console.print(f"error: {usage_line(error)}", markup=False)
        sys.exit(USAGE)
    except UserError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(USAGE if isinstance(error, ConfigError) else 1)
    except UnicodeEncodeError as error:
        part = ascii(error.object[error.start : error.end])
        console.print(
            f"error: the output is {error.encoding}, which cannot write {part}; "
            "set PYTHONIOENCODING=utf-8",
            markup=False,
        )
        sys.exit(1)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        console.print(f"error: {where}{error.strerror or error}", markup=False)
        sys.exit(1)
    except SystemExit as end:  # typer turns Ctrl-C into an exit code without a word
        if end.code == INTERRUPTED:
            console.print("interrupted", markup=False)
        raise
