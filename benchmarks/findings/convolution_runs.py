"""Small DFlash 2 drafters that differ in their convolutions: recipes, and training that goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockdraft.cli.train import describe
from blockdraft.config import as_plain
from blockdraft.data.answers import write_whole
from blockdraft.data.feature_shards import INDEX_NAME, read_index
from blockdraft.errors import ConfigError
from blockdraft.evaluation.provenance import commit
from blockdraft.interop.zlab import (
    CONFIG_FILE,
    checkpoint_fingerprint,
    read_provenance,
    read_zlab,
    write_zlab,
)
from blockdraft.training.assemble import DRAFTER_FOLDER, Assembled, assemble
from blockdraft.training.interfaces import Batch, DataStream
from blockdraft.training.logs import LOG_FILE
from blockdraft.training.loop import train
from blockdraft.training.parallel import open_world
from blockdraft.training.recipe import TrainRecipe

#: What makes the recipe of the shipped drafter small; figures are made once, at the end.
SMALL = (
    "drafter.draft_vocab_size=8192",
    "optimizer.ema_decay=0.995",
    "data.num_heldout=1000",
    "run.evaluate_every=0",
    "run.save_every=25",
    "run.keep_checkpoints=1",
    "run.log_every=5",
)

_RECIPE_FILE, _TRAINED_FILE = "recipe.json", "trained.json"

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One drafter. A convolution of `kernel_size` taps reaches that many rows less one back."""

    block_size: int
    kernel_size: int
    seed: int

    @property
    def name(self) -> str:
        """Of its folder, and for `--only`."""
        return f"block{self.block_size}-kernel{self.kernel_size}-seed{self.seed}"


def variants(
    blocks: Sequence[int], kernels: Sequence[int], seeds: Sequence[int]
) -> tuple[Variant, ...]:
    """All of them: what is to be compared is trained one right after the other.

    Seeds after the first are for how much trainings differ by chance: the first block size alone.
    """
    return tuple(
        Variant(block_size=block, kernel_size=kernel, seed=seed)
        for seed, block, kernel in itertools.product(seeds, blocks, kernels)
        if seed == seeds[0] or block == blocks[0]
    )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What all drafters share.

    Attributes:
        recipe: of every run, but for what makes a variant.
        work: a folder of runs, each under its variant's name.
        start_from: a checkpoint that all go on from, of either method and any block size; None
            starts them from the target's layers. Convolutions that it lacks start as the identity.
    """

    recipe: TrainRecipe
    work: Path
    start_from: Path | None = None

    def recipe_of(self, variant: Variant) -> TrainRecipe:
        """The whole recipe of one drafter."""
        start = "" if self.start_from is None else str(self._start(variant.block_size))
        drafter = dataclasses.replace(
            self.recipe.drafter,
            block_size=variant.block_size,
            conv_kernel_size=variant.kernel_size,
            start_from=start,
        )
        run = dataclasses.replace(
            self.recipe.run, out=str(self.work / variant.name), seed=variant.seed
        )
        return dataclasses.replace(self.recipe, drafter=drafter, run=run)

    def drafter_folder(self, variant: Variant) -> Path:
        """Where the trained drafter is."""
        return self.work / variant.name / DRAFTER_FOLDER

    def described(self, recipe: TrainRecipe) -> dict[str, Any]:
        """What is learned from, and how: the recipe, with data and start named by their hashes."""
        plain: dict[str, Any] = as_plain(recipe)
        plain["run"] = {name: plain["run"][name] for name in ("seed", "precision")}
        plain["data"]["features"] = self.features_name
        plain["drafter"]["start_from"] = self.start_name
        if Path(recipe.target).exists():
            plain["target"] = Path(recipe.target).name
        return plain

    @cached_property
    def features_name(self) -> str:
        """The features: their target, and the hash of the index, which holds those of all shards.

        Raises: CheckpointError if there is no such folder of shards.
        """
        folder = Path(self.recipe.data.features)
        target = read_index(folder).target
        digest = hashlib.sha256((folder / INDEX_NAME).read_bytes()).hexdigest()
        return f"{Path(target).name}, index {digest[:16]}"

    @cached_property
    def start_name(self) -> str:
        """What all go on from: method, steps of the run that wrote it, hash of its weights."""
        if self.start_from is None:
            return ""
        method = read_zlab(self.start_from)[0].method
        steps = read_provenance(self.start_from).get("trained_steps", "?")
        return (
            f"{method}, its last run {steps} steps, {checkpoint_fingerprint(self.start_from)[:16]}"
        )

    def _start(self, block_size: int) -> Path:
        """The start with blocks of this size: no weight depends on it."""
        assert self.start_from is not None
        config, tensors = read_zlab(self.start_from)
        if config.block_size == block_size:
            return self.start_from
        digest = checkpoint_fingerprint(self.start_from)[:8]
        copy = self.work / f"start-{digest}-block{block_size}"
        if not (copy / CONFIG_FILE).exists():  # it is written last
            config = dataclasses.replace(config, block_size=block_size)
            write_zlab(copy, config, tensors, read_provenance(self.start_from))
        return copy


class CountedStream:
    """A stream that counts the slots it gave; checkpoints keep the number."""

    def __init__(self, stream: DataStream) -> None:
        self._stream, self.num_slots = stream, 0

    def __next__(self) -> Batch:
        batch = next(self._stream)
        self.num_slots += batch.num_slots
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {**self._stream.state_dict(), "num_slots": self.num_slots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stream.load_state_dict(state)
        self.num_slots = int(state["num_slots"])


def train_variant(experiment: Experiment, variant: Variant, log: Log) -> dict[str, Any] | None:
    """Train a drafter, or go on where it was stopped; one that is finished is not touched.

    Returns: what its training was; None if it was stopped before its last step.
    Raises: ConfigError if its folder holds a run of another recipe, or of other data.
    """
    recipe = experiment.recipe_of(variant)
    folder = Path(recipe.run.out)
    _claim(folder, experiment.described(recipe))
    if (folder / _TRAINED_FILE).exists():
        log(f"{variant.name}: finished before")
        return trained(folder)
    log(f"{variant.name}: training")
    with open_world(recipe.run.device, recipe.run.parallel) as world:
        # Features are looked at, all of them, by `blockdraft train` and `blockdraft doctor`.
        assembled = assemble(recipe, world, log, has_check=False)
        for line in describe(assembled):
            log(line)
        stream = CountedStream(assembled.parts.stream)
        parts = dataclasses.replace(assembled.parts, stream=stream)
        outcome = train(recipe, parts, world, resume=True)
    if outcome.stopped_by is not None:
        log(f"{variant.name}: stopped by {outcome.stopped_by}; the same command goes on")
        return None
    facts = {
        **_facts(assembled),
        "num_steps": outcome.step,
        "num_slots": stream.num_slots,
        **_times(folder / LOG_FILE),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }
    write_whole(folder / _TRAINED_FILE, json.dumps(facts, indent=1))
    return trained(folder)


def trained(folder: Path) -> dict[str, Any]:
    """What the training of a finished run was."""
    found: dict[str, Any] = json.loads((folder / _TRAINED_FILE).read_text("utf-8"))
    return found


def _claim(folder: Path, described: Mapping[str, Any]) -> None:
    """Note what a folder's run is; a run that has begun stays what it is."""
    file = folder / _RECIPE_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(described, indent=1))
        return
    before = json.loads(file.read_text("utf-8"))
    for table, new in json.loads(json.dumps(described)).items():
        if before.get(table) != new:
            raise ConfigError(
                f"{folder} holds a run with {table} {before.get(table)!r}, and {new!r} is asked"
                " for; use another --work"
            )


def _facts(assembled: Assembled) -> dict[str, Any]:
    """Data and size. Only the parameters of the convolutions depend on what they reach."""
    sizes = {name: p.numel() for name, p in _parameters(assembled.parts.module).items()}
    return {
        "num_training": len(assembled.split.training),
        "num_heldout": len(assembled.split.heldout),
        "draft_vocab_share": assembled.coverage,
        "data": dict(assembled.parts.facts),
        "num_parameters": sum(sizes.values()),
        "num_conv_parameters": sum(n for name, n in sizes.items() if "_conv." in name),
    }


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters())


def _times(log_file: Path) -> dict[str, Any]:
    """Seconds of the steps that count, over all sessions of the run, and the usual speed."""
    rows = [json.loads(line) for line in log_file.read_text("utf-8").splitlines()]
    wall = latest = 0.0
    for row in rows:
        if "event" in row:  # a session begins, or ends
            wall, latest = wall + latest, 0.0
        latest = row.get("elapsed_s", latest)
    speeds = [row["slots_per_s"] for row in rows if "slots_per_s" in row]
    return {"wall_s": wall + latest, "median_slots_per_s": statistics.median(speeds)}
