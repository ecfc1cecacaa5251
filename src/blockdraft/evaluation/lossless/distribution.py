"""The law of sampled tokens: places, samples, tests, and what they would have seen."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from blockdraft.engine.llm import LLM
from blockdraft.evaluation.lossless.conditional import conditional_tests
from blockdraft.evaluation.lossless.contexts import Context, find_contexts
from blockdraft.evaluation.lossless.gtest import GTest, holm, together
from blockdraft.evaluation.lossless.joint import joint_law, joint_test
from blockdraft.evaluation.lossless.power import detectable_distance
from blockdraft.evaluation.lossless.rounding import edge_share
from blockdraft.evaluation.lossless.sample import Coverage, draw_sample
from blockdraft.evaluation.lossless.settings import LosslessSettings
from blockdraft.evaluation.progress import Progress


@dataclass(frozen=True, kw_only=True)
class LawTest:
    """One test of counts, among all of the run.

    Attributes:
        kind: `next` (token after a text), `joint` (several tokens at once) or `all` (every `next`
            test added up).
        prompt_id, suffix: after which text; None and () for `all`.
        adjusted_p: Holm's; below alpha it is a fault.
        detectable: least total variation found with probability 0.99; for `all`, if it were
            present after every text. None: none is.
    """

    kind: str
    prompt_id: str | None
    suffix: tuple[int, ...]
    result: GTest
    adjusted_p: float
    detectable: float | None


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """All tests of the law, and what drafting did in the tested tokens."""

    contexts: tuple[Context, ...]
    tests: tuple[LawTest, ...]
    coverage: Coverage
    num_requests: int
    notes: tuple[str, ...]

    def detectable(self, kind: str) -> float | None:
        """Median over the tests of a kind that can find anything."""
        found = [t.detectable for t in self.tests if t.kind == kind and t.detectable is not None]
        return statistics.median(found) if found else None

    def num_faults(self, alpha: float) -> int:
        """Tests that reject."""
        return sum(test.adjusted_p < alpha for test in self.tests)

    @property
    def is_vacuous(self) -> bool:
        """Nothing was drafted or nothing could be told apart: no fault of drafting could show."""
        is_blind = not any(t.detectable for t in self.tests)
        return is_blind or not (self.coverage.accepted or self.coverage.rejected)


@dataclass(frozen=True)
class _Found:
    kind: str
    prompt_id: str | None
    suffix: tuple[int, ...]
    result: GTest


def check_distribution(
    llm: LLM,
    prompts: Sequence[tuple[str, Sequence[int]]],
    settings: LosslessSettings,
    log: Callable[[str], None] = lambda _: None,
) -> Distribution:
    """Sample and test.

    Args:
        prompts: ids and tokens of the prompts that places are looked for in.
    Raises: UserError if a request fails; ConfigError if all prompts are too long.
    """
    log("looking for texts at which the drafter drafts ..")
    contexts = find_contexts(llm, prompts, settings.sampling, settings.num_contexts, log)
    progress = Progress((len(contexts) + 1) * settings.num_samples, log)
    coverage, found, notes = Coverage(), list[_Found](), list[str]()
    for number, context in enumerate(contexts):
        own, seen = _next_tests(llm, context, number, settings, progress)
        found += own
        coverage += seen
    one_by_one = [one.result for one in found]
    if one_by_one:
        found.append(_Found("all", None, (), together(one_by_one)))
    joint = _joint_test(llm, contexts, settings, progress)
    if joint is None:
        notes.append(
            "the joint law was not tested: at every text, rounding decides what top-k keeps"
        )
    else:
        found.append(joint[0])
        coverage += joint[1]
    return Distribution(
        contexts=tuple(contexts),
        tests=tuple(_adjusted(found, one_by_one, settings.alpha)),
        coverage=coverage,
        num_requests=(len(contexts) + (joint is not None)) * settings.num_samples,
        notes=(*notes, *_coverage_notes(coverage)),
    )


def _next_tests(
    llm: LLM, context: Context, number: int, settings: LosslessSettings, progress: Progress
) -> tuple[list[_Found], Coverage]:
    sample = draw_sample(
        llm,
        context.ids,
        settings.sampling,
        seeds=settings.seeds(number),
        depth=settings.depth,
        advance=lambda n: progress.advance(n, f"after {context.prompt_id}"),
    )
    tests = conditional_tests(
        llm.target, context.ids, sample.sequences, settings.sampling, edge_share(llm)
    )
    kept = [_Found("next", context.prompt_id, t.suffix, t.result) for t in tests if _says(t.result)]
    return kept, sample.coverage


def _says(result: GTest) -> bool:
    return result.freedom > 0 or result.num_impossible > 0


def _joint_test(
    llm: LLM, contexts: Sequence[Context], settings: LosslessSettings, progress: Progress
) -> tuple[_Found, Coverage] | None:
    """At the first place where it can be made."""
    params = settings.joint_sampling
    for context in contexts:
        law = joint_law(llm.target, context.ids, params, settings.joint_len, edge_share(llm))
        if not law.is_clear:
            continue
        sample = draw_sample(
            llm,
            context.ids,
            params,
            seeds=settings.seeds(len(contexts)),
            depth=settings.joint_len,
            advance=lambda n: progress.advance(n, "joint law"),
        )
        result = joint_test(law, sample.sequences)
        return _Found("joint", context.prompt_id, (), result), sample.coverage
    return None


def _adjusted(
    found: Sequence[_Found], one_by_one: Sequence[GTest], alpha: float
) -> Iterator[LawTest]:
    bar = alpha / max(1, len(found))  # Holm's first step: what the smallest p-value must pass
    adjusted = holm([one.result.p_value for one in found])
    for one, adjusted_p in zip(found, adjusted, strict=True):
        parts = one_by_one if one.kind == "all" else [one.result]
        yield LawTest(
            kind=one.kind,
            prompt_id=one.prompt_id,
            suffix=one.suffix,
            result=one.result,
            adjusted_p=adjusted_p,
            detectable=detectable_distance(parts, bar),
        )


def _coverage_notes(coverage: Coverage) -> Iterator[str]:
    if not coverage.drafted_cycles:
        yield "the drafter drafted nothing in the tested tokens"
        return
    if not coverage.accepted:
        yield "no draft was accepted: the law of accepted tokens was not tested"
    if not coverage.rejected:
        yield "no draft was refused: the token after a refusal was not tested"
    if not coverage.completed:
        yield "no block was wholly accepted: the bonus token was not tested"
