"""What a training run is: the drafter's shape, its data, objective, optimiser, schedule and run.

One TOML file a run; a table each. Every field has its default here, so that a recipe says only
what it decides. `blockdraft.config.load_recipe` reads it; unknown keys are errors there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockdraft.drafters.config import METHODS
from blockdraft.errors import ConfigError
from blockdraft.training.losses import MixedLoss

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "linear", "constant")
PARALLEL = ("ddp", "fsdp2")
PRECISIONS = ("float32", "bfloat16")
WEIGHTINGS = ("decay", "dpace")
MISSING_TARGETS = ("inject", "drop")


@dataclass(frozen=True, kw_only=True)
class DrafterRecipe:
    """The drafter's shape; what it shares with the target is taken from the target.

    Attributes:
        method: "dflash2" or "dflash".
        start_from: folder of a drafter checkpoint to go on from; its shape must be this one.
            Empty starts anew.
        copy_layers: start anew from the target's last layers; False draws the weights.
        target_layer_ids: target layers to tap (0-based outputs); empty spreads `num_taps`.
        window: context rows that a row sees; 0: the whole context.
        draft_vocab_size: target tokens that can be drafted, most frequent in the answers first;
            0: the whole vocabulary.
        mask_token_id: a token that text never holds; None finds one.
    """

    method: str = "dflash2"
    start_from: str = ""
    copy_layers: bool = True
    num_layers: int = 3
    block_size: int = 8
    target_layer_ids: tuple[int, ...] = ()
    num_taps: int = 5
    window: int = 0
    is_causal: bool = False
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 64
    selector_top_k: int = 16
    draft_vocab_size: int = 0
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        _one_of(self, "method", METHODS)
        _at_least(self, 1, "num_layers", "num_taps")
        _at_least(self, 2, "block_size")
        _at_least(self, 0, "window", "draft_vocab_size")


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """What is trained on.

    Attributes:
        answers: file of the target's own answers, as `blockdraft regenerate` writes it.
            Needed where there are no features: shards hold their answers.
        features: folder of feature shards; empty recomputes them on the target while training.
        max_len: longest sequence in tokens, prompt included; longer ones are cut, and counted.
        drop_looping: leave out answers that are flagged as looping.
        heldout_share: of the prompts, kept apart by a hash of their ids: the same ones when
            answers are added. No answer to them is trained on.
        num_heldout: of their answers, how many the held-out figures are made from.
        num_decoded: of those, how many are decoded anew with the drafter; 0: none.
        num_anchors: blocks drawn from each sequence, anew in each pass over the data.
        check_share: of the stored features, how much is recomputed and compared before the first
            step; 0 looks at them without the target.
    """

    answers: str = ""
    features: str = ""
    max_len: int = 512
    drop_looping: bool = True
    heldout_share: float = 0.01
    num_heldout: int = 64
    num_decoded: int = 8
    num_anchors: int = 32
    check_share: float = 0.01

    def __post_init__(self) -> None:
        _at_least(self, 2, "max_len")
        _at_least(self, 1, "num_anchors")
        _at_least(self, 0, "num_heldout", "num_decoded")
        _between(self, 0.0, 1.0, "check_share", "heldout_share")


@dataclass(frozen=True, kw_only=True)
class ObjectiveRecipe:
    """What is minimised.

    Attributes:
        losses: weight of each per-slot loss by name (see `training/losses.py`).
        temperature: of the target's distribution, in the losses that compare with it.
        weighting: "decay": exp(-(k-1)/gamma); or "dpace": D-PACE (arXiv 2605.18810).
        gamma, alpha: of the decay (None: the published one of the block size), and of D-PACE.
        selector_weight: of the selector's loss (DFlash 2).
        missing_target: when the true token is not among the candidates: "inject" it, or "drop"
            the slot from the selector's loss.
    """

    losses: Mapping[str, float] = field(default_factory=lambda: {"ce": 1.0})
    temperature: float = 1.0
    weighting: str = "decay"
    gamma: float | None = None
    alpha: float = 0.5
    selector_weight: float = 1.0
    missing_target: str = "inject"

    def __post_init__(self) -> None:
        MixedLoss(self.losses)  # refuses unknown names
        _one_of(self, "weighting", WEIGHTINGS)
        _one_of(self, "missing_target", MISSING_TARGETS)
        _between(self, 0.0, 1.0, "alpha")
        _between(self, 0.0, math.inf, "selector_weight")
        _above_zero(self, "temperature", *(() if self.gamma is None else ("gamma",)))


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """How gradients become updates.

    Attributes:
        name: "adamw", or "muon" for the backbone's matrices and AdamW for the rest.
        lr: peak rate of the backbone (under muon: of what AdamW keeps of it).
        head_lr: peak rate of the selector.
        muon_lr: peak rate of the matrices under muon, scaled to the size of AdamW's updates.
        weight_decay: of the backbone's matrices alone.
        clip_norm: greatest norm of the whole gradient.
        ema_decay: of the averaged weights that are evaluated and written; 0: none are kept.
    """

    name: str = "adamw"
    lr: float = 8e-4
    head_lr: float = 8e-4
    muon_lr: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.95
    clip_norm: float = 1.0
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        _one_of(self, "name", OPTIMIZERS)
        _above_zero(self, "lr", "head_lr", "muon_lr", "eps", "clip_norm")
        _between(self, 0.0, math.inf, "weight_decay")
        _between(self, 0.0, 1.0, "beta1", "beta2", "momentum", "ema_decay")
        names = ("beta1", "beta2", "momentum", "ema_decay")
        if any(getattr(self, name) == 1.0 for name in names):
            raise ConfigError(f"one of {', '.join(names)} is 1; each must be below it")


@dataclass(frozen=True, kw_only=True)
class ScheduleRecipe:
    """Learning rate by step, never by the clock: it rises from 0, then falls to its last share.

    Attributes:
        name: "cosine", "linear", or "constant" (which does not fall).
        max_steps: updates of the whole run.
        warmup: share of the steps that the rate rises for.
        final_share: of the peak rate, at the last step.
    """

    name: str = "cosine"
    max_steps: int = 2000
    warmup: float = 0.04
    final_share: float = 0.1

    def __post_init__(self) -> None:
        _one_of(self, "name", SCHEDULES)
        _at_least(self, 1, "max_steps")
        _between(self, 0.0, 1.0, "warmup", "final_share")


@dataclass(frozen=True, kw_only=True)
class BatchRecipe:
    """Sequences of one update, over all processes, and of one pass on one process.

    What lies between is made up by accumulation, so the number of processes changes nothing.
    """

    sequences_per_step: int = 8
    sequences_per_pass: int = 8

    def __post_init__(self) -> None:
        _at_least(self, 1, "sequences_per_step", "sequences_per_pass")

    def num_passes(self, num_processes: int) -> int:
        """Passes of one process in one step.

        Raises: ConfigError if the sequences of a step cannot be dealt out evenly.
        """
        together = self.sequences_per_pass * num_processes
        if self.sequences_per_step % together:
            raise ConfigError(
                f"batch.sequences_per_step is {self.sequences_per_step}; with {num_processes}"
                f" process(es) of {self.sequences_per_pass} sequences a pass it must be a"
                f" multiple of {together}"
            )
        return self.sequences_per_step // together


@dataclass(frozen=True, kw_only=True)
class RunRecipe:
    """Where and how it runs: nothing here changes what is learned, but for seed and precision.

    Attributes:
        out: folder of checkpoints, logs and the finished drafter.
        device: "auto" (cuda where there is one), "cpu" or "cuda".
        precision: of the matrix products; weights, optimiser and softmax stay float32.
        parallel: under torchrun with several processes: "ddp" or "fsdp2".
        keep_checkpoints: of the latest, how many stay.
        log_every, save_every: in steps; 0 saves only at the end.
        evaluate_every, decode_every: in steps, and at the last one; 0: never. Answers are decoded
            at evaluations whose step is a multiple of both.
        stop_after_minutes: saves and ends after so long, to be resumed; 0: never.
    """

    out: str = "runs/drafter"
    seed: int = 0
    device: str = "auto"
    precision: str = "bfloat16"
    parallel: str = "ddp"
    log_every: int = 10
    evaluate_every: int = 200
    decode_every: int = 1000
    save_every: int = 200
    keep_checkpoints: int = 2
    stop_after_minutes: float = 0.0

    def __post_init__(self) -> None:
        _one_of(self, "device", ("auto", "cpu", "cuda"))
        _one_of(self, "precision", PRECISIONS)
        _one_of(self, "parallel", PARALLEL)
        _at_least(self, 1, "log_every", "keep_checkpoints")
        _at_least(self, 0, "evaluate_every", "decode_every", "save_every", "seed")
        _between(self, 0.0, math.inf, "stop_after_minutes")


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """One training run.

    Attributes:
        target: a name that `blockdraft pull` knows, a folder or a file.
        target_dtype: what it computes in, where features are recomputed; None: what it would
            generate in.
    """

    target: str = "smollm2-135m"
    target_dtype: str | None = None
    drafter: DrafterRecipe = field(default_factory=DrafterRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    objective: ObjectiveRecipe = field(default_factory=ObjectiveRecipe)
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
    schedule: ScheduleRecipe = field(default_factory=ScheduleRecipe)
    batch: BatchRecipe = field(default_factory=BatchRecipe)
    run: RunRecipe = field(default_factory=RunRecipe)


def _one_of(recipe: Any, name: str, allowed: Sequence[str]) -> None:
    value = getattr(recipe, name)
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; use {' or '.join(map(repr, allowed))}")


def _at_least(recipe: Any, low: int, *names: str) -> None:
    for name in names:
        value = getattr(recipe, name)
        if value < low:
            raise ConfigError(f"{name} is {value}; it must be {low} or more")


def _between(recipe: Any, low: float, high: float, *names: str) -> None:
    for name in names:
        value = getattr(recipe, name)
        if not low <= value <= high or math.isinf(value):
            limit = f"{low:g} or more" if math.isinf(high) else f"{low:g} to {high:g}"
            raise ConfigError(f"{name} is {value:g}; it must be {limit}")


def _above_zero(recipe: Any, *names: str) -> None:
    for name in names:
        value = getattr(recipe, name)
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value:g}; it must be greater than 0")
