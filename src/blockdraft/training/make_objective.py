"""A recipe's objective, with the target's frozen tables that it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DraftVocab
from blockdraft.errors import ConfigError
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.sources import SourceFiles, load_weights
from blockdraft.training.head import Head
from blockdraft.training.losses import MixedLoss
from blockdraft.training.objectives.base import Objective
from blockdraft.training.objectives.dflash import DFlashObjective
from blockdraft.training.objectives.dflash2 import DFlash2Objective
from blockdraft.training.position_weights import default_gamma
from blockdraft.training.recipe import ObjectiveRecipe
from blockdraft.training.teacher import Teacher

_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@dataclass(frozen=True)
class TargetTables:
    """What is borrowed from the target, frozen: one tensor for both where they are tied."""

    embedding: Float[Tensor, "v m"]
    head: Float[Tensor, "v m"]


def target_tables(source: SourceFiles, dtype: torch.dtype, device: torch.device) -> TargetTables:
    """Read the tables in the numbers that the products are made of."""
    names = [_EMBEDDING, *(name for name in (_HEAD,) if name in source.weights)]
    tables = list(load_weights(source, names, dtype=dtype, device=device).values())
    return TargetTables(tables[0], tables[-1])


def teacher_layer(recipe: ObjectiveRecipe, source: SourceFiles) -> int | None:
    """The layer whose states the losses need beside the taps; None if they look at tokens alone.

    Raises: UnsupportedError if the target's way from there to its logits is not known.
    """
    if not MixedLoss(recipe.losses).needs_teacher:
        return None
    return DecoderConfig.from_dict(source.config).num_layers - 1


def make_objective(
    recipe: ObjectiveRecipe,
    config: DFlashConfig,
    tables: TargetTables,
    source: SourceFiles,
    vocab_ids: Tensor | None,
) -> Objective:
    """The method's objective, as the recipe mixes it.

    Args:
        vocab_ids: tokens that can be drafted; None for all.
    """
    device = tables.head.device
    ids = None if vocab_ids is None else vocab_ids.to(device)
    rows = tables.head if ids is None else tables.head[ids]
    loss = MixedLoss(recipe.losses, ids, recipe.temperature)
    shared: dict[str, Any] = {
        "head": Head(rows, config.output_multiplier, config.final_logit_softcapping),
        "vocab": DraftVocab(ids, config.vocab_size),
        "loss": loss,
        "weighting": recipe.weighting,
        "gamma": recipe.gamma or default_gamma(config.block_size),
        "alpha": recipe.alpha,
        "teacher": _teacher(tables, source) if loss.needs_teacher else None,
    }
    if not config.has_selector:
        return DFlashObjective(**shared)
    if recipe.missing_target == "inject" and config.selector_top_k < 2:
        raise ConfigError('missing_target "inject" needs drafter.selector_top_k of 2 or more')
    return DFlash2Objective(
        **shared,
        num_best=config.selector_top_k,
        inject=recipe.missing_target == "inject",
        selector_weight=recipe.selector_weight,
    )


def _teacher(tables: TargetTables, source: SourceFiles) -> Teacher:
    """The target's head, without multiplier and soft-cap: `teacher_layer` knows no others."""
    device = tables.head.device
    norm = load_weights(source, [_NORM], dtype=torch.float32, device=device)[_NORM]
    return Teacher(Head(tables.head), norm, DecoderConfig.from_dict(source.config).norm_eps)
