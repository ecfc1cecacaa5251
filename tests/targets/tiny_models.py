"""Tiny random models of transformers, and files written from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def tiny_model(name: str = "Llama", *, seed: int = 0, **keys: Any) -> Any:
    """A random float32 causal model; every weight is random, norms and biases too."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **keys})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Wide enough that attention is far from uniform and soft-caps bite.
            is_matrix = parameter.ndim == 2
            parameter.normal_(0.0 if is_matrix else 1.0, 0.3 if is_matrix else 0.2)
    return model


def save(model: Any, folder: Path, **keys: Any) -> Path:
    """Write the model as transformers does."""
    model.save_pretrained(folder, **keys)
    return folder


def state(model: Any) -> dict[str, Tensor]:
    """The tensors a file of this model holds: a tied head is not written."""
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    if model.config.get_text_config().tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors
