"""Where the law is tested: after texts at which the drafter drafts and the next token is open.

A request's first token comes from the prompt's pass, undrafted. A good place to look is therefore
one token before an anchor: the target is nearly sure of the anchor (so most requests reach it), and
unsure of the token that is drafted after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from blockdraft.decoding.row import Row
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner
from blockdraft.errors import ConfigError
from blockdraft.evaluation.lossless.law import LawAfter, reference_law
from blockdraft.types import SamplingParams

#: Tokens of the texts in which places are looked for.
_TEXT_LEN = 40
_TEXTS_PER_PROMPT = 2
_PROMPTS_PER_CONTEXT = 5  # so that there is a choice, and not every prompt is answered for it

#: Longer texts are left out: every request of the sample reads its text again.
MAX_PREFIX_LEN = 384


@dataclass(frozen=True, kw_only=True)
class Context:
    """A text to continue.

    Attributes:
        prompt_id: of the prompt it grew from; `num_generated` tokens were added to that.
        score: how many requests reach a drafted, open token; greater is better.
    """

    prompt_id: str
    ids: tuple[int, ...]
    num_generated: int
    score: float


def find_contexts(
    llm: LLM,
    prompts: Sequence[tuple[str, Sequence[int]]],
    params: SamplingParams,
    num: int,
    log: Callable[[str], None] = lambda _: None,
) -> list[Context]:
    """The best place of each prompt, and of those the best `num`.

    Args:
        prompts: ids and tokens of prompts.
        params: how tokens are sampled.
    Raises: ConfigError if no prompt is short enough.
    """
    short = [(name, ids) for name, ids in prompts if len(ids) + _TEXT_LEN <= MAX_PREFIX_LEN]
    if not short:
        raise ConfigError(
            f"all prompts have more than {MAX_PREFIX_LEN - _TEXT_LEN} tokens; the law is tested "
            "on short ones: give one"
        )
    if len(short) < len(prompts):
        log(f"{len(prompts) - len(short)} long prompts are left out of the test of the law")
    looked_at = short[: _PROMPTS_PER_CONTEXT * num] * _TEXTS_PER_PROMPT
    best: dict[str, Context] = {}
    for (name, ids), row in zip(looked_at, _texts(llm, looked_at, params), strict=True):
        found = _best(llm, name, ids, row, params)
        if found is not None and (name not in best or found.score > best[name].score):
            best[name] = found
    return heapq.nlargest(num, best.values(), key=lambda context: context.score)


def _texts(
    llm: LLM, prompts: Sequence[tuple[str, Sequence[int]]], params: SamplingParams
) -> list[Row]:
    """Sampled answers, the same ones in every run."""
    each = [
        SamplingParams(**{**vars(params), "max_tokens": _TEXT_LEN, "seed": i})
        for i in range(len(prompts))
    ]
    rows = llm.rows([list(ids) for _, ids in prompts], each)
    for _ in Runner(llm.target, llm.drafter, rows, llm.limits).run():
        pass
    return rows


def _weight(drafted_len: int, accepted_len: int) -> float:
    """A draft that the target itself might say shows a wrong rule best; no draft shows nothing."""
    if accepted_len:
        return 1.0
    return 0.1 if drafted_len else 0.01


def _best(
    llm: LLM, name: str, prompt: Sequence[int], row: Row, params: SamplingParams
) -> Context | None:
    """The text before the best anchor of an answer; None if it has none or failed."""
    if row.error is not None:
        return None
    output, begin, scored = row.output_ids, 1, []
    laws = _laws(llm, prompt, output, params)
    for cycle in row.cycles:
        index = begin - 1  # of the anchor
        begin += len(cycle.committed_ids)
        reach, openness = float(laws[index][output[index]]), 1.0 - float(laws[index + 1].max())
        weight = _weight(cycle.drafted_len, cycle.accepted_len)
        scored.append((weight * reach * openness, index))
    if not scored:
        return None
    score, index = max(scored)
    ids = (*prompt, *output[:index])
    return Context(prompt_id=name, ids=ids, num_generated=index, score=score)


def _laws(
    llm: LLM, prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[Tensor]:
    """Law of each output token, given what stood before it."""
    logits = LawAfter(llm.target, prompt, len(output)).each_logits(output[:-1])
    return [reference_law(row, params).float() for row in logits]
