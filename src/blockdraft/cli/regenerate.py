"""`blockdraft regenerate`: prompts to the target's own answers, resumable."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.data.regenerate import Summary

#: Seconds between two lines of progress where stderr is no terminal.
_LINE_EVERY_S = 30.0

#: Exit code after SIGTERM, as shells count it.
TERMINATED = 128 + signal.SIGTERM


def regenerate(
    recipe: Annotated[Path, typer.Argument(help="TOML file: prompts, target, what to keep.")],
    overrides: options.Overrides = None,
    pack: Annotated[
        Path | None,
        typer.Option(
            callback=options.output,
            help="Write the answers there in a compact form that names prompts by id; ask nothing. "
            "Folders that are missing are made.",
        ),
    ] = None,
    unpack: Annotated[
        Path | None,
        typer.Option(help="Write answers.jsonl anew from such a file and the recipe's prompts."),
    ] = None,
) -> None:
    """Let a target answer prompts; the same command again goes on where it ended.

    Prints one JSON object: what was done and what is left.
    """
    from blockdraft.config import load_recipe
    from blockdraft.data.recipe import AnswersRecipe
    from blockdraft.data.regenerate import regenerate as run
    from blockdraft.errors import ConfigError

    if pack is not None and unpack is not None:
        raise ConfigError("--pack and --unpack contradict each other; give one")
    asked = load_recipe(recipe, AnswersRecipe, overrides or [])
    if pack is not None or unpack is not None:
        print(json.dumps(_repack(asked, pack, unpack)))
        return
    with _ends_on_sigterm(), _progress() as show:
        summary = run(asked, log=options.note, on_answer=show)
    print(json.dumps({**asdict(summary), "num_left": summary.num_left}))
    if summary.stopped_by is not None or summary.num_failed:
        raise typer.Exit(1)


def _repack(asked: Any, pack: Path | None, unpack: Path | None) -> dict[str, Any]:
    from blockdraft.data.repack import pack_folder, unpack_folder

    if pack is not None:
        return pack_folder(asked, pack)
    assert unpack is not None
    return unpack_folder(asked, unpack, options.note)


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: what is there is saved first."""

    def end(*_: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress() -> Iterator[Callable[[Summary], None]]:
    """Shows how far the run is: a bar on a terminal, now and then a line elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("answers", rate="")

        def show(summary: Summary) -> None:
            done = summary.num_planned - summary.num_left
            bar.update(task, total=summary.num_planned, completed=done, rate=rate_text(summary))

        yield show


def _lines() -> Callable[[Summary], None]:
    last = time.monotonic()

    def show(summary: Summary) -> None:
        nonlocal last
        if summary.num_left == 0 or time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            done = summary.num_planned - summary.num_left
            options.note(f"{done:,}/{summary.num_planned:,} answers, {rate_text(summary)}")

    return show


def rate_text(summary: Summary) -> str:
    """Tokens a second, and the time that is left at the rate of answers so far."""
    done = summary.num_answered + summary.num_failed
    left_s = summary.num_left * summary.seconds / done if done else 0.0
    minutes, seconds = divmod(int(left_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{summary.tokens_per_s:,.0f} tokens/s, {hours}:{minutes:02}:{seconds:02} left"
