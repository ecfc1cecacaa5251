"""Two tiny tokenizers of the common kinds: byte-level BPE, and SentencePiece with byte tokens."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel


def byte_level_tokenizer(*, add_prefix_space: bool = False) -> Tokenizer:
    """All 256 bytes, a few longer pieces, and the special tokens <s>, <|im_start|>, <|im_end|>."""
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("\u0120", "a"), ("\u0120", "\u00f0")]
    merges += [("\u00f0", "\u0141"), ("\u00e4", "\u00bd"), ("he", "ll")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<s>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """Byte tokens, a few words with the SentencePiece space, and <s> as begin and end token."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581a", "\u2581hello", "b", "\u4f60", "\u2581\u4f60"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    return tokenizer
