"""The command line: one file a command, one place for errors."""

from __future__ import annotations

import sys
import warnings

import typer
from rich.console import Console

from blockdraft.cli.demo import demo
from blockdraft.cli.generate import generate
from blockdraft.cli.init_drafter import init_drafter
from blockdraft.cli.inspect import inspect
from blockdraft.cli.pull import pull
from blockdraft.errors import ConfigError, UserError

app = typer.Typer(
    help="The same text from a frozen language model, faster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate)
app.command("demo")(demo)
app.command("pull")(pull)
app.command("inspect")(inspect)
app.command("init-drafter")(init_drafter)


def main() -> None:
    """Run a command; a user's mistake prints one line. Exit code 1: failure, 2: wrong usage."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    warnings.showwarning = lambda message, *_: console.print(f"note: {message}", markup=False)
    try:
        app()
    except UserError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        console.print("interrupted", markup=False)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        sys.exit(1)
