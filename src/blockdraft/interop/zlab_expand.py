"""A drafter with a draft vocabulary, made whole for readers that know none (z-lab, vLLM, SGLang).

The whole head may then choose a candidate that the subset does not have, so drafts may differ from
those of the drafter it was made from where such a token is among the best of a slot. The output is
the target's all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.tensors import check_tensors

_PREDECESSORS = "candidate_selector.predecessor_codebook"
_SUCCESSORS = "candidate_selector.successor_codebook"


def expand_vocab(
    config: DFlashConfig, tensors: Mapping[str, Tensor]
) -> tuple[DFlashConfig, dict[str, Tensor]]:
    """The same drafter over the whole vocabulary; one that is whole already comes back as it is.

    Tokens outside the subset keep the predecessor row that stood for all of them, and have a
    successor row of zeros: as candidates they score their logit alone.

    Raises: CheckpointError if the tensors do not fit the config.
    """
    check_tensors(config, tensors)
    if not config.draft_vocab_size:
        return config, dict(tensors)
    ids = tensors[DRAFT_VOCAB_IDS]
    whole = {name: tensor for name, tensor in tensors.items() if name != DRAFT_VOCAB_IDS}
    if config.has_selector:
        predecessors, successors = tensors[_PREDECESSORS], tensors[_SUCCESSORS]
        others = predecessors[-1:].expand(config.vocab_size, -1)
        whole[_PREDECESSORS] = others.index_copy(0, ids, predecessors[:-1])
        nothing = successors.new_zeros(config.vocab_size, config.selector_rank)
        whole[_SUCCESSORS] = nothing.index_copy(0, ids, successors)
    return dataclasses.replace(config, draft_vocab_size=0), whole
