"""What the target says by itself: one prompt at a time, no drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.engine.outputs import Output
from blockdraft.targets.base import Target
from blockdraft.types import SamplingParams
from tests.fakes.codec import FakeCodec, make_llm
from tests.fakes.scripted import Pattern, ScriptedDrafter


def solo(
    target: Target,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    codec: FakeCodec | None = None,
) -> list[Output]:
    """Plain outputs of each prompt run alone: what every other way of running must equal."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    llm = make_llm(target, codec=codec)
    return [llm.generate([list(p)], one)[0] for p, one in zip(prompts, each, strict=True)]


def greedy_oracle(target: Target, prompt: Sequence[int], length: int) -> tuple[int, ...]:
    """`length` greedy tokens after a prompt, whatever the end ids are."""
    params = SamplingParams(max_tokens=length, ignore_eos=True)
    return solo(target, [prompt], params)[0].token_ids


def with_end_ids(target: Any, *end_ids: int) -> Any:
    """The same target under other end ids (the trick: declare a token it will say)."""
    target.info = dataclasses.replace(target.info, end_ids=end_ids)
    return target


def scripted(
    target: Target,
    prompts: Sequence[Sequence[int]],
    pattern: Pattern,
    num_draft_tokens: int = 7,
    length: int = 80,
) -> ScriptedDrafter:
    """SD(pattern) for these prompts; each must not begin with another one."""
    room = target.info.max_context_len
    oracles = {tuple(p): greedy_oracle(target, p, min(length, room - len(p))) for p in prompts}
    return ScriptedDrafter(oracles, pattern, num_draft_tokens, target.info.vocab_size)


def ids_of(outputs: Sequence[Output]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def random_prompts(lengths: Sequence[int], seed: int = 0, vocab_size: int = 150) -> list[list[int]]:
    """Prompts of real tokens, none of which begins with another one (the first tokens differ)."""
    gen = torch.Generator().manual_seed(seed)
    draw: Tensor = torch.randint(2, vocab_size, (len(lengths), max(lengths)), generator=gen)
    firsts = torch.randperm(vocab_size - 2, generator=gen)[: len(lengths)] + 2
    draw[:, 0] = firsts
    return [row[:n].tolist() for row, n in zip(draw, lengths, strict=True)]


def script_for(
    target: Target,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    pattern: Pattern,
    num_draft_tokens: int = 7,
) -> ScriptedDrafter:
    """SD(pattern) whose oracle is what these very requests say, penalties and all."""
    said = ids_of(solo(target, prompts, params))
    oracles = {tuple(p): ids for p, ids in zip(prompts, said, strict=True)}
    return ScriptedDrafter(oracles, pattern, num_draft_tokens, target.info.vocab_size)
