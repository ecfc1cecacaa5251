"""Tiny batches of packed blocks with random features, and the serving path's answer to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blockdraft.data.collate import BlockBatch, collate
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.drafters.backbone import Backbone
from blockdraft.drafters.config import DFlashConfig
from blockdraft.kernels.choose import choose_kernels

CPU = torch.device("cpu")


def make_sample(
    config: DFlashConfig, num_tokens: int, prompt_len: int = 3, seed: int = 0
) -> FeatureSample:
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.mask_token_id, (num_tokens,), generator=gen)
    features = torch.randn(num_tokens - 1, config.feature_size, generator=gen)
    return FeatureSample(tokens, prompt_len, features, f"sample-{seed}")


def make_batch(
    config: DFlashConfig, samples: Sequence[FeatureSample], anchors: Sequence[Sequence[int]]
) -> BlockBatch:
    return collate(samples, [torch.tensor(a) for a in anchors], config.block_size)


def random_embedding(config: DFlashConfig) -> Tensor:
    return torch.randn(
        config.vocab_size, config.hidden_size, generator=torch.Generator().manual_seed(5)
    )


def served_rows(
    config: DFlashConfig,
    tensors: Mapping[str, Tensor],
    embedding: Tensor,
    sample: FeatureSample,
    anchor: int,
) -> Tensor:
    """Final-normed rows [t, m] of one block as the decoding loop would make them."""
    backbone = Backbone(config, tensors, choose_kernels(torch.float32, CPU, "torch"), CPU)
    context = backbone.new_context(1, len(sample.token_ids) + 1, config.block_size)
    context.append(sample.features[None, :anchor], 0, [0], [anchor])
    ids = torch.full((1, config.block_size), config.mask_token_id)
    ids[0, 0] = sample.token_ids[anchor]
    rows = embedding[ids] * config.input_embedding_scale
    return backbone.run(rows, context, [anchor])[0]
