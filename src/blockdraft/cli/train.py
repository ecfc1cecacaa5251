"""`blockdraft train`: a drafter from a target's own answers, resumable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.training.assemble import Assembled
    from blockdraft.training.recipe import TrainRecipe


def train(
    recipe: Annotated[Path, typer.Argument(help="TOML file: drafter, data, objective, run.")],
    overrides: options.Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the latest checkpoint in run.out.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the whole recipe, parameters, memory and time; a few steps are tried.",
        ),
    ] = False,
) -> None:
    """Train a drafter. SIGTERM and Ctrl-C save and end; the same command with --resume goes on.

    Prints one JSON object: where the run ended and where the drafter is. Under torchrun every
    process takes its share of each step.
    """
    from blockdraft.config import load_recipe
    from blockdraft.training.recipe import TrainRecipe

    asked = load_recipe(recipe, TrainRecipe, overrides or [])
    printed = _run(asked, resume=resume, is_dry=dry_run)
    if printed is not None:
        print(json.dumps(printed))


def _run(recipe: TrainRecipe, *, resume: bool, is_dry: bool) -> dict[str, Any] | None:
    """What to print; None on processes that are not the first."""
    from blockdraft.training.assemble import DRAFTER_FOLDER, assemble
    from blockdraft.training.dry_run import dry_run
    from blockdraft.training.loop import train as run
    from blockdraft.training.parallel import open_world

    with open_world(recipe.run.device, recipe.run.parallel) as world:
        log = options.note if world.is_first else _silent
        assembled = assemble(recipe, world, log, has_check=not resume and not is_dry)
        for line in describe(assembled):
            log(line)
        if is_dry:
            found = dry_run(recipe, assembled.parts, world)
            return found if world.is_first else None
        outcome = run(recipe, assembled.parts, world, resume=resume)
    if not world.is_first:
        return None
    return {
        "step": outcome.step,
        "max_steps": recipe.schedule.max_steps,
        "stopped_by": outcome.stopped_by,
        "checkpoint": os.fspath(outcome.checkpoint),
        "drafter": os.fspath(Path(recipe.run.out) / DRAFTER_FOLDER),
        **{f"num_{k}": len(v) for k, v in _samples(assembled).items()},
    }


def _samples(assembled: Assembled) -> dict[str, tuple[int, ...]]:
    return {"training": assembled.split.training, "heldout": assembled.split.heldout}


def describe(assembled: Assembled) -> list[str]:
    """Data and drafter in a few lines; whatever is left out is counted."""
    split, config = assembled.split, assembled.config
    counts = {name: n for name, n in asdict(split).items() if isinstance(n, int) and n}
    rest = {"num_cut": "cut to max_len", "num_looping": "looping and left out"}
    rest |= {"num_short": "without room for a block", "num_apart": "held out, not needed"}
    more = "".join(f", {n:,} {rest[name]}" for name, n in counts.items())
    size = sum(p.numel() for p in assembled.parts.module.parameters())
    vocab = f"all {config.vocab_size:,} tokens"
    if config.draft_vocab_size:
        vocab = f"{config.draft_vocab_size:,} tokens ({assembled.coverage:.2%} of the answers')"
    return [
        f"{len(split.training):,} answers to train on, {len(split.heldout)} for figures{more}",
        f"{config.method}: {config.num_layers} layers, blocks of {config.block_size}, taps"
        f" {list(config.target_layer_ids)}, drafts from {vocab}, {size / 1e6:.1f} M parameters",
    ]


def _silent(_: str) -> None:
    """What the other processes say."""
