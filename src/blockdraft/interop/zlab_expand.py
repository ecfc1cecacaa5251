"""A drafter with a draft vocabulary, made whole for readers that know none (z-lab, vLLM, SGLang).

The whole head may then choose a candidate that the subset does not have, so drafts may differ from
those of the drafter it was made from where such a token is among the best of a slot. The output is
the target's all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.tensors import check_tensors

_PREDECESSORS = "candidate_selector.predecessor_codebook"
_SUCCESSORS = "candidate_selector.successor_codebook"


def expand_vocab(
    config: DFlashConfig, tensors: Mapping[str, Tensor], token_ids: Sequence[int] | None = None
) -> tuple[DFlashConfig, dict[str, Tensor]]:
    """The same drafter over more tokens; one that is whole already comes back as it is.

    The tokens that are new keep the predecessor row that stood for all of them, and have a
    successor row of zeros: as candidates they score their logit alone.

    Args:
        token_ids: the new draft vocabulary, ascending; None is the target's whole one.
    Raises: CheckpointError if the tensors do not fit the config; ValueError if a token that can be
        drafted is not among the new ones.
    """
    check_tensors(config, tensors)
    if not config.draft_vocab_size:
        return config, dict(tensors)
    ids = tensors[DRAFT_VOCAB_IDS]
    new = torch.arange(config.vocab_size) if token_ids is None else torch.tensor(token_ids)
    if not bool(torch.isin(ids, new).all()):
        raise ValueError("the new draft vocabulary must hold the present one")
    rows = torch.searchsorted(new, ids)
    expanded = {name: tensor for name, tensor in tensors.items() if name != DRAFT_VOCAB_IDS}
    if token_ids is not None:
        expanded[DRAFT_VOCAB_IDS] = new
    if config.has_selector:
        predecessors, successors = tensors[_PREDECESSORS], tensors[_SUCCESSORS]
        num_others = 0 if token_ids is None else 1
        others = predecessors[-1:].expand(len(new) + num_others, -1)
        expanded[_PREDECESSORS] = others.index_copy(0, rows, predecessors[:-1])
        nothing = successors.new_zeros(len(new), config.selector_rank)
        expanded[_SUCCESSORS] = nothing.index_copy(0, rows, successors)
    size = 0 if token_ids is None else len(new)
    return dataclasses.replace(config, draft_vocab_size=size), expanded
