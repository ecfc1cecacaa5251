"""Which keys of a `config.json` the built-in decoder knows, and which leave the maths alone."""

from __future__ import annotations

from typing import Any

_SHARED = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
}
_QWEN_WINDOWS = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}

#: Keys that are read, by model type.
KNOWN: dict[str, set[str]] = {
    "llama": _SHARED | {"attention_bias", "mlp_bias"},
    "mistral": _SHARED | {"sliding_window"},
    "qwen2": _SHARED | _QWEN_WINDOWS,
    "qwen3": _SHARED | _QWEN_WINDOWS | {"attention_bias"},
}

_ANYWHERE = set[str]().union(*KNOWN.values())

#: What a rotary scaling cannot do without.
ROPE_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}

#: Keys of bookkeeping, training, or how a generation is started and written down.
_HARMLESS = {
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "do_sample",
    "dtype",
    "early_stopping",
    "eos_token_id",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
}

#: Keys that start so are notes of the tool that wrote the file.
_HARMLESS_PREFIXES = ("_", "unsloth_")


def is_harmless(key: str, value: Any) -> bool:
    """Whether an unread key cannot change the maths.

    Unset values change nothing; nor does `false` for a switch that a sibling model has.
    """
    if value is None or value == {} or value == []:
        return True
    if value is False and key in _ANYWHERE:
        return True
    return key in _HARMLESS or key.startswith(_HARMLESS_PREFIXES)
