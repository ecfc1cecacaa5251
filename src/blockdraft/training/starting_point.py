"""The drafter that a run starts from: a new one for the target, or a checkpoint to go on from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from blockdraft.drafters.config import SELECTOR_FIELDS, DFlashConfig, Method, spread_target_layers
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.init import init_drafter
from blockdraft.errors import ConfigError
from blockdraft.interop.new_drafter import find_mask_token
from blockdraft.interop.zlab import read_zlab
from blockdraft.interop.zlab_expand import expand_vocab
from blockdraft.targets.load import source_info
from blockdraft.targets.sources import SourceFiles
from blockdraft.training.recipe import DrafterRecipe
from blockdraft.training.warm_start import warm_start

#: What a checkpoint of the plain method need not share with the one that goes on from it.
_MAY_DIFFER = ("method", *SELECTOR_FIELDS)


def mask_token(recipe: DrafterRecipe, source: SourceFiles) -> int:
    """The recipe's mask token, or one that text never holds."""
    if recipe.mask_token_id is not None:
        return recipe.mask_token_id
    vocab_size = source_info(source).vocab_size
    return find_mask_token(source.codec(), vocab_size, source.end_ids)


def tap_ids(recipe: DrafterRecipe, source: SourceFiles) -> tuple[int, ...]:
    """The target layers that are tapped."""
    spread = source_info(source).num_layers, recipe.num_taps
    return recipe.target_layer_ids or spread_target_layers(*spread)


def new_drafter(
    recipe: DrafterRecipe,
    source: SourceFiles,
    draft_vocab_ids: Sequence[int] | None,
    seed: int,
    features: Tensor | None = None,
) -> tuple[DFlashConfig, dict[str, Tensor]]:
    """Config and float32 tensors to start from.

    Args:
        features: some feature rows, to measure the size of queries and keys on.
    Raises: ConfigError or CheckpointError if shapes do not go together.
    """
    is_gemma = str(source.config.get("model_type")).startswith("gemma")
    config, tensors = init_drafter(
        source_info(source),
        source.config,
        method=cast(Method, recipe.method),
        mask_token_id=mask_token(recipe, source),
        num_layers=recipe.num_layers,
        block_size=recipe.block_size,
        window=recipe.window or None,
        is_causal=recipe.is_causal,
        target_layer_ids=tap_ids(recipe, source),
        conv_kernel_size=recipe.conv_kernel_size,
        conv_group_size=recipe.conv_group_size,
        selector_rank=recipe.selector_rank,
        selector_top_k=recipe.selector_top_k,
        draft_vocab_ids=draft_vocab_ids,
        input_embedding_scale=math.sqrt(source.config["hidden_size"]) if is_gemma else 1.0,
        seed=seed,
        copy_layers_from=source.weights if recipe.copy_layers and not recipe.start_from else None,
    )
    if recipe.start_from:
        return config, tensors | _checkpoint(recipe.start_from, config, draft_vocab_ids)
    if recipe.copy_layers:
        has_norm = any(name.endswith("self_attn.q_norm.weight") for name in source.weights)
        tensors = warm_start(config, tensors, features, has_qk_norm=has_norm, seed=seed)
    return config, tensors


def stored_draft_vocab(recipe: DrafterRecipe) -> list[int] | None:
    """The draft vocabulary of the checkpoint to go on from; None if there is none, or all."""
    if not recipe.start_from:
        return None
    ids = read_zlab(recipe.start_from)[1].get(DRAFT_VOCAB_IDS)
    return None if ids is None else [int(i) for i in ids]


def _checkpoint(
    folder: str, config: DFlashConfig, draft_vocab_ids: Sequence[int] | None
) -> dict[str, Tensor]:
    """Tensors of a checkpoint of the same shape, its draft vocabulary grown to the recipe's.

    Parts that it lacks stay at their start.
    """
    found, tensors = read_zlab(folder)
    _check_shape(folder, found, config)
    if found.draft_vocab_size != config.draft_vocab_size:
        tensors = expand_vocab(found, tensors, draft_vocab_ids)[1]
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}


def _check_shape(folder: str, found: DFlashConfig, config: DFlashConfig) -> None:
    mine, theirs = _shared(config), _shared(found)
    if found.method == config.method:
        mine, theirs = _sizes(config), _sizes(found)
    differing = [name for name in mine if mine[name] != theirs[name]]
    if differing or (found.has_selector and not config.has_selector):
        name = differing[0] if differing else "method"
        raise ConfigError(
            f"drafter.start_from {folder} has {name} {getattr(found, name)!r}, and the recipe"
            f" {getattr(config, name)!r}; set the recipe's to the checkpoint's"
        )


def _shared(config: DFlashConfig) -> Mapping[str, Any]:
    return {name: value for name, value in _sizes(config).items() if name not in _MAY_DIFFER}


def _sizes(config: DFlashConfig) -> Mapping[str, Any]:
    """What must be the same; a draft vocabulary may grow, and that it does is checked before."""
    fields = dataclasses.asdict(config)
    return {name: value for name, value in fields.items() if name != "draft_vocab_size"}
