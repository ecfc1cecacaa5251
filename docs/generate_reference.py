"""Write docs/reference/cli.md from the commands themselves.

python docs/generate_reference.py           # rewrite
python docs/generate_reference.py --check   # fail if it would change

Made from the functions' signatures, not from the help pages: those look different from one version
of typer to the next.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from blockdraft.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "cli.md"

HEAD = """\
# Command line

Made by `docs/generate_reference.py` from the commands; do not edit.

Results go to stdout, everything else to stderr. What a user can cause is said in one line that
begins with `error:`. `blockdraft --version` prints its version, Python's and PyTorch's in one line.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it failed: what a file holds is wrong, too long a prompt, an unsupported model, a full disk |
| 2 | wrong usage: an unknown name, option or key, a wrong value, a path where nothing is |
| 130 | stopped with Ctrl-C |

| variable | meaning; what holds without it |
|---|---|
| `BLOCKDRAFT_CACHE` | fetched targets, compiled kernels, your drafters; `~/.cache/blockdraft` |
| `BLOCKDRAFT_NATIVE_ISA` | instruction set of the native kernels; the fastest that runs here |
| `CC` | C compiler of the native kernels; the first of cc, gcc and clang |
| `OMP_NUM_THREADS` | threads to compute on; PyTorch's own number |
| `HF_HOME`, `HF_HUB_OFFLINE`, `HF_TOKEN` | read by the client of the Hugging Face hub |
"""

_KINDS = {str: "text", int: "number", float: "number", Path: "path", list: "text, may be repeated"}


@dataclass(frozen=True)
class Parameter:
    """One argument or option; `default` is None where there is none to show."""

    spelling: str
    kind: str
    default: str | None
    help: str

    @property
    def is_argument(self) -> bool:
        return not self.spelling.startswith("-")


def parameters(callback: Callable[..., Any]) -> Iterator[Parameter]:
    """What a command takes, in the order of its signature."""
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        if hints[name] is typer.Context:
            continue  # what was given, not something to give
        kind, info = typing.get_args(hints[name])
        if isinstance(info, ArgumentInfo):
            spelling = name.upper()
        else:
            assert isinstance(info, OptionInfo), name
            spelling = ", ".join(_option_names(name, info))
        yield Parameter(spelling, _kind(kind), _default(parameter), info.help or "")


def _option_names(name: str, info: OptionInfo) -> list[str]:
    """As given to `typer.Option`, whose first name stands where a default once stood."""
    given = [info.default, *(info.param_decls or ())]
    names = [each for each in given if isinstance(each, str)]
    return names or [f"--{name.replace('_', '-')}"]


def _kind(annotation: Any) -> str:
    if isinstance(annotation, types.UnionType):  # `int | None`: an option that may be left out
        [annotation] = [part for part in annotation.__args__ if part is not type(None)]
    kind = typing.get_origin(annotation) or annotation
    return "" if kind is bool else _KINDS[kind]


def _default(parameter: inspect.Parameter) -> str | None:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    return None if value is None or value is False else f"`{value}`"


def section(name: str, callback: Callable[..., Any]) -> str:
    """One command's part of the page."""
    found = list(parameters(callback))
    arguments = "".join(f" {each.spelling}" for each in found if each.is_argument)
    lines = [f"## `blockdraft {name}{arguments}`", "", inspect.cleandoc(callback.__doc__ or ""), ""]
    lines += ["| | value | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{each.spelling}` | {each.kind} | {each.default or ''} | {each.help} |"
        for each in found
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    sections = [
        section(command.name or command.callback.__name__, command.callback)
        for command in app.registered_commands
        if command.callback is not None
    ]
    return "\n".join([HEAD, *sections])


def main() -> int:
    """Returns 1 if `--check` was given and the page is out of date."""
    new = page()
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == new:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"out of date: {PAGE.relative_to(ROOT)}; run python docs/generate_reference.py")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    print(f"rewritten: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
