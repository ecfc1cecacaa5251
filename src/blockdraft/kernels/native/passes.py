"""A whole pass of a target or drafter in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import BFloat16, Bool, Float, Float32, Int64
from torch import Tensor

from blockdraft.errors import CapacityError, ConfigError
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.library import check_status, choose_isa, load
from blockdraft.kernels.native.linear import PackedLinear, check_rows
from blockdraft.kernels.native.model import ModelWeights, PackedModel


class Span(NamedTuple):
    """New rows of one sequence: `num_rows` tokens from position `start` on, in cache slot `slot`.

    Positions before `start` are read from the cache.
    """

    slot: int
    start: int
    num_rows: int


@dataclass(frozen=True)
class PassResult:
    """What a pass was asked for; the rest is None. `n` rows, `r` rows of the head.

    Attributes:
        logits: [r v], float32 or bfloat16; one for each row of the head.
        top_values, top_ids: [r k], greatest first, the lowest id first among equals. An id is -1
            and its value -inf only where a row has fewer than k logits that are numbers.
        nonfinite: [r], with `top_*`: whether any logit of the row is infinite or not a number.
        features: [n taps*m], outputs of the tapped layers before the final norm.
        hidden: [r m], after the final norm.
    """

    logits: Float[Tensor, "r v"] | None = None
    top_values: Float32[Tensor, "r k"] | None = None
    top_ids: Int64[Tensor, "r k"] | None = None
    nonfinite: Bool[Tensor, "r"] | None = None
    features: BFloat16[Tensor, "n f"] | None = None
    hidden: BFloat16[Tensor, "r m"] | None = None


class NativePass:
    """A decoder on the native kernels.

    The residual stream is float32 (that halves the error of the logits against a bfloat16 one),
    layer inputs, keys and values are bfloat16, and each row's sums have one fixed order: a row's
    result is the same bits in any batch. The caches are
    tensors of the caller, `k` and `v`, each [layers, slots, max_len, kv_heads, head_dim].
    """

    def __init__(
        self,
        weights: ModelWeights,
        isa: str | None = None,
        weight_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Packs the weights (rounded to `weight_dtype`); the tensors given may be dropped then.

        With int8 (symmetric, a scale for each output; rows stay bfloat16) the quantised model is
        another model than the one given: everything lossless is about it. A tied embedding is read
        out of the quantised head then.

        Raises: BuildError if the kernels cannot be built, ConfigError for tensors that do not fit
            together, UnsupportedError for a head width without a kernel.
        """
        self._library = load()
        self._packed = PackedModel(weights, choose_isa(isa), weight_dtype)
        self._struct = self._packed.struct

    @property
    def isa(self) -> str:
        """Instruction set it runs on."""
        return self._packed.isa

    @property
    def head(self) -> PackedLinear:
        """The packed head, to share with a drafter."""
        assert self._packed.head is not None
        return self._packed.head

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """Formats its matrices are packed in: bfloat16, int8, group4, group8."""
        return self._packed.weight_formats

    def num_bytes(self) -> int:
        """Memory of the weights this model holds itself (a shared head is not counted)."""
        return self._packed.num_bytes()

    def forward(
        self,
        k: BFloat16[Tensor, "l slots S kv d"],
        v: BFloat16[Tensor, "l slots S kv d"],
        ids: Int64[Tensor, "n"],
        spans: Sequence[Span],
        *,
        head_rows: Sequence[int] | None = None,
        logits: torch.dtype | None = None,
        top_k: int = 0,
        tap_layers: Sequence[int] = (),
        hidden: bool = False,
    ) -> PassResult:
        """Run new rows, flattened without padding in the order of `spans`.

        A target writes their keys and values into the cache at their positions; a drafter uses
        them in this pass only.

        Args:
            head_rows: ascending rows (0..n-1) that the head, `top_k` and `hidden` are for; None
                for all.
            logits: float32 or bfloat16 to get all logits; None for none.
            top_k: 1..64 to get only the greatest logits (1: the argmax); 0 for none.
            tap_layers: layers whose outputs are wanted as features.

        Raises: CapacityError if a span leaves the cache or the rotary tables, ConfigError for
            anything else that does not fit.
        """
        rows = list(range(ids.numel())) if head_rows is None else list(head_rows)
        self._check(k, v, ids, spans)
        self._check_head(rows, ids.numel(), logits, top_k, tap_layers)
        result = self._allocate(len(rows), ids.numel(), logits, top_k, len(tap_layers), hidden)
        batch = _batch_struct(_cache_struct(k, v), ids, spans, rows, tap_layers, result)
        check_status(self._library.bd_run_pass(ctypes.byref(self._struct), ctypes.byref(batch)))
        return result

    def append_context(
        self,
        k: BFloat16[Tensor, "l slots S kv d"],
        v: BFloat16[Tensor, "l slots S kv d"],
        features: BFloat16[Tensor, "n f"],
        spans: Sequence[Span],
    ) -> None:
        """Store keys and values of feature rows in a drafter's context, at the spans' positions.

        Raises: ConfigError if this model is no drafter or anything does not fit; CapacityError if
            a span leaves the context or the rotary tables.
        """
        if self._struct.feature.n == 0:
            raise ConfigError("this model has no feature projection; only drafters have a context")
        check_rows(features, self._struct.feature.k, "features")
        self._check_spans(k, v, features.shape[0], spans)
        features = features.contiguous()
        cache = _cache_struct(k, v)
        check_status(
            self._library.bd_append_context(
                ctypes.byref(self._struct),
                ctypes.byref(cache),
                features.data_ptr(),
                _sequence_structs(spans),
                len(spans),
                features.shape[0],
            )
        )

    def _allocate(
        self,
        num_head_rows: int,
        num_rows: int,
        logits: torch.dtype | None,
        top_k: int,
        num_taps: int,
        hidden: bool,
    ) -> PassResult:
        width, num_logits = self._struct.width, self._struct.head.n
        has_top = top_k > 0
        return PassResult(
            logits=None if logits is None else torch.empty(num_head_rows, num_logits, dtype=logits),
            top_values=torch.empty(num_head_rows, top_k) if has_top else None,
            top_ids=torch.empty(num_head_rows, top_k, dtype=torch.int64) if has_top else None,
            nonfinite=torch.empty(num_head_rows, dtype=torch.bool) if has_top else None,
            features=torch.empty(num_rows, num_taps * width, dtype=torch.bfloat16)
            if num_taps
            else None,
            hidden=torch.empty(num_head_rows, width, dtype=torch.bfloat16) if hidden else None,
        )

    def _check(self, k: Tensor, v: Tensor, ids: Tensor, spans: Sequence[Span]) -> None:
        if ids.dtype != torch.int64 or ids.ndim != 1 or not ids.is_contiguous():
            raise ConfigError(f"ids is {ids.dtype} {list(ids.shape)}; give contiguous int64 [n]")
        self._check_spans(k, v, ids.numel(), spans)
        if ids.numel():
            low, high = (int(x) for x in torch.aminmax(ids))
            if low < 0 or high >= self._struct.vocab_size:
                wrong = low if low < 0 else high
                raise ConfigError(
                    f"token id {wrong} is outside the vocabulary of {self._struct.vocab_size}"
                )

    def _check_spans(self, k: Tensor, v: Tensor, num_rows: int, spans: Sequence[Span]) -> None:
        s = self._struct
        for name, cache in (("k", k), ("v", v)):
            expected = (s.num_layers, cache.shape[1], cache.shape[2], s.num_kv_heads, s.head_dim)
            if (
                cache.dtype != torch.bfloat16
                or tuple(cache.shape) != expected
                or not cache.is_contiguous()
                or cache.shape != k.shape
            ):
                raise ConfigError(
                    f"{name} is {cache.dtype} {list(cache.shape)}; give contiguous bfloat16 "
                    f"[{s.num_layers}, slots, max_len, {s.num_kv_heads}, {s.head_dim}], k like v"
                )
        num_slots, max_len = k.shape[1], min(k.shape[2], s.num_positions)
        for span in spans:
            if not 0 <= span.slot < num_slots or span.num_rows < 1 or span.start < 0:
                raise ConfigError(
                    f"{span} does not fit: slots are 0 to {num_slots - 1}, rows 1 or more"
                )
            if span.start + span.num_rows > max_len:
                raise CapacityError(
                    f"position {span.start + span.num_rows - 1} is beyond the last one "
                    f"({max_len - 1}); use a longer cache or a shorter prompt"
                )
        if sum(span.num_rows for span in spans) != num_rows:
            raise ConfigError(
                f"spans hold {sum(s.num_rows for s in spans)} rows; {num_rows} are given"
            )

    def _check_head(
        self,
        rows: Sequence[int],
        num_rows: int,
        logits: torch.dtype | None,
        top_k: int,
        tap_layers: Sequence[int],
    ) -> None:
        if logits not in (None, torch.float32, torch.bfloat16):
            raise ConfigError(f"logits is {logits}; it must be float32, bfloat16 or None")
        if logits is not None and top_k:
            raise ConfigError("logits and top_k are both asked for; ask for one of them")
        most = min(structs.MAX_TOP, self._struct.head.n)
        if not 0 <= top_k <= most:
            raise ConfigError(f"top_k is {top_k}; it must be 0 to {most}")
        if any(not 0 <= row < num_rows for row in rows) or sorted(set(rows)) != list(rows):
            raise ConfigError(f"head_rows must ascend from 0 to {num_rows - 1} without repeats")
        for layer in tap_layers:
            if not 0 <= layer < self._struct.num_layers:
                raise ConfigError(
                    f"tap_layers names layer {layer}; layers are 0 to {self._struct.num_layers - 1}"
                )


def _batch_struct(
    cache: structs.CacheStruct,
    ids: Tensor,
    spans: Sequence[Span],
    head_rows: Sequence[int],
    tap_layers: Sequence[int],
    result: PassResult,
) -> structs.BatchStruct:
    """The C side's view of a batch; what `result` has room for is what will be computed."""
    wants_head = any(x is not None for x in (result.logits, result.top_ids, result.hidden))
    return structs.BatchStruct(
        cache=cache,
        ids=ids.data_ptr(),
        sequences=_sequence_structs(spans),
        tap_layers=(c_int32 * len(tap_layers))(*tap_layers),
        features=_address(result.features),
        head_rows=(c_int32 * len(head_rows))(*head_rows),
        logits=_address(result.logits),
        top_values=_address(result.top_values),
        top_ids=_address(result.top_ids),
        nonfinite=_address(result.nonfinite),
        hidden=_address(result.hidden),
        num_sequences=len(spans),
        num_rows=ids.numel(),
        num_taps=len(tap_layers),
        num_head_rows=len(head_rows) if wants_head else 0,
        head_kind=_head_kind(result),
        top_k=0 if result.top_ids is None else result.top_ids.shape[1],
    )


def _head_kind(result: PassResult) -> int:
    if result.top_ids is not None:
        return structs.HEAD_TOP
    if result.logits is None:
        return structs.HEAD_NONE
    return structs.HEAD_F32 if result.logits.dtype == torch.float32 else structs.HEAD_BF16


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _cache_struct(k: Tensor, v: Tensor) -> structs.CacheStruct:
    return structs.CacheStruct(k.data_ptr(), v.data_ptr(), k.shape[1], k.shape[2])


def _sequence_structs(spans: Sequence[Span]) -> ctypes.Array[structs.SequenceStruct]:
    sequences = (structs.SequenceStruct * len(spans))()
    first_row = 0
    for struct, span in zip(sequences, spans, strict=True):
        struct.slot, struct.start, struct.num_rows, struct.first_row = *span, first_row
        first_row += span.num_rows
    return sequences
