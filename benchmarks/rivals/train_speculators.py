"""A training step of speculators' DFlash 2 as a worker: its model, its losses, its optimiser.

python -m benchmarks.rivals.train_speculators --attention sdpa --sequences 4 --length 256 ..

As its trainer does it: autocast to bfloat16, clipping at 1, AdamW. Sequences are packed into one.
"""

from __future__ import annotations

import argparse
import itertools
import time
from importlib.metadata import version
from typing import Any

import torch
from speculators import DFlash2DraftModel, DFlash2SpeculatorConfig
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from benchmarks.rivals import training_shape as shape
from benchmarks.rivals.worker import serve


def make_model(attention: str) -> Any:
    """Random weights; the target's tables in place of what it would read from a folder."""
    layers = Qwen3Config(
        vocab_size=shape.VOCAB,
        hidden_size=shape.WIDTH,
        intermediate_size=shape.INNER,
        num_hidden_layers=shape.LAYERS,
        num_attention_heads=shape.HEADS,
        num_key_value_heads=shape.KV_HEADS,
        head_dim=shape.HEAD_DIM,
        rms_norm_eps=shape.EPS,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": shape.THETA},
        attn_implementation=attention,
    )
    layers._attn_implementation = attention
    config = DFlash2SpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=shape.VOCAB,
        block_size=shape.BLOCK,
        aux_hidden_state_layer_ids=list(shape.TAPS),
        mask_token_id=shape.MASK,
        conv_kernel_size=2,
        conv_group_size=shape.CONV_GROUP,
        selector_rank=shape.RANK,
        selector_top_k=shape.TOP_K,
    )
    model = DFlash2DraftModel(config)
    table = shape.table()
    with torch.no_grad():
        for part in (model.embed_tokens, model.lm_head, model.verifier_lm_head):
            part.weight.copy_(table)
        model.verifier_norm.weight.fill_(1.0)
    return model.train()


def make_batch(sizes: shape.Sizes, step: int) -> dict[str, torch.Tensor]:
    """The same sequences in one row, as its collator packs them."""
    ids, states = shape.sequences(sizes, step)
    mask = torch.ones(sizes.sequences, sizes.length)
    mask[:, : sizes.prompt_len] = 0
    places = torch.arange(sizes.length).expand(sizes.sequences, -1)
    documents = torch.arange(sizes.sequences)[:, None].expand(-1, sizes.length)
    states = states.flatten(0, 1)[None]
    return {
        "hidden_states": states,
        "input_ids": ids.reshape(1, -1),
        "loss_mask": mask.view(1, -1),
        "verifier_last_hidden_states": states[..., -shape.WIDTH :].contiguous(),
        "document_ids": documents.reshape(1, -1),
        "position_ids": places.reshape(1, -1),
    }


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attention", choices=("eager", "sdpa"), required=True)
    args, sizes = shape.read_sizes(parser)
    torch.manual_seed(0)
    model = make_model(args.attention)
    options, _ = DFlash2DraftModel.get_trainer_kwargs(
        loss_fn="ce",
        loss_implementation="eager",
        dflash_decay_gamma=shape.GAMMA,
        max_anchors=sizes.sequences * sizes.anchors,
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=8e-4, weight_decay=0.01)
    steps = itertools.count()

    def step() -> dict[str, Any]:
        """One update; every slot of its blocks but the anchor's counts as trained."""
        batch = make_batch(sizes, next(steps))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, loss, _ = model(**batch, **options)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "slots": sizes.num_slots, "loss": float(loss.detach())}

    about = {
        "version": version("speculators"),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "num_parameters": sum(p.numel() for p in trained),
    }
    serve({"step": step}, about)


if __name__ == "__main__":
    main()
