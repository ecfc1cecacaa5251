"""float32: greedy tokens are those of plain decoding alone, for every target, drafter and batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.drafting import VariedDrafter, random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, scripted, solo
from tests.fakes.scripted import ScriptedDrafter, accept_all, accept_none

TARGETS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_norm": True, "tie_embeddings": True},
    "sliding": {"windows": (6,) * 4},
    "mixed": {"windows": (16, None, 5, None), "qkv_bias": True},
}
#: More prompts than any batch, of lengths around blocks and windows: rows join and leave.
LENGTHS = (1, 9, 40, 2, 16, 7, 17, 5, 3)
#: Each row ends at another time; one ends at its first token.
PARAMS = tuple(SamplingParams(max_tokens=n) for n in (12, 3, 16, 1, 20, 8, 9, 2, 14))

#: With so few tokens a random drafter and n-gram lookup are right every other time.
FEW_TOKENS = 4


@cache
def plain(name: str, vocab_size: int) -> tuple[DecoderTarget, list[list[int]], list[Any]]:
    """A target, its prompts, and what it says to each alone."""
    end_ids = () if vocab_size == FEW_TOKENS else (1,)  # of few tokens, one would end all at once
    target = tiny_target(vocab_size=vocab_size, end_ids=end_ids, **TARGETS[name])
    prompts = [[token % vocab_size for token in p] for p in random_prompts(LENGTHS)]
    return target, prompts, ids_of(solo(target, prompts, PARAMS))


@cache
def oracles(name: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    target, prompts, _ = plain(name, 160)
    return scripted(target, prompts, accept_all, length=36).oracles


def scripts(name: str, k: int) -> dict[str, Any]:
    script = ScriptedDrafter(oracles(name), accept_all, k, 160)
    nothing = ScriptedDrafter(oracles(name), accept_none, k, 160)
    return {"all": script, "none": nothing, "varied": VariedDrafter(script, ragged=True)}


DRAFTERS: dict[str, Callable[[DecoderTarget, int], Any]] = {
    "ngram": lambda target, block: NgramDrafter(block - 1, min_n=1),
    "dflash": lambda target, block: random_drafter(target, "dflash", block_size=block),
    "dflash2": lambda target, block: random_drafter(target, "dflash2", block_size=block),
    "dflash2 window": lambda target, block: random_drafter(
        target, "dflash2", block_size=block, windows=(7, None), causal=(True, False)
    ),
    "dflash2+ngram": lambda target, block: LookupFirst(
        NgramDrafter(block - 1, min_n=2), random_drafter(target, "dflash2", block_size=block)
    ),
}

BATCHES, BLOCKS = (1, 3, 8), (2, 4, 8, 16)
#: Every batch size and every block size; all of them on the target with the most parts. The rest
#: of the grid is in the slow test.
SHAPES = [("mixed", 1, 8), ("mixed", 3, 2), ("mixed", 3, 16), ("mixed", 8, 4)]
SHAPES += [("llama", 8, 8), ("qwen3", 3, 4), ("sliding", 3, 8)]


@pytest.mark.parametrize(("name", "batch_size", "block"), SHAPES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_real_drafters_change_nothing(name: str, drafter: str, batch_size: int, block: int) -> None:
    target, prompts, expected = plain(name, FEW_TOKENS)
    llm = make_llm(target, DRAFTERS[drafter](target, block), max_batch_size=batch_size)
    outputs = llm.generate(prompts, PARAMS)
    assert ids_of(outputs) == expected
    assert sum(output.speculation.accepted for output in outputs) > 5


@pytest.mark.parametrize(("name", "batch_size", "block"), SHAPES)
@pytest.mark.parametrize("pattern", ["all", "none", "varied"])
def test_every_pattern_of_acceptance_changes_nothing(
    name: str, pattern: str, batch_size: int, block: int
) -> None:
    target, prompts, expected = plain(name, 160)
    drafter = scripts(name, block - 1)[pattern]
    outputs = make_llm(target, drafter, max_batch_size=batch_size).generate(prompts, PARAMS)
    assert ids_of(outputs) == expected


@pytest.mark.parametrize("batch_size", [3, 8])
@pytest.mark.parametrize("name", TARGETS)
def test_the_batch_changes_nothing(name: str, batch_size: int) -> None:
    """Plain decoding in batches, with rows that join and leave, equals each prompt alone."""
    target, prompts, expected = plain(name, 160)
    outputs = make_llm(target, max_batch_size=batch_size).generate(prompts, PARAMS)
    assert ids_of(outputs) == expected


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("vocab_size", [FEW_TOKENS, 160])
@pytest.mark.parametrize("name", TARGETS)
def test_the_whole_grid(name: str, vocab_size: int, batch_size: int, block: int) -> None:
    target, prompts, expected = plain(name, vocab_size)
    drafters = [make(target, block) for make in DRAFTERS.values()]
    if vocab_size != FEW_TOKENS:
        drafters += scripts(name, block - 1).values()
    for drafter in drafters:
        outputs = make_llm(target, drafter, max_batch_size=batch_size).generate(prompts, PARAMS)
        assert ids_of(outputs) == expected, drafter.name
