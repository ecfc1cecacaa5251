"""The structs of csrc/bd.h, field for field; `library.load` compares their sizes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_void_p

ABI_VERSION = 4
ISAS = ("portable", "avx2", "avx512", "amx")
HEAD_NONE, HEAD_F32, HEAD_BF16, HEAD_TOP = range(4)
OUT_F32, OUT_BF16 = range(2)
WEIGHTS_BF16, WEIGHTS_INT8, WEIGHTS_GROUP4, WEIGHTS_GROUP8 = range(4)
WEIGHT_FORMATS = ("bfloat16", "int8", "group4", "group8")
MAX_TOP = 64
MAX_HEAD_DIM = 256


class LinearStruct(ctypes.Structure):
    """bd_linear"""

    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("kind", c_int32),
        ("n", c_int32),
        ("k", c_int32),
        ("k_padded", c_int32),
        ("num_blocks", c_int32),
    )


class ConvStruct(ctypes.Structure):
    """bd_conv"""

    _fields_ = (("base", c_void_p), ("projection", LinearStruct))


class LayerStruct(ctypes.Structure):
    """bd_layer"""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", LinearStruct),
        ("output", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("attention_conv", ConvStruct),
        ("mlp_conv", ConvStruct),
        ("window", c_int32),
        ("is_causal", c_int32),
    )


class ModelStruct(ctypes.Structure):
    """bd_model"""

    _fields_ = (
        ("num_layers", c_int32),
        ("width", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("ffn_width", c_int32),
        ("vocab_size", c_int32),
        ("conv_group", c_int32),
        ("num_positions", c_int32),
        ("keeps_rows", c_int32),
        ("isa", c_int32),
        ("norm_eps", c_float),
        ("softmax_scale", c_float),
        ("embedding_scale", c_float),
        ("layers", POINTER(LayerStruct)),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("head", LinearStruct),
        ("feature", LinearStruct),
        ("feature_norm", c_void_p),
    )


class SequenceStruct(ctypes.Structure):
    """bd_sequence"""

    _fields_ = (
        ("slot", c_int32),
        ("start", c_int32),
        ("num_rows", c_int32),
        ("first_row", c_int32),
    )


class CacheStruct(ctypes.Structure):
    """bd_cache"""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_slots", c_int32),
        ("max_len", c_int32),
    )


class BatchStruct(ctypes.Structure):
    """bd_batch"""

    _fields_ = (
        ("cache", CacheStruct),
        ("ids", c_void_p),
        ("sequences", POINTER(SequenceStruct)),
        ("tap_layers", POINTER(c_int32)),
        ("features", c_void_p),
        ("head_rows", POINTER(c_int32)),
        ("logits", c_void_p),
        ("top_values", c_void_p),
        ("top_ids", c_void_p),
        ("nonfinite", c_void_p),
        ("hidden", c_void_p),
        ("num_sequences", c_int32),
        ("num_rows", c_int32),
        ("num_taps", c_int32),
        ("num_head_rows", c_int32),
        ("head_kind", c_int32),
        ("top_k", c_int32),
    )


class SampledStruct(ctypes.Structure):
    """bd_sampled"""

    _fields_ = (
        ("lens", c_void_p),
        ("draft_ids", c_void_p),
        ("q_ids", c_void_p),
        ("q_masses", c_void_p),
        ("coins", c_void_p),
        ("residuals", c_void_p),
        ("bonuses", c_void_p),
        ("accepted", c_void_p),
        ("next_ids", c_void_p),
        ("num_slots", c_int32),
        ("num_support", c_int32),
    )


class WalkStruct(ctypes.Structure):
    """bd_walk"""

    _fields_ = (
        ("gate", c_void_p),
        ("values", c_void_p),
        ("candidate_rows", c_void_p),
        ("anchors", c_void_p),
        ("predecessors", c_void_p),
        ("successors", c_void_p),
        ("token_ids", c_void_p),
        ("temperatures", c_void_p),
        ("uniforms", c_void_p),
        ("path", c_void_p),
        ("finite_lens", c_void_p),
        ("q", c_void_p),
        ("num_rows", c_int32),
        ("num_slots", c_int32),
        ("num_candidates", c_int32),
        ("rank", c_int32),
    )


ALL_STRUCTS = (
    LinearStruct,
    ConvStruct,
    LayerStruct,
    ModelStruct,
    SequenceStruct,
    CacheStruct,
    BatchStruct,
    SampledStruct,
    WalkStruct,
)
