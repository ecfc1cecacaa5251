"""`blockdraft init-drafter`: an untrained drafter of the right shape for any target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockdraft.cli import options


def init_drafter(
    target: Annotated[str, typer.Argument(help="The target it is for.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="Folder to write; must not exist. Those above it are made."
        ),
    ],
    method: Annotated[str, typer.Option(help="dflash2 or dflash.")] = "dflash2",
    layers: Annotated[int, typer.Option(help="Layers of the drafter.")] = 3,
    block_size: Annotated[int, typer.Option(help="Rows of a block, the anchor included.")] = 8,
    num_taps: Annotated[int, typer.Option(help="Target layers that are tapped.")] = 5,
    window: Annotated[
        int, typer.Option(help="Context rows that a row sees; 0: the whole context.")
    ] = 1024,
    selector_rank: Annotated[int, typer.Option(help="Width of the selector's codebooks.")] = 256,
    mask_token_id: Annotated[
        int | None, typer.Option(help="A token that text never holds. If not given: one is found.")
    ] = None,
    draft_vocab_ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Token ids that can be drafted, ascending: a JSON list or numbers. If not given:"
            " all.",
        ),
    ] = None,
    copy_layers: Annotated[
        bool, typer.Option("--copy-layers", help="Start from the target's last layers.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Make an untrained drafter: convolutions at identity, selector at zero effect."""
    from blockdraft.interop.new_drafter import NewDrafter, write_new_drafter

    asked = NewDrafter(
        method=method,
        num_layers=layers,
        block_size=block_size,
        num_taps=num_taps,
        window=window or None,
        selector_rank=selector_rank,
        mask_token_id=mask_token_id,
        draft_vocab_file=draft_vocab_ids,
        copy_layers=copy_layers,
        seed=seed,
    )
    for key, value in write_new_drafter(target, asked, out, log=options.note).items():
        print(f"{key:14} {value}")
