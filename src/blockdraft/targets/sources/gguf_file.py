"""A GGUF file as a source."""

from __future__ import annotations

from pathlib import Path

from blockdraft.errors import CheckpointError
from blockdraft.targets.sources.files import SourceFiles
from blockdraft.targets.sources.gguf_config import gguf_to_config
from blockdraft.targets.sources.gguf_header import read_header
from blockdraft.targets.sources.gguf_quants import read_tensor
from blockdraft.targets.sources.gguf_tokenizer import read_tokenizer
from blockdraft.targets.sources.gguf_weights import ROPE_FREQS, GgufWeights


def read_gguf(path: Path, *, name: str | None = None, source: str | None = None) -> SourceFiles:
    """Read config and tokenizer of a GGUF file, and check that its tensors are all there.

    Raises:
        CheckpointError: the file is damaged or contradicts itself; names it.
        UnsupportedError: an architecture, setting, tensor or tokenizer that is not served.
    """
    header = read_header(path)
    place = header.tensors.get(ROPE_FREQS)
    config = gguf_to_config(header, read_tensor(path, ROPE_FREQS, place) if place else None)
    tokenizer = read_tokenizer(header)
    num_tokens, num_rows = len(header.metadata["tokenizer.ggml.tokens"]), config["vocab_size"]
    if num_tokens > num_rows:
        raise CheckpointError(f"{path} has {num_tokens} tokens but {num_rows} embedding rows")
    eos_id = header.metadata.get("tokenizer.ggml.eos_token_id")
    weights = GgufWeights(header)
    return SourceFiles(
        name=name or path.stem,
        source=source or f"gguf:{path.resolve()}",
        config={**config, "eos_token_id": eos_id},
        generation_config={"eos_token_id": list(tokenizer.end_ids)},
        weights=weights,
        grouped=weights.grouped,
        weight_paths=(path,),
        tokenizer=tokenizer.tokenizer,
        chat_template=tokenizer.chat_template,
        special_tokens=tokenizer.special_tokens,
    )
