"""`blockdraft inspect`: what a drafter checkpoint is, for which target, and its faults."""

from __future__ import annotations

from typing import Annotated

import typer


def inspect(
    drafter: Annotated[
        str,
        typer.Argument(
            help="Folder of a checkpoint; or auto, dflash2, dflash: the one shipped for the target."
        ),
    ],
    target: Annotated[
        str, typer.Option(help="Name of the target whose drafter such a name means.")
    ] = "smollm2-135m",
) -> None:
    """Check a drafter's files and say what it is; faults are named."""
    from blockdraft.interop.zlab import read_provenance, read_zlab
    from blockdraft.registry import checkpoint_folder

    path = checkpoint_folder(drafter, target)
    config, tensors = read_zlab(path)
    num_parameters = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    recorded = read_provenance(path)
    rows = {
        "folder": path,
        "method": config.method,
        "block": f"{config.block_size} rows: the anchor and {config.num_draft_tokens} drafts",
        "layers": config.num_layers,
        "width": f"{config.hidden_size}, {config.num_heads} heads / {config.num_kv_heads} kv heads"
        f" of {config.head_dim}",
        "windows": ", ".join("full" if w is None else str(w) for w in config.windows),
        "block rows": "causal"
        if all(config.causal)
        else "see each other"
        if not any(config.causal)
        else ", ".join("causal" if c else "see each other" for c in config.causal),
        "mask token": config.mask_token_id,
        "taps": f"target layers {list(config.target_layer_ids)} of {config.num_target_layers}",
        "vocabulary": f"{config.vocab_size}, of which {config.draft_vocab_size} can be drafted"
        if config.draft_vocab_size
        else config.vocab_size,
        "parameters": f"{num_parameters / 1e6:.1f} M ({num_bytes / 1e6:.1f} MB)",
        "made for": recorded.get("target_name", "not recorded: it is paired by shape alone"),
        "target hash": recorded.get("target_fingerprint", "not recorded"),
        "trained steps": recorded.get("trained_steps", "not recorded"),
    }
    if config.has_selector:
        rows["selector"] = f"top {config.selector_top_k}, rank {config.selector_rank}"
        rows["convolutions"] = (
            f"{config.conv_kernel_size} taps, groups of {config.conv_group_size} channels"
        )
    for key, value in rows.items():
        print(f"{key:14} {value}")
