"""A Llama-type target on the native C kernels: one call a pass, only valid rows computed.

A row's bits do not depend on the rows beside it, so bfloat16 output is the same with and without
a drafter, for any batch. Logits are float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nn import functional as F

from blockdraft.cache.base import TargetCache
from blockdraft.cache.kept_memory import KeptMemory
from blockdraft.cache.target_kv import KVCache
from blockdraft.kernels.grouped_weight import GroupedWeight, stack
from blockdraft.kernels.native import (
    LayerWeights,
    ModelWeights,
    NativePass,
    PackedLinear,
    Span,
    choose_isa,
)
from blockdraft.kernels.native.linear import run_packed
from blockdraft.layers.rope import rope_tables
from blockdraft.targets.base import PassOutput, RowBatch, Target
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder_weights import check_weights
from blockdraft.types import TargetInfo


class NativeTarget(Target):
    """A frozen Llama-type model in bfloat16 on the CPU.

    With `weight_dtype` int8 its matrices (head included, embedding rows not) are quantised. Those
    given in groups, as a GGUF file holds them, are read as they are, and what is computed has
    the bits of the dequantised model.

    Raises: CheckpointError naming the tensors that are missing, unexpected or misshapen;
        UnsupportedError for a head width that the kernels do not have.
    """

    has_own_threads = True
    computes_padding = False

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor | GroupedWeight],
        info: TargetInfo,
        weight_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        check_weights(config, weights)
        self.config, self.info, self.device = config, info, torch.device("cpu")
        # A native pass reads a sequence's own rows up to its last new one, all of them written.
        self.cache_memory = KeptMemory()
        self.embedding = _table(weights["model.embed_tokens.weight"])
        self.native_pass = NativePass(
            _model_weights(config, weights, self.embedding), weight_dtype=weight_dtype
        )

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """How matrices lie in memory: bfloat16, int8, group4, group8."""
        return self.native_pass.weight_formats

    @property
    def packed_head(self) -> PackedLinear:
        """The head's packed weights, to share with a drafter."""
        return self.native_pass.head

    def new_cache(self, num_slots: int, max_len: int) -> KVCache:
        config = self.config
        return KVCache(
            config.num_layers,
            num_slots,
            max_len,
            config.num_kv_heads,
            config.head_dim,
            torch.bfloat16,
            self.device,
            take=self.cache_memory.take,
        )

    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        return F.embedding(ids, self.embedding)

    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        return run_packed(self.packed_head, hidden, self.native_pass.isa, torch.float32)

    def head_rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e m"], Float[Tensor, "e"] | None]:
        return self.packed_head.rows(ids), None

    def num_weight_bytes(self) -> int:
        """Weight bytes that one pass reads: layers and head, not the embedding's rows."""
        return self.native_pass.num_bytes() - self.embedding.nbytes

    @torch.inference_mode()
    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        assert isinstance(cache, KVCache)
        lens, first = batch.lens, batch.first_slot
        spans = [Span(first + i, cache.lens[first + i], n) for i, n in enumerate(lens)]
        wants_logits = batch.logits_for != "none" and not batch.wants_best
        wants_best = batch.logits_for != "none" and batch.wants_best
        result = self.native_pass.forward(
            cache.k,
            cache.v,
            _valid_rows(batch.input_ids, lens),
            spans,
            head_rows=_last_rows(lens) if batch.logits_for == "last" else None,
            logits=torch.float32 if wants_logits else None,
            top_k=1 if wants_best else 0,
            tap_layers=batch.layer_ids,
        )
        for i, n in enumerate(lens):
            cache.lens[first + i] += n
        width = batch.input_ids.shape[1]
        head = ((1,) * len(lens), 1) if batch.logits_for == "last" else (lens, width)
        best = None
        if result.top_ids is not None and result.nonfinite is not None:
            ids = _padded(result.top_ids, *head)
            flags = _padded(result.nonfinite[:, None], *head)
            assert ids is not None
            assert flags is not None
            best = (ids[..., 0], flags[..., 0])
        features = _padded(result.features, lens, width)
        isa = self.native_pass.isa
        if batch.takes_ragged and result.logits is not None and min(lens) < width:
            return PassOutput(None, features, best, isa, ragged=result.logits)
        return PassOutput(_padded(result.logits, *head), features, best, isa)


def expands_quickly() -> bool:
    """Whether the instruction set that is used here expands groups faster than memory gives more.

    It does with AVX-512; narrower vectors are quicker with weights that are expanded once.
    """
    return choose_isa() in ("avx512", "amx")


def _valid_rows(ids: Int64[Tensor, "b t"], lens: Sequence[int]) -> Int64[Tensor, "n"]:
    if min(lens) == ids.shape[1]:
        return ids.flatten()
    return torch.cat([ids[i, :n] for i, n in enumerate(lens)])


def _last_rows(lens: Sequence[int]) -> list[int]:
    ends, end = [], -1
    for n in lens:
        end += n
        ends.append(end)
    return ends


def _padded(
    rows: Shaped[Tensor, "n x"] | None, lens: Sequence[int], width: int
) -> Shaped[Tensor, "b t x"] | None:
    """Rows of sequences one after the other, to one row of the batch each; padding is zero."""
    if rows is None:
        return None
    if min(lens) == width:
        return rows.view(len(lens), width, -1)
    out = rows.new_zeros(len(lens), width, rows.shape[1])
    first = 0
    for i, n in enumerate(lens):
        out[i, :n] = rows[first : first + n]
        first += n
    return out


def _table(weight: Tensor | GroupedWeight) -> Tensor:
    table = weight.dequantise() if isinstance(weight, GroupedWeight) else weight
    return table.to(torch.bfloat16).contiguous()


class _Weights:
    """Weights by name: matrices of either kind, the rest as tensors."""

    def __init__(self, weights: Mapping[str, Tensor | GroupedWeight]) -> None:
        self._weights = weights

    def matrix(self, *names: str) -> Tensor | GroupedWeight:
        """The rows of some matrices one after the other; grouped if all of them are."""
        parts = [self._weights[f"{name}.weight"] for name in names]
        if all(isinstance(part, GroupedWeight) for part in parts):
            return stack([part for part in parts if isinstance(part, GroupedWeight)])
        plain = [part.dequantise() if isinstance(part, GroupedWeight) else part for part in parts]
        return plain[0] if len(plain) == 1 else torch.cat(plain)

    def vector(self, *names: str) -> Tensor:
        """Numbers of some norms or biases one after the other."""
        parts = [self._weights[name] for name in names]
        assert all(isinstance(part, Tensor) for part in parts), "no file holds vectors in groups"
        return torch.cat([part for part in parts if isinstance(part, Tensor)])


def _model_weights(
    config: DecoderConfig,
    weights: Mapping[str, Tensor | GroupedWeight],
    embedding: Tensor,
) -> ModelWeights:
    half = config.head_dim // 2
    is_tied = config.tie_embeddings and "lm_head.weight" not in weights
    take = _Weights(weights)
    cos, sin = rope_tables(config.rope, config.head_dim, config.max_context_len, torch.float32)
    return ModelWeights(
        layers=[_layer_weights(config, take, i) for i in range(config.num_layers)],
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        final_norm=take.vector("model.norm.weight"),
        head=take.matrix("model.embed_tokens" if is_tied else "lm_head"),
        cosine=cos[:, :half],
        sine=sin[:, half:],  # the second half carries no sign
        norm_eps=config.norm_eps,
        embedding=embedding,  # tied too: in the packed head a row lies in pieces
    )


def _layer_weights(config: DecoderConfig, take: _Weights, i: int) -> LayerWeights:
    layer = f"model.layers.{i}."
    qkv = [f"{layer}self_attn.{part}_proj" for part in "qkv"]
    gate_up = [f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"]
    out, down = f"{layer}self_attn.o_proj", f"{layer}mlp.down_proj"

    def bias(names: Sequence[str], present: bool) -> Tensor | None:
        return take.vector(*(f"{name}.bias" for name in names)) if present else None

    return LayerWeights(
        attention_norm=take.vector(f"{layer}input_layernorm.weight"),
        qkv=take.matrix(*qkv),
        output=take.matrix(out),
        mlp_norm=take.vector(f"{layer}post_attention_layernorm.weight"),
        gate_up=take.matrix(*gate_up),
        down=take.matrix(down),
        qkv_bias=bias(qkv, config.qkv_bias),
        output_bias=bias([out], config.o_bias),
        gate_up_bias=bias(gate_up, config.mlp_bias),
        down_bias=bias([down], config.mlp_bias),
        q_norm=take.vector(f"{layer}self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=take.vector(f"{layer}self_attn.k_norm.weight") if config.qk_norm else None,
        window=config.windows[i],
    )
