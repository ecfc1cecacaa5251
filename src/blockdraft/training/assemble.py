"""From a recipe to the parts of a run: data, drafter, objective, stream, export."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from blockdraft.data.answers import Answer, read_answers
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.data.integrity import check_features
from blockdraft.data.stream import BlockStream, StreamSizes
from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.pairing import record_target
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.interop.zlab import write_zlab
from blockdraft.targets.load import LoadedTarget, load_target, source_info
from blockdraft.targets.sources import SourceFiles, resolve
from blockdraft.training.evaluations import decoding, fixed_batches, teacher_forced
from blockdraft.training.interfaces import Evaluation, Export
from blockdraft.training.make_objective import make_objective, target_tables, teacher_layer
from blockdraft.training.module import BUFFERS, DrafterModule
from blockdraft.training.objectives.base import Objective
from blockdraft.training.parallel import World
from blockdraft.training.recipe import TrainRecipe
from blockdraft.training.run_state import Parts
from blockdraft.training.samples import (
    Features,
    Split,
    TrainingSamples,
    draft_vocabulary,
    split_answers,
)
from blockdraft.training.starting_point import (
    mask_token,
    new_drafter,
    stored_draft_vocab,
    tap_ids,
)

Log = Callable[[str], None]
Load = Callable[[], LoadedTarget]

#: The drafter's folder within the run's.
DRAFTER_FOLDER = "drafter"

#: Samples that the start is measured on.
_NUM_MEASURED = 8


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The parts of a run, and what to tell of them.

    Attributes:
        coverage: share of the answers' tokens that can be drafted.
    """

    parts: Parts
    config: DFlashConfig
    split: Split
    coverage: float


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on.

    Attributes:
        samples: with the drafter's taps side by side, then the teacher's layer if it is asked for.
        teacher_width: columns of the teacher's layer.
    """

    features: Features
    samples: TrainingSamples
    split: Split
    answers: list[Answer]
    teacher_width: int


def assemble(recipe: TrainRecipe, world: World, log: Log, *, has_check: bool) -> Assembled:
    """Read the data, make the drafter, and put the parts together.

    Args:
        has_check: look at every stored feature, and recompute `data.check_share` of the
            samples on the target.
    Raises: UserError of the kind that fits: missing or foreign data, shapes that do not go
        together.
    """
    recipe.batch.num_passes(world.size)
    source = resolve(recipe.target, progress=log)
    load = cache(lambda: _load_target(recipe, world, log))
    data = read_data(recipe, source, load)
    vocab_ids, coverage = _draft_vocab(recipe, source, data.answers)
    config, tensors = new_drafter(
        recipe.drafter, source, vocab_ids, recipe.run.seed, _some_rows(data)
    )
    buffers = {name: tensor for name, tensor in tensors.items() if name in BUFFERS}
    dtype = torch.bfloat16 if recipe.run.precision == "bfloat16" else torch.float32
    tables = target_tables(source, dtype, world.device)
    objective = make_objective(
        recipe.objective, config, tables, source, buffers.get(DRAFT_VOCAB_IDS)
    )
    module = DrafterModule.from_tensors(config, tensors, tables.embedding, dtype)
    parts = Parts(
        module=module.to(world.device),
        objective=objective,
        stream=_stream(recipe, data, world),
        evaluations=_evaluations(recipe, data, objective, config, buffers, load, world),
        export=_export(recipe, config, buffers, source, dtype),
        facts=_facts(data.answers, source, vocab_ids),
    )
    # Last: it takes longest, and mistakes in the recipe should show first.
    if has_check and world.is_first and isinstance(data.features, FeatureStore):
        _check(data.features, recipe, load, log)
    return Assembled(parts=parts, config=config, split=data.split, coverage=coverage)


def read_data(recipe: TrainRecipe, source: SourceFiles, load: Load) -> Data:
    """Open the samples, and divide them.

    Raises: ConfigError or CheckpointError if there are none, or they do not fit.
    """
    taps, extra = tap_ids(recipe.drafter, source), teacher_layer(recipe.objective, source)
    layer_ids = taps if extra is None else (*taps, extra)
    features = _open_features(recipe, source, layer_ids, load)
    split = split_answers(features.answers, recipe.data)
    width = source_info(source).hidden_size
    return Data(
        features=features,
        samples=TrainingSamples(features, layer_ids, width, recipe.data.max_len),
        split=split,
        answers=[features.answers[i] for i in split.training],
        teacher_width=0 if extra is None else width,
    )


def _load_target(recipe: TrainRecipe, world: World, log: Log) -> LoadedTarget:
    device = world.device.type
    return load_target(recipe.target, dtype=recipe.target_dtype, device=device, log=log)


def _open_features(
    recipe: TrainRecipe, source: SourceFiles, layer_ids: tuple[int, ...], load: Load
) -> Features:
    """From shards, or recomputed by the target."""
    if recipe.data.features:
        store = FeatureStore(recipe.data.features)
        if store.index.fingerprint != source.fingerprint:
            raise CheckpointError(
                f"the features in {recipe.data.features} are of {store.index.target} (weights"
                f" {store.index.fingerprint[:12]}), not of {source.name}"
                f" ({source.fingerprint[:12]}); regenerate them"
            )
        return store
    if not recipe.data.answers:
        raise ConfigError(
            "the recipe names no data; set data.features to a folder of shards or data.answers"
            " to a file of answers, both made by blockdraft regenerate"
        )
    # A layer may be both tapped and the teacher's.
    wanted = tuple(dict.fromkeys(layer_ids))
    return OnlineFeatures(read_answers(Path(recipe.data.answers)), load().target, wanted)


def _some_rows(data: Data) -> Tensor:
    """Feature rows that the start is measured on, the drafter's taps alone."""
    measured = data.samples.batch(data.split.training[:_NUM_MEASURED])
    rows = torch.cat([each.features for each in measured])
    return rows[:, : rows.shape[1] - data.teacher_width]


def _check(store: FeatureStore, recipe: TrainRecipe, load: Load, log: Log) -> None:
    log(f"checking the features in {recipe.data.features}")
    share = recipe.data.check_share
    target = load().target if share else None
    report = check_features(store, target, share=share, seed=recipe.run.seed)
    report.require_sound()
    again = f"{report.num_recomputed} recomputed, at most {report.worst_difference:.1%} apart"
    log(f"{report.num_samples:,} samples in {report.num_shards} shards are sound ({again})")


def _draft_vocab(
    recipe: TrainRecipe, source: SourceFiles, answers: list[Answer]
) -> tuple[list[int] | None, float]:
    """The draft vocabulary (None: all), and its share of the answers' tokens."""
    size, stored = recipe.drafter.draft_vocab_size, stored_draft_vocab(recipe.drafter)
    total = source_info(source).vocab_size
    if recipe.drafter.start_from and (size or total) < len(stored or range(total)):
        raise ConfigError(
            f"drafter.draft_vocab_size is {size or total}, and that of {recipe.drafter.start_from}"
            f" {len(stored or range(total))}; it can grow, and not shrink"
        )
    if not size:
        return None, 1.0
    if stored is not None and len(stored) == size:
        known = set(stored)
        tokens = [token in known for answer in answers for token in answer.token_ids]
        return stored, sum(tokens) / max(1, len(tokens))
    mask = mask_token(recipe.drafter, source)
    always = (*source.end_ids, *(stored or ()))
    return draft_vocabulary(answers, size, always, (mask,), total)


def _stream(recipe: TrainRecipe, data: Data, world: World) -> BlockStream:
    sizes = StreamSizes(
        block_size=recipe.drafter.block_size,
        num_anchors=recipe.data.num_anchors,
        sequences_per_step=recipe.batch.sequences_per_step,
        sequences_per_pass=recipe.batch.sequences_per_pass,
        teacher_width=data.teacher_width,
    )
    return BlockStream(
        data.samples,
        data.split.training,
        sizes,
        seed=recipe.run.seed,
        rank=world.rank,
        num_processes=world.size,
    )


def _evaluations(
    recipe: TrainRecipe,
    data: Data,
    objective: Objective,
    config: DFlashConfig,
    buffers: dict[str, Tensor],
    load: Load,
    world: World,
) -> tuple[Evaluation, ...]:
    """Those of the first process; none if no answers are held out, or figures are not wanted."""
    heldout = data.split.heldout
    if not world.is_first or not heldout or not recipe.run.evaluate_every:
        return ()
    batches = fixed_batches(recipe, data.samples, heldout, data.teacher_width)
    found = [teacher_forced(objective, batches, world.device)]
    if recipe.run.decode_every and recipe.data.num_decoded:
        answers = [data.features.answers[i] for i in heldout[: recipe.data.num_decoded]]
        found.append(decoding(recipe, answers, config, buffers, load))
    return tuple(found)


def _export(
    recipe: TrainRecipe,
    config: DFlashConfig,
    buffers: dict[str, Tensor],
    source: SourceFiles,
    dtype: torch.dtype,
) -> Export:
    """Writes the drafter in the precision it was trained in."""
    folder = Path(recipe.run.out) / DRAFTER_FOLDER
    record = record_target(source_info(source), source.codec().template_sha256)

    def export(step: int, module: nn.Module) -> None:
        assert isinstance(module, DrafterModule)
        tensors = {name: t.to(dtype) for name, t in module.checkpoint_tensors().items()}
        write_zlab(folder, config, tensors | buffers, {**record, "trained_steps": str(step)})

    return export


def _facts(
    answers: list[Answer], source: SourceFiles, vocab_ids: list[int] | None
) -> dict[str, str | int]:
    """What must be the same for a resumed run to be the same run."""
    ids = "\n".join(answer.id for answer in answers)
    return {
        "data.num_answers": len(answers),
        "data.answers_sha256": hashlib.sha256(ids.encode()).hexdigest()[:16],
        "target_fingerprint": source.fingerprint,
        # Rows of the codebooks stand for these tokens: with others, a resumed run would be garbage.
        "drafter.draft_vocab": hashlib.sha256(str(vocab_ids).encode()).hexdigest()[:16],
    }
