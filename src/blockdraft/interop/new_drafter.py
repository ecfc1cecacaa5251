"""An untrained drafter checkpoint for a target that is found by name."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from blockdraft.drafters.config import METHODS, DFlashConfig, Method
from blockdraft.drafters.draft_vocab import read_draft_vocab
from blockdraft.drafters.init import init_drafter
from blockdraft.drafters.pairing import record_target
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.interop.zlab import write_zlab
from blockdraft.targets.load import source_info
from blockdraft.targets.sources import SourceFiles, resolve
from blockdraft.targets.tokenizer import TextCodec


@dataclass(frozen=True, kw_only=True)
class NewDrafter:
    """What is asked for; see `blockdraft.drafters.init`. None for a mask token finds one.

    `draft_vocab_file` lists the tokens that can be drafted; None for all.
    """

    method: str = "dflash2"
    num_layers: int = 3
    block_size: int = 8
    num_taps: int = 5
    window: int | None = 1024
    selector_rank: int = 256
    mask_token_id: int | None = None
    draft_vocab_file: Path | None = None
    copy_layers: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method {self.method!r} does not exist; use {' or '.join(METHODS)}")


def write_new_drafter(
    target: str, asked: NewDrafter, folder: Path, *, log: Callable[[str], None]
) -> dict[str, Any]:
    """Make the drafter and write it to `folder`, which must not exist; says what it is.

    Raises: ConfigError if the folder exists or the shapes do not go together.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists already; choose another folder or remove it")
    file = asked.draft_vocab_file
    draft_vocab_ids = None if file is None else read_draft_vocab(file)
    source = resolve(target, progress=log)
    info, mask = source_info(source), asked.mask_token_id
    if mask is None:
        mask = find_mask_token(source.codec(), info.vocab_size, source.end_ids)
    config, tensors = init_drafter(
        info,
        source.config,
        method=cast(Method, asked.method),
        mask_token_id=mask,
        num_layers=asked.num_layers,
        block_size=asked.block_size,
        window=asked.window,
        num_taps=asked.num_taps,
        selector_rank=asked.selector_rank,
        draft_vocab_ids=draft_vocab_ids,
        input_embedding_scale=_embedding_scale(source),
        seed=asked.seed,
        copy_layers_from=source.weights if asked.copy_layers else None,
    )
    # Under another name first: stopped halfway, nothing stands where a whole drafter should.
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {folder.parent} cannot be made a folder "
            f"({error.strerror})"
        ) from error
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        whole = Path(scratch) / folder.name
        write_zlab(
            whole,
            config,
            tensors,
            {**record_target(info, source.codec().template_sha256), "trained_steps": "0"},
        )
        whole.rename(folder)
    num_parameters = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    return {
        "folder": folder,
        "method": asked.method,
        "target": info.name,
        "parameters": f"{num_parameters / 1e6:.1f} M",
        "mask token": f"{mask} ({source.codec().tokenizer.id_to_token(mask) or 'padding row'})",
        "taps": list(config.target_layer_ids),
        "drafts from": drafts_from(config),
    }


def drafts_from(config: DFlashConfig) -> str:
    """The tokens that a drafter can draft, in words."""
    if not config.draft_vocab_size:
        return f"all {config.vocab_size} tokens"
    return f"{config.draft_vocab_size} of {config.vocab_size} tokens"


def find_mask_token(codec: TextCodec, vocab_size: int, end_ids: tuple[int, ...]) -> int:
    """A row of the embedding that text never holds.

    A padding row beyond the tokenizer's vocabulary, else the last special token that neither ends
    a text nor stands in the chat template.

    Raises: ConfigError if there is none.
    """
    num_tokens = codec.tokenizer.get_vocab_size()
    if num_tokens < vocab_size:
        return vocab_size - 1
    template = codec.chat_template or ""
    for token_id in sorted(codec.special_ids, reverse=True):
        spelling = codec.tokenizer.id_to_token(token_id)
        if spelling is None:
            continue
        is_named = spelling in codec.special_tokens.values()
        if token_id not in end_ids and spelling not in template and not is_named:
            return int(token_id)
    raise ConfigError("no token is free to be the mask; name one with --mask-token-id")


def _embedding_scale(source: SourceFiles) -> float:
    """Gemma-type models multiply their embedding rows by sqrt(width)."""
    is_gemma = str(source.config.get("model_type")).startswith("gemma")
    return math.sqrt(float(source.config["hidden_size"])) if is_gemma else 1.0
