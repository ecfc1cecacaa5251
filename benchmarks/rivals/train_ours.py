"""A training step of ours as a worker.

python -m benchmarks.rivals.train_ours --sequences 4 --length 256 --prompt-len 64 --anchors 32
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import torch

from benchmarks.rivals import training_shape as shape
from benchmarks.rivals.worker import serve
from blockdraft.data.collate import BlockBatch, collate
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.drafters.tensors import tensor_shapes
from blockdraft.evaluation.provenance import provenance
from blockdraft.layers.rope import RopeConfig
from blockdraft.training.head import Head
from blockdraft.training.losses import MixedLoss
from blockdraft.training.module import DrafterModule
from blockdraft.training.objectives.blocks import DraftVocab
from blockdraft.training.objectives.dflash2 import DFlash2Objective
from blockdraft.training.optimizer import clip_gradients, make_optimizers
from blockdraft.training.recipe import OptimizerRecipe


def make_config(draft_vocab_size: int) -> DFlashConfig:
    """The drafter."""
    return DFlashConfig(
        method="dflash2",
        num_layers=shape.LAYERS,
        hidden_size=shape.WIDTH,
        intermediate_size=shape.INNER,
        num_heads=shape.HEADS,
        num_kv_heads=shape.KV_HEADS,
        head_dim=shape.HEAD_DIM,
        vocab_size=shape.VOCAB,
        max_context_len=8192,
        windows=(None,) * shape.LAYERS,
        causal=(False,) * shape.LAYERS,
        block_size=shape.BLOCK,
        mask_token_id=shape.MASK,
        target_layer_ids=shape.TAPS,
        num_target_layers=shape.TARGET_LAYERS,
        draft_vocab_size=draft_vocab_size,
        norm_eps=shape.EPS,
        rope=RopeConfig(theta=shape.THETA),
        conv_kernel_size=2,
        conv_group_size=shape.CONV_GROUP,
        selector_rank=shape.RANK,
        selector_top_k=shape.TOP_K,
    )


def make_module(config: DFlashConfig, embedding: torch.Tensor) -> DrafterModule:
    """Random weights; bfloat16 products over float32 masters."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: 0.02 * torch.randn(size, generator=generator)
        for name, size in tensor_shapes(config).items()
        if name != DRAFT_VOCAB_IDS
    }
    tensors |= {name: torch.ones_like(t) for name, t in tensors.items() if "norm.weight" in name}
    if config.draft_vocab_size:
        tensors[DRAFT_VOCAB_IDS] = 20 + torch.arange(config.draft_vocab_size)
    return DrafterModule.from_tensors(config, tensors, embedding.bfloat16(), torch.bfloat16)


def make_batch(sizes: shape.Sizes, step: int) -> BlockBatch:
    """A step's sequences, packed with blocks that lie whole in them."""
    ids, states = shape.sequences(sizes, step)
    generator = torch.Generator().manual_seed(10_000 + step)
    room = sizes.length - shape.BLOCK - sizes.prompt_len + 1
    samples, anchors = [], []
    for i in range(sizes.sequences):
        samples.append(FeatureSample(ids[i], sizes.prompt_len, states[i, :-1], f"s{i}"))
        places = torch.randperm(room, generator=generator)[: sizes.anchors]
        anchors.append(places.sort().values + sizes.prompt_len)
    return collate(samples, anchors, shape.BLOCK)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draft-vocab-size", type=int, default=0)
    args, sizes = shape.read_sizes(parser)
    config, embedding = make_config(args.draft_vocab_size), shape.table()
    module = make_module(config, embedding)
    ids = 20 + torch.arange(config.draft_vocab_size) if config.draft_vocab_size else None
    rows = embedding.bfloat16() if ids is None else embedding[ids].bfloat16()
    objective = DFlash2Objective(
        head=Head(rows),
        vocab=DraftVocab(ids, shape.VOCAB),
        loss=MixedLoss({"ce": 1.0}, ids),
        gamma=shape.GAMMA,
        num_best=shape.TOP_K,
        inject=True,
    )
    optimizers = make_optimizers(module, OptimizerRecipe())
    steps = itertools.count()

    def step() -> dict[str, Any]:
        """One update, from the sequences on; making them is not timed."""
        batch = make_batch(sizes, next(steps))
        start = time.perf_counter()
        optimizers.zero_grad()
        out = objective(module, batch)
        out.loss.backward()
        clip_gradients(optimizers.parameters(), 1 / float(out.weight), 1.0)
        optimizers.step(1.0)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "slots": batch.num_slots,
            "loss": float(out.loss.detach() / out.weight),
        }

    num = sum(p.numel() for p in module.parameters())
    models = {"threads": torch.get_num_threads(), "num_parameters": num}
    serve({"step": step}, {"provenance": provenance(models), **models})


if __name__ == "__main__":
    main()
