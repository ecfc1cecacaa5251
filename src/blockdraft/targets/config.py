"""Config of a Llama / Mistral / Qwen2 / Qwen3 decoder, read strictly from a transformers dict.

A key that is neither known to leave the maths alone nor implemented here is an error: a model
that runs with one of its settings ignored gives fluent and wrong text.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft.errors import CheckpointError, UnsupportedError
from blockdraft.layers.rope import RopeConfig
from blockdraft.targets.config_keys import KNOWN, ROPE_NEEDS, is_harmless
from blockdraft.targets.end_ids import read_ids


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Everything that shapes the maths of a decoder of the Llama family.

    Attributes:
        model_type: "llama", "mistral", "qwen2" or "qwen3".
        head_dim: width of one head; num_heads * head_dim need not be hidden_size.
        max_context_len: most positions the model was made for, in tokens.
        tie_embeddings: the head is the embedding table.
        qkv_bias, o_bias, mlp_bias: which products carry a bias.
        qk_norm: queries and keys are RMS-normalised per head (Qwen3).
        windows: of each layer, the window W of a sliding layer (a key is visible iff
            q_pos - k_pos < W), or None for full attention.
        end_ids: ids that end a sequence, as far as this file says (may be empty).
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context_len: int
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig
    windows: tuple[int | None, ...]
    end_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads is {self.num_heads}; it must be a multiple of "
                f"num_key_value_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise UnsupportedError(f"head_dim is {self.head_dim}; rotary needs an even width")
        if len(self.windows) != self.num_layers:
            raise CheckpointError(
                f"{len(self.windows)} layer types for {self.num_layers} layers; give one a layer"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Parse a `config.json` dict; missing optional keys get the defaults of transformers.

        Raises:
            UnsupportedError: another model type, activation, rotary scaling, or a key that may
                change the maths and is not implemented.
            CheckpointError: a key is missing, of the wrong type, or contradicts another.
        """
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or model_type not in KNOWN:
            raise UnsupportedError(
                f"model_type {model_type!r} is not one of the built-in decoder: {', '.join(KNOWN)}"
            )
        _check_keys(model_type, config)
        num_heads = _int(config, "num_attention_heads")
        hidden_size = _int(config, "hidden_size")
        num_layers = _int(config, "num_hidden_layers")
        attention_bias = _flag(config, "attention_bias")
        return cls(
            model_type=model_type,
            vocab_size=_int(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_int(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_num_kv_heads(model_type, config, num_heads),
            head_dim=_head_dim(model_type, config, hidden_size, num_heads),
            norm_eps=_float(config, "rms_norm_eps"),
            max_context_len=_int(config, "max_position_embeddings"),
            tie_embeddings=_flag(config, "tie_word_embeddings"),
            qkv_bias=model_type == "qwen2" or attention_bias,
            o_bias=attention_bias,
            mlp_bias=_flag(config, "mlp_bias"),
            qk_norm=model_type == "qwen3",
            rope=_rope(config),
            windows=_windows(model_type, config, num_layers),
            end_ids=read_ids(config, "eos_token_id", "config.json"),
        )


def _check_keys(model_type: str, config: Mapping[str, Any]) -> None:
    for key, value in config.items():
        if key in KNOWN[model_type] or is_harmless(key, value):
            continue
        raise UnsupportedError(
            f"{key} is {reprlib.repr(value)} in the config of this {model_type} model, which the "
            f"built-in decoder does not know: it may change the maths, so it is not ignored"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedError(f"hidden_act is {activation!r}; only 'silu' is implemented")
    if config.get("is_encoder_decoder") or config.get("add_cross_attention"):
        raise UnsupportedError("the model has cross attention; only decoders are implemented")


def _int(config: Mapping[str, Any], key: str) -> int:
    """A positive whole number that must be there."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"{key} is {value!r} in the config; it must be a number above 0")
    return value


def _float(config: Mapping[str, Any], key: str) -> float:
    """A positive number that must be there."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"{key} is {value!r} in the config; it must be a number above 0")
    return float(value)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{key} is {value!r} in the config; it must be true or false")
    return bool(value)


def _num_kv_heads(model_type: str, config: Mapping[str, Any], num_heads: int) -> int:
    """Llama's default is one per head; the others' defaults belong to one size of model."""
    if config.get("num_key_value_heads") is None and model_type == "llama":
        return num_heads
    return _int(config, "num_key_value_heads")


def _head_dim(model_type: str, config: Mapping[str, Any], hidden_size: int, num_heads: int) -> int:
    if config.get("head_dim") is not None or model_type == "qwen3":
        return _int(config, "head_dim")
    if hidden_size % num_heads:
        raise CheckpointError(
            f"hidden_size is {hidden_size} and head_dim is not given; hidden_size must then be a "
            f"multiple of num_attention_heads ({num_heads})"
        )
    return hidden_size // num_heads


def _rope(config: Mapping[str, Any]) -> RopeConfig:
    """Both spellings may be there (converted files), but they must say the same."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    for table in (new, old):
        if table is not None and not isinstance(table, Mapping):
            raise CheckpointError(f"rotary settings are {table!r} in the config; give a table")
    if new and old:
        theta = old.get("rope_theta", new.get("rope_theta"))
        shared = {**config, "rope_scaling": None}
        if RopeConfig.from_dict(shared) != RopeConfig.from_dict(
            {**shared, "rope_parameters": {**old, "rope_theta": theta}}
        ):
            raise CheckpointError("rope_parameters and rope_scaling differ in the config; keep one")
    theta = config.get("rope_theta")
    if new and theta is not None and new.get("rope_theta", theta) != theta:
        raise CheckpointError(
            f"rope_theta is {theta} and {new['rope_theta']} in the config; keep one"
        )
    rope, table = RopeConfig.from_dict(config), new or old or {}
    missing = [key for key in ROPE_NEEDS.get(rope.rope_type, ()) if table.get(key) is None]
    if missing:
        raise CheckpointError(f"rope type {rope.rope_type!r} needs {', '.join(missing)}; add it")
    return rope


def _windows(model_type: str, config: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    if model_type == "llama":
        return (None,) * num_layers
    if model_type == "mistral":
        # transformers gives a file that leaves the key out this window; null says "none"
        window = _window(config) if config.get("sliding_window", 4096) is not None else None
        return (window,) * num_layers
    layer_types = config.get("layer_types")
    if layer_types is not None and not _is_texts(layer_types):
        raise CheckpointError(f"layer_types is {reprlib.repr(layer_types)}; it must list names")
    if not _flag(config, "use_sliding_window"):
        if layer_types is not None and set(layer_types) != {"full_attention"}:
            raise CheckpointError("layer_types has sliding layers but use_sliding_window is false")
        return (None,) * num_layers
    if config.get("sliding_window", 4096) is None:
        return (None,) * num_layers
    window = _window(config)
    if layer_types is None:
        first = config.get("max_window_layers", 28)
        if not isinstance(first, int) or first < 0:
            raise CheckpointError(f"max_window_layers is {first!r}; it must be 0 or more")
        return tuple(window if i >= first else None for i in range(num_layers))
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedError(f"layer types {sorted(unknown)} are not implemented")
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _window(config: Mapping[str, Any]) -> int:
    return _int({"sliding_window": 4096, **config}, "sliding_window")
