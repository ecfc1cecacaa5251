"""The result in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from blockdraft.evaluation.lossless.check import FAIL, PASS, Lossless
from blockdraft.evaluation.lossless.distribution import Distribution, LawTest
from blockdraft.evaluation.lossless.greedy import Divergence, GreedyResult

_SHOWN = 3  # faults of a kind that are spelt out

Decode = Callable[[Sequence[int]], str]


def lines(result: Lossless, decode: Decode) -> Iterator[str]:
    """A few lines on each part, the verdict last.

    Args:
        decode: text of tokens.
    """
    for greedy in result.greedy:
        yield from _greedy(greedy, decode)
    yield from _rule(result)
    yield from _distribution(result.distribution, result.settings.alpha, decode)
    words = {
        PASS: "PASS: drafting changes nothing that this check can see",
        FAIL: "FAIL: drafting changes the output",
    }
    yield words.get(
        result.verdict,
        "INCONCLUSIVE: drafts were too few to be tested; try --drafter, --task or more --samples",
    )


def _greedy(found: GreedyResult, decode: Decode) -> Iterator[str]:
    num, ties = len(found.divergences), sum(d.is_tie for d in found.divergences)
    equal = found.num_prompts - num - len(found.errors)
    yield (
        f"greedy, {found.dtype} ({found.kernels} kernels): {equal} of {found.num_prompts} texts "
        f"the same token for token ({found.num_tokens} tokens, {found.accepted} of them drafted); "
        f"{ties} part at a tie, {found.num_faults} by a fault"
    )
    for divergence in sorted(found.divergences, key=lambda d: d.is_tie)[:_SHOWN]:
        yield "  " + _divergence(divergence, decode)
    for error in found.errors[:_SHOWN]:
        yield f"  failed: {error}"


def _divergence(found: Divergence, decode: Decode) -> str:
    def shown(token_id: int | None) -> str:
        return "the end" if token_id is None else repr(decode([token_id]))

    what = "an accepted draft" if found.is_draft else "the target's token behind the drafts"
    kind = "a tie" if found.is_tie else "a fault"
    return (
        f"{found.prompt_id}, token {found.position + 1}: plain says {shown(found.plain_id)}, "
        f"drafted {shown(found.drafted_id)} ({what}, cycle {found.cycle}, place {found.slot + 1}); "
        f"the two best logits are {found.gap:.3g} apart, rounding reaches {found.bound:.3g}: {kind}"
    )


def _rule(result: Lossless) -> Iterator[str]:
    rule = result.rule
    state = f"{len(rule.faults)} wrong" if rule.faults else "all right"
    yield f"acceptance rule at its thresholds: {rule.num_decisions} decisions, {state}"
    for fault in rule.faults[:_SHOWN]:
        yield f"  {fault}"


def _distribution(found: Distribution, alpha: float, decode: Decode) -> Iterator[str]:
    single = [test for test in found.tests if test.kind == "next"]
    cover = found.coverage
    yield (
        f"law of sampled tokens: {found.num_requests} requests after {len(found.contexts)} texts; "
        f"{cover.accepted} drafts accepted, {cover.rejected} refused, {cover.completed} blocks "
        f"wholly accepted"
    )
    yield (
        f"  next token, after {len(single)} texts with {sum(t.result.num for t in single)} tokens: "
        f"smallest p {_smallest(single)} (Holm); an error of total variation "
        f"{_distance(found.detectable('next'))} after one text (median), or "
        f"{_distance(found.detectable('all'))} after all, would be caught with probability 0.99"
    )
    for test in found.tests:
        if test.kind == "joint":
            yield (
                f"  joint, {test.result.num} texts in {test.result.freedom + 1} cells: p "
                f"{test.adjusted_p:.3g} (Holm); {_distance(test.detectable)} would be caught"
            )
    for test in [t for t in found.tests if t.adjusted_p < alpha][:_SHOWN]:
        yield f"  wrong: {_law_test(test, decode)}"
    for note in found.notes:
        yield f"  note: {note}"


def _law_test(test: LawTest, decode: Decode) -> str:
    places = {"next": f"the token after {decode(test.suffix)!r}", "joint": "the joint law"}
    where = "" if test.prompt_id is None else f" ({test.prompt_id})"
    return (
        f"{places.get(test.kind, 'all next-token laws together')}{where}: p {test.adjusted_p:.2g}, "
        f"{test.result.num_impossible} impossible tokens, "
        f"total variation {test.result.distance:.3f}"
    )


def _smallest(tests: Sequence[LawTest]) -> str:
    return format(min((t.adjusted_p for t in tests), default=1.0), ".3g")


def _distance(value: float | None) -> str:
    return "(none)" if value is None else f"{value:.3f}"
