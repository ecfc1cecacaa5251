"""What a drafter of the DFlash family is: shapes, block, taps, windows. Immutable and checked."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Literal

from blockdraft.errors import ConfigError
from blockdraft.layers.rope import RopeConfig

Method = Literal["dflash", "dflash2"]

#: Most rows of a block, the anchor included, and most candidates of a slot.
MAX_BLOCK_SIZE, MAX_CANDIDATES = 257, 64

METHODS: tuple[Method, ...] = ("dflash", "dflash2")
_POSITIVE = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "max_context_len",
    "num_target_layers",
    "norm_eps",
    "output_multiplier",
    "input_embedding_scale",
)
#: Fields that only DFlash 2 has.
SELECTOR_FIELDS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True, kw_only=True)
class DFlashConfig:
    """A DFlash (arXiv 2602.06036) or DFlash 2 drafter.

    Attributes:
        windows: of each layer; a row sees position k iff q_pos - k_pos < window (and, where the
            block is not causal, k_pos - q_pos < window). None sees the whole context.
        causal: of each layer; whether a block row sees only itself and the block rows before it.
        block_size: rows of a block, the anchor included; it drafts block_size - 1 tokens.
        mask_token_id: the token whose embedding stands in the slots to be filled.
        draft_vocab_size: tokens that can be drafted (the tensor `draft_vocab_ids` lists them); 0
            for the whole vocabulary.
        target_layer_ids: target layers whose outputs are the features (0-based, before the final
            norm), in the order in which they are concatenated.
        conv_kernel_size, conv_group_size: taps and channels per group of the block convolutions.
        selector_rank, selector_top_k: width of the codebooks, and candidates of each slot.
            All four are 0 for DFlash, which has neither convolutions nor selector.
        input_embedding_scale: multiplies the target's embedding rows (Gemma: sqrt(width)).
        output_multiplier, final_logit_softcapping: applied to the head's logits, in that order.

    Raises: ConfigError naming every field that is wrong.
    """

    method: Method
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_len: int
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    draft_vocab_size: int = 0
    norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    attention_bias: bool = False

    def __post_init__(self) -> None:
        faults = [*self._shape_faults(), *self._block_faults(), *self._tap_faults()]
        faults += self._selector_faults()
        if faults:
            raise ConfigError(f"{self.method} config: {'; '.join(faults)}")

    @property
    def num_draft_tokens(self) -> int:
        """Tokens a whole block drafts."""
        return self.block_size - 1

    @property
    def feature_size(self) -> int:
        """Width of the concatenated target features of one position."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def num_draftable_tokens(self) -> int:
        """Tokens that can be drafted: rows of the head that are multiplied."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def has_selector(self) -> bool:
        """Whether there are block convolutions and a candidate selector (DFlash 2)."""
        return self.method == "dflash2"

    def _shape_faults(self) -> list[str]:
        faults = [
            f"{name} is {getattr(self, name)}; it must be greater than 0"
            for name in _POSITIVE
            if not getattr(self, name) > 0
        ]
        if self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads:
            faults.append(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            faults.append(f"head_dim is {self.head_dim}; rotary positions need an even width")
        faults += [
            f"{name} has {len(getattr(self, name))} entries for {self.num_layers} layers"
            for name in ("windows", "causal")
            if len(getattr(self, name)) != self.num_layers
        ]
        if any(window is not None and window < 1 for window in self.windows):
            faults.append(f"windows are {self.windows}; each must be 1 or more, or None")
        return faults

    def _block_faults(self) -> list[str]:
        faults = []
        if not 2 <= self.block_size <= MAX_BLOCK_SIZE:
            faults.append(f"block_size is {self.block_size}; it must be 2 to {MAX_BLOCK_SIZE}")
        if not 0 <= self.mask_token_id < self.vocab_size:
            faults.append(
                f"mask_token_id is {self.mask_token_id}; it must be a row of the embedding,"
                f" 0 to {self.vocab_size - 1}"
            )
        if not 0 <= self.draft_vocab_size < max(self.vocab_size, 1):
            faults.append(
                f"draft_vocab_size is {self.draft_vocab_size}; it must be 1 to"
                f" {self.vocab_size - 1}, or 0 for the whole vocabulary"
            )
        cap = self.final_logit_softcapping
        if cap is not None and not cap > 0:
            faults.append(f"final_logit_softcapping is {cap}; it must be greater than 0, or None")
        return faults

    def _tap_faults(self) -> list[str]:
        ids, last = self.target_layer_ids, self.num_target_layers - 1
        if not ids:
            return ["target_layer_ids is empty; name at least one layer"]
        if any(not 0 <= i <= last for i in ids):
            return [f"target_layer_ids is {list(ids)}; each must be 0 to {last}"]
        if len(set(ids)) != len(ids):
            return [f"target_layer_ids is {list(ids)}; a layer is named twice"]
        return []

    def _selector_faults(self) -> list[str]:
        sizes = {name: getattr(self, name) for name in SELECTOR_FIELDS}
        if not self.has_selector:
            return [
                f"{name} is {size}, but dflash has none" for name, size in sizes.items() if size
            ]
        faults = [
            f"{name} is {size}; it must be 1 or more" for name, size in sizes.items() if size < 1
        ]
        if self.conv_group_size > 0 and self.hidden_size % self.conv_group_size:
            faults.append(
                f"conv_group_size {self.conv_group_size} does not divide hidden_size"
                f" {self.hidden_size}"
            )
        most = min(MAX_CANDIDATES, self.num_draftable_tokens)
        if self.selector_top_k > most:
            faults.append(f"selector_top_k is {self.selector_top_k}; it must be 1 to {most}")
        return faults


def spread_target_layers(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """Layers to tap by z-lab's rule: evenly from the second layer to the fourth from the end.

    30 layers and 5 taps give (1, 8, 14, 20, 27). Halves round to even, as in Python.

    Raises: ConfigError if the target is too shallow for so many different layers.
    """
    if num_taps == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / max(num_taps - 1, 1)
    ids = tuple(round(1 + i * step) for i in range(num_taps))
    if num_taps < 1 or step <= 0 or len(set(ids)) != num_taps:
        raise ConfigError(
            f"cannot spread {num_taps} taps over {num_target_layers} target layers; ask for fewer"
            " or name target_layer_ids"
        )
    return ids


def fit_num_draft_tokens(config: DFlashConfig, asked: int | None) -> int:
    """Tokens to draft each cycle: what was asked for, at most what a block holds.

    A larger number is lowered with one notice; None asks for a whole block.

    Raises: ConfigError if it is below 1 (no drafter at all is the drafter "none").
    """
    most = config.num_draft_tokens
    if asked is None:
        return most
    if asked < 1:
        raise ConfigError(f"num_draft_tokens is {asked}; it must be 1 to {most}")
    if asked > most:
        warnings.warn(
            f"num_draft_tokens is {asked}, but blocks of {config.block_size} draft {most}:"
            f" using {most}",
            stacklevel=2,
        )
    return min(asked, most)
