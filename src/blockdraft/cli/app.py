"""The command line: one file a command, one place for errors."""

from __future__ import annotations

import sys
import warnings

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

app = typer.Typer(
    help="The same text from a frozen language model, faster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
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


#: Exit code after Ctrl-C, as shells count it: 128 and the signal's number.
INTERRUPTED = 130


def main() -> None:
    """Run a command; whatever a user can cause prints one line.

    Exit codes: 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    warnings.showwarning = lambda message, *_: console.print(f"note: {message}", markup=False)
    try:
        app(prog_name="blockdraft")
    except UserError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
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
