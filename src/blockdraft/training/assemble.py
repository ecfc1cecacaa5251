"""From a recipe to the parts of a run: data, drafter, objective, stream, export."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockdraft.data.answers import Answer, read_answers
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.data.integrity import check_features
from blockdraft.data.stream import BlockStream, StreamSizes
from blockdraft.drafters.config import DFlashConfig, spread_target_layers
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.pairing import record_target
from blockdraft.errors import CheckpointError, ConfigError, UnsupportedError
from blockdraft.interop.zlab import write_zlab
from blockdraft.targets.load import load_target, source_info
from blockdraft.targets.sources import SourceFiles, load_weights, resolve
from blockdraft.training.head import Head
from blockdraft.training.interfaces import Export
from blockdraft.training.losses import MixedLoss
from blockdraft.training.module import BUFFERS, DrafterModule
from blockdraft.training.objectives.base import Objective
from blockdraft.training.objectives.blocks import DraftVocab
from blockdraft.training.objectives.dflash import DFlashObjective
from blockdraft.training.objectives.dflash2 import DFlash2Objective
from blockdraft.training.parallel import World
from blockdraft.training.position_weights import default_gamma
from blockdraft.training.recipe import TrainRecipe
from blockdraft.training.run_state import Parts
from blockdraft.training.samples import (
    Features,
    Split,
    TrainingSamples,
    draft_vocabulary,
    split_answers,
)
from blockdraft.training.starting_point import mask_token, new_drafter, stored_draft_vocab

Log = Callable[[str], None]

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
    features = open_features(recipe, source, log)
    split = split_answers(features.answers, recipe.data)
    answers = [features.answers[i] for i in split.training]
    vocab_ids, coverage = _draft_vocab(recipe, source, answers)
    measured = features.batch(split.training[:_NUM_MEASURED])
    rows = torch.cat([each.features for each in measured])
    config, tensors = new_drafter(recipe.drafter, source, vocab_ids, recipe.run.seed, rows)
    dtype = torch.bfloat16 if recipe.run.precision == "bfloat16" else torch.float32
    embedding, head = _target_tables(source, dtype, world.device)
    module = DrafterModule.from_tensors(config, tensors, embedding, dtype).to(world.device)
    samples = TrainingSamples(
        features, config.target_layer_ids, config.hidden_size, recipe.data.max_len
    )
    buffers = {name: tensor for name, tensor in tensors.items() if name in BUFFERS}
    parts = Parts(
        module=module,
        objective=make_objective(recipe, config, head, buffers.get(DRAFT_VOCAB_IDS)),
        stream=_stream(recipe, samples, split, world),
        export=_export(recipe, config, buffers, source, dtype),
        facts=_facts(answers, source),
    )
    # Last: it takes longest, and mistakes in the recipe should show first.
    if has_check and world.is_first and isinstance(features, FeatureStore):
        _check(features, recipe, log)
    return Assembled(parts=parts, config=config, split=split, coverage=coverage)


def open_features(recipe: TrainRecipe, source: SourceFiles, log: Log) -> Features:
    """The samples with their features: from shards, or recomputed by the target.

    Raises: ConfigError if the recipe names neither; CheckpointError if they are another target's.
    """
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
    layer_ids = recipe.drafter.target_layer_ids
    if not layer_ids:
        num_layers = source_info(source).num_layers
        layer_ids = spread_target_layers(num_layers, recipe.drafter.num_taps)
    target = load_target(recipe.target, dtype=recipe.target_dtype, log=log).target
    return OnlineFeatures(read_answers(Path(recipe.data.answers)), target, layer_ids)


def _check(store: FeatureStore, recipe: TrainRecipe, log: Log) -> None:
    log(f"checking the features in {recipe.data.features}")
    share = recipe.data.check_share
    target = None
    if share:
        target = load_target(recipe.target, dtype=recipe.target_dtype, log=log).target
    report = check_features(store, target, share=share, seed=recipe.run.seed)
    report.require_sound()
    again = f"{report.num_recomputed} recomputed, at most {report.worst_difference:.1%} apart"
    log(f"{report.num_samples:,} samples in {report.num_shards} shards are sound ({again})")


def make_objective(
    recipe: TrainRecipe, config: DFlashConfig, head: Tensor, vocab_ids: Tensor | None
) -> Objective:
    """The method's objective, as the recipe mixes it.

    Args:
        head: the target's whole head.
        vocab_ids: tokens that can be drafted; None for all.
    """
    asked = recipe.objective
    loss = MixedLoss(asked.losses, vocab_ids, asked.temperature)
    if loss.needs_teacher:
        raise UnsupportedError(
            f"objective.losses are {dict(asked.losses)}; features hold no target distributions to"
            " compare with yet: use ce alone"
        )
    rows = head if vocab_ids is None else head[vocab_ids.to(head.device)]
    shared: dict[str, Any] = {
        "head": Head(rows, config.output_multiplier, config.final_logit_softcapping),
        "vocab": DraftVocab(vocab_ids, config.vocab_size),
        "loss": loss,
        "weighting": asked.weighting,
        "gamma": asked.gamma or default_gamma(config.block_size),
        "alpha": asked.alpha,
    }
    if not config.has_selector:
        return DFlashObjective(**shared)
    return DFlash2Objective(
        **shared,
        num_best=config.selector_top_k,
        inject=asked.missing_target == "inject",
        selector_weight=asked.selector_weight,
    )


def _draft_vocab(
    recipe: TrainRecipe, source: SourceFiles, answers: list[Answer]
) -> tuple[list[int] | None, float]:
    """The draft vocabulary (None: all), and its share of the answers' tokens."""
    size, stored = recipe.drafter.draft_vocab_size, stored_draft_vocab(recipe.drafter)
    if recipe.drafter.start_from and len(stored or ()) != size:
        raise ConfigError(
            f"drafter.draft_vocab_size is {size}, and that of {recipe.drafter.start_from}"
            f" {len(stored or ())}; set it to that"
        )
    if not size:
        return None, 1.0
    if stored is not None:
        known = set(stored)
        tokens = [token in known for answer in answers for token in answer.token_ids]
        return stored, sum(tokens) / max(1, len(tokens))
    mask = mask_token(recipe.drafter, source)
    total = source_info(source).vocab_size
    return draft_vocabulary(answers, size, source.end_ids, (mask,), total)


def _target_tables(
    source: SourceFiles, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The target's embedding and head [v, m]; one tensor where they are tied."""
    names = ["model.embed_tokens.weight"]
    if "lm_head.weight" in source.weights:
        names.append("lm_head.weight")
    tables = list(load_weights(source, names, dtype=dtype, device=device).values())
    return tables[0], tables[-1]


def _stream(
    recipe: TrainRecipe, samples: TrainingSamples, split: Split, world: World
) -> BlockStream:
    sizes = StreamSizes(
        block_size=recipe.drafter.block_size,
        num_anchors=recipe.data.num_anchors,
        sequences_per_step=recipe.batch.sequences_per_step,
        sequences_per_pass=recipe.batch.sequences_per_pass,
    )
    return BlockStream(
        samples,
        split.training,
        sizes,
        seed=recipe.run.seed,
        rank=world.rank,
        num_processes=world.size,
    )


def _export(
    recipe: TrainRecipe,
    config: DFlashConfig,
    buffers: dict[str, Tensor],
    source: SourceFiles,
    dtype: torch.dtype,
) -> Export:
    """Writes the drafter in the precision it was trained in."""
    folder, record = Path(recipe.run.out) / DRAFTER_FOLDER, record_target(source_info(source))

    def export(step: int, module: nn.Module) -> None:
        assert isinstance(module, DrafterModule)
        tensors = {name: t.to(dtype) for name, t in module.checkpoint_tensors().items()}
        write_zlab(folder, config, tensors | buffers, {**record, "trained_steps": str(step)})

    return export


def _facts(answers: list[Answer], source: SourceFiles) -> dict[str, str | int]:
    """What must be the same for a resumed run to be the same run."""
    ids = "\n".join(answer.id for answer in answers)
    return {
        "data.num_answers": len(answers),
        "data.answers_sha256": hashlib.sha256(ids.encode()).hexdigest()[:16],
        "target_fingerprint": source.fingerprint,
    }
