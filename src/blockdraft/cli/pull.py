"""`blockdraft pull`: fetch a target into the cache, and check it."""

from __future__ import annotations

from typing import Annotated

import typer

from blockdraft.cli import options


def pull(
    name: Annotated[
        str, typer.Argument(help="smollm2-135m, a hub id, a local folder, or a .gguf file.")
    ],
) -> None:
    """Fetch a target, check its files, and say what it is."""
    from blockdraft.targets.load import describe_source

    for key, value in describe_source(name, log=options.note).items():
        print(f"{key:14} {value}")
