"""How a GGUF file's tokenizer cuts text before it merges: told by one word, `tokenizer.ggml.pre`.

Only the words whose cuts are known to be those of the original tokenizer are served; a wrong cut
gives ids the model has hardly seen, without any error. The patterns are facts of the tokenizers
(their tokenizer.json), and for "default" of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS_AND_SPACES}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
#: What llama.cpp does for files without a known word, and so what "default" means.
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How text is cut before merging.

    Attributes:
        build: makes the pre-tokenizer.
        ignore_merges: a cut that is itself a token is taken whole.
        compose: text is first put into Unicode normal form C.
        adds_begin: the begin token is added to raw text unless the file says otherwise.
    """

    build: Callable[[], PreTokenizer]
    ignore_merges: bool = False
    compose: bool = False
    adds_begin: bool = False


def _split_by(*patterns: str) -> Callable[[], PreTokenizer]:
    def build() -> PreTokenizer:
        splits = [Split(Regex(pattern), "isolated") for pattern in patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


_GPT2_SPLITTING = Splitting(build=lambda: ByteLevel(add_prefix_space=False))
_LLAMA3_SPLITTING = Splitting(build=_split_by(_LLAMA3), ignore_merges=True, adds_begin=True)
SPLITTINGS: Mapping[str, Splitting] = {
    "smollm": Splitting(
        build=lambda: Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    ),
    "gpt-2": _GPT2_SPLITTING,
    "default": Splitting(build=_split_by(*_DEFAULT)),
    "llama-bpe": _LLAMA3_SPLITTING,
    "llama3": _LLAMA3_SPLITTING,
    "qwen2": Splitting(build=_split_by(_QWEN2), compose=True),
}
