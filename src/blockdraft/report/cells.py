"""The rows of all runs as a grid: series by task, concurrency and temperature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from blockdraft.report.load import Row, Run

#: The method that others are compared with.
PLAIN = "plain"

#: Colours of series beside that of plain decoding, which is 0.
NUM_COLOURS = 8


@dataclass(frozen=True)
class Series:
    """One method of one run: a line, or a bar in each group.

    Attributes:
        index: its place among all series.
        colour: 0 is plain decoding; beyond `NUM_COLOURS` series colours come again.
        is_again: drawn differently, since another series has this colour.
    """

    run: str
    method: str
    label: str
    colour: int
    index: int
    is_again: bool = False

    @property
    def key(self) -> str:
        """Class of all its marks, which hides them together."""
        return f"k{self.index}"

    @property
    def is_plain(self) -> bool:
        """Whether it is what others are compared with."""
        return self.method == PLAIN


@dataclass(frozen=True)
class View:
    """What a chart shows of the grid beside its own axes."""

    temperature: float
    concurrency: int

    @property
    def title(self) -> str:
        """In words."""
        how = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        return f"{how}, {at_once(self.concurrency)}"


class Cells:
    """Rows by series, task and view, in the order of the files."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.series = list(_series(runs))
        by_name = {(each.run, each.method): each for each in self.series}
        self._rows: dict[tuple[Series, str, View], Row] = {}
        for run in runs:
            for row in run.rows:
                view = View(row["temperature"], row["concurrency"])
                self._rows[by_name[run.name, row["method"]], row["task"], view] = row
        every = [row for run in runs for row in run.rows]
        self.tasks = _different(row["task"] for row in every)
        self.temperatures = sorted(_different(row["temperature"] for row in every))
        self.concurrencies = sorted(_different(row["concurrency"] for row in every))

    @property
    def views(self) -> list[View]:
        """Those that have rows."""
        found = {view for _, _, view in self._rows}
        return sorted(found, key=lambda view: (view.temperature, view.concurrency))

    @property
    def drafting(self) -> list[Series]:
        """Every series but plain decoding."""
        return [each for each in self.series if not each.is_plain]

    def row(self, series: Series, task: str, view: View) -> Row | None:
        """The row of a cell, if it was measured."""
        return self._rows.get((series, task, view))

    def value(self, series: Series, task: str, view: View, key: str) -> Any:
        """A figure of a cell; None if there is none."""
        row = self.row(series, task, view)
        return None if row is None else row.get(key)

    def __iter__(self) -> Iterator[tuple[Series, str, View, Row]]:
        for (series, task, view), row in self._rows.items():
            yield series, task, view, row


def at_once(concurrency: int) -> str:
    """A concurrency in words."""
    return "one prompt at a time" if concurrency == 1 else f"{concurrency} prompts at once"


def _series(runs: Sequence[Run]) -> Iterator[Series]:
    num = index = 0
    for run in runs:
        methods = _different(str(row["method"]) for row in run.rows)
        names = _short_names(methods)
        for method in methods:
            label = f"{names[method]} · {run.name}" if len(runs) > 1 else names[method]
            if method == PLAIN:
                yield Series(run.name, method, label, 0, index, is_again=run is not runs[0])
            else:
                colour, is_again = num % NUM_COLOURS + 1, num >= NUM_COLOURS
                yield Series(run.name, method, label, colour, index, is_again)
                num += 1
            index += 1


def _short_names(methods: Sequence[str]) -> dict[str, str]:
    """Folders by their last part, where that is clear."""
    short = {method: PurePath(method).name or method for method in methods}
    last = list(short.values())
    return {method: name if last.count(name) == 1 else method for method, name in short.items()}


def _different(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
