"""What a run tells: a row of figures now and then, as JSON, for TensorBoard, and on the terminal.

`log.jsonl` holds one object a line. A line with "loss" is a training row; one with "heldout" holds
the figures of an evaluation; one with "event" says that the run started, resumed or stopped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from blockdraft.json_text import parse_json
from blockdraft.training.parallel import World
from blockdraft.training.recipe import TrainRecipe

Row = Mapping[str, Any]

LOG_FILE = "log.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


@contextmanager
def open_log(recipe: TrainRecipe, first_step: int, world: World) -> Iterator[RunLog]:
    """The log of a run, closed at the end; the first process alone has one that writes."""
    log = RunLog(Path(recipe.run.out), first_step, recipe.schedule.max_steps, world.is_first)
    try:
        yield log
    finally:
        log.close()


class RunLog:
    """The log of one run; `first_step` is 0, or where it was resumed.

    Rows after `first_step` are taken out first: their steps are done again.
    """

    def __init__(self, folder: Path, first_step: int, max_steps: int, is_first: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.is_first = is_first
        if not is_first:
            return

        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / LOG_FILE
        keep_rows(self.file, first_step)
        self._out = self.file.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=first_step + 1)
        self._screen = Screen(first_step, max_steps)
        self._screen.start()

    def close(self) -> None:
        """Write what is left; the bar stays as it stands."""
        if self.is_first:
            self._screen.stop()
            self._out.close()
            self._board.close()

    def training(self, row: Row) -> None:
        """A row of the training itself: step, loss, rates, speed, metrics."""
        if self.is_first:
            self._write(row)
            self._plot("train/", row)
            self._screen.show(row)

    def heldout(self, step: int, figures: Mapping[str, float]) -> None:
        """The figures of an evaluation; nothing is written if there are none."""
        if not self.is_first or not figures:
            return
        self._write({"step": step, "heldout": dict(figures)})
        self._plot("", {"step": step, **figures})
        # Figures by position end in its number: too many for a line.
        few = {name: value for name, value in figures.items() if not name[-1].isdigit()}
        self._screen.say(f"step {step}: " + "  ".join(f"{k} {_short(v)}" for k, v in few.items()))

    def lacks_figures(self, step: int) -> bool:
        """Whether the file has no figures of an evaluation at this step; for the first process."""
        if not self.is_first:
            return False
        rows = map(parse_json, self.file.read_text(encoding="utf-8").splitlines())
        return not any(row["step"] == step and "heldout" in row for row in rows)

    def event(self, step: int, text: str) -> None:
        """Something that happened, for the user and the file."""
        if self.is_first:
            self._write({"step": step, "event": text})
            self._screen.say(text)

    def _write(self, row: Row) -> None:
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    def _plot(self, group: str, row: Row) -> None:
        for name, value in flat(row).items():
            if name != "step":
                self._board.add_scalar(group + name, value, row["step"])


class Screen:
    """Progress on a terminal; plain lines where there is none."""

    def __init__(self, first_step: int, max_steps: int) -> None:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=max_steps, completed=first_step, figures="")
        self._max_steps = max_steps

    def start(self) -> None:
        """Show the bar."""
        self._bar.start()

    def stop(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(text, markup=False)

    def show(self, row: Row) -> None:
        """The figures of the latest row."""
        figures = (
            f"loss {_short(row['loss'])}  grad {_short(row['grad_norm'])}"
            f"  {row['slots_per_s']:,.0f} slots/s"
        )
        self._bar.update(self._task, completed=row["step"], figures=figures)
        if self._bar.disable:
            eta = f"{row['eta_s'] / 60:.0f} min left"
            self.say(f"step {row['step']}/{self._max_steps}  {figures}  {eta}")


def keep_rows(file: Path, last_step: int) -> None:
    """Rewrite a log with its rows up to a step; a half-written last line goes too."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines():
        step = _step_of(line)
        if step is not None and step <= last_step:
            kept.append(line + "\n")
    temporary = file.with_suffix(".partial")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, file)


def _step_of(line: str) -> int | None:
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def flat(row: Row, prefix: str = "") -> dict[str, float]:
    """Numbers by path: tables by their keys, lists by position from 1; texts are left out."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, list | tuple):
            found |= flat({str(i): each for i, each in enumerate(value, 1)}, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            found[prefix + name] = float(value)
    return found


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
