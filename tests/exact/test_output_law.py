"""Whatever is drafted, the output has the target's law: by enumeration, in float64, to 1e-12."""

from __future__ import annotations

import pytest
import torch

from blockdraft.types import SamplingParams
from blockdraft.verification import accept_greedy, greedy_rule
from tests.exact.enumeration import Case, block_law, output_law, target_law
from tests.exact.toys import (
    ToyDrafter,
    ToyTarget,
    lookup_drafter,
    no_drafter,
    slot_drafter,
    walk_drafter,
)

VOCAB = 4
START = (0, 2)
PLAIN = SamplingParams(temperature=1.0)
GREEDY = SamplingParams()
WARPS = {
    "plain": PLAIN,
    "cool": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
    "all": SamplingParams(temperature=0.7, top_k=3, top_p=0.8, min_p=0.05),
    "greedy": GREEDY,
}


def drafters(k: int) -> dict[str, ToyDrafter]:
    return {
        "none": no_drafter(VOCAB),
        "ngram": lookup_drafter(VOCAB, k),
        "dflash": slot_drafter(VOCAB, k, PLAIN),
        "dflash warped": slot_drafter(VOCAB, k, WARPS["all"]),
        "dflash greedy": slot_drafter(VOCAB, k, GREEDY),
        "dflash2 walk": walk_drafter(VOCAB, k, candidates=2, temperature=1.0),
        "dflash2 greedy walk": walk_drafter(VOCAB, k, candidates=3, temperature=0.0),
    }


def assert_exact(case: Case, lens: tuple[int, ...]) -> None:
    num_tokens = len(lens) * (case.drafter.num_draft_tokens + 1)
    law = output_law(case, START, lens, num_tokens)
    torch.testing.assert_close(
        law, target_law(case.target, START, num_tokens), rtol=0.0, atol=1e-12
    )


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("method", drafters(1))
def test_two_blocks_have_the_law_of_the_target(method: str, warp: str) -> None:
    target = ToyTarget.random(VOCAB, WARPS[warp])
    drafter = drafters(2)[method]
    assert_exact(Case(target, drafter), lens=(drafter.num_draft_tokens,) * 2)


@pytest.mark.parametrize("lens", [(0, 0), (0, 2), (1, 2), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("method", [name for name in drafters(1) if name != "none"])
def test_shorter_drafts_have_the_law_of_the_target(method: str, lens: tuple[int, ...]) -> None:
    target = ToyTarget.random(VOCAB, WARPS["top_p"], seed=5)
    assert_exact(Case(target, drafters(2)[method]), lens)


@pytest.mark.parametrize("method", ["ngram", "dflash2 walk", "dflash2 greedy walk"])
def test_a_longer_block_has_the_law_of_the_target(method: str) -> None:
    assert_exact(Case(ToyTarget.random(VOCAB, WARPS["all"]), drafters(3)[method]), lens=(3,))


def test_a_wider_vocabulary_with_a_sparse_walk() -> None:
    """BC-12 (b): q lives on a few candidates of a larger vocabulary."""
    target = ToyTarget.random(8, WARPS["top_p"])
    assert_exact(Case(target, walk_drafter(8, 2, candidates=3, temperature=1.0)), lens=(2,))


def test_a_drafter_that_is_the_target_is_always_believed() -> None:
    """BC-12, BC-14: for q = p every draft stands, whatever the coin, and the law stays."""
    target = ToyTarget.random(VOCAB, PLAIN)
    probs = target.laws[:, :, None, None, :].expand(-1, -1, 1, VOCAB, -1)
    case = Case(target, ToyDrafter(torch.arange(VOCAB).expand_as(probs), probs))
    assert_exact(case, lens=(1, 1))
    assert {len(run) for run in block_law(case, START, length=1)} == {2}


@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_greedy_rules_say_what_the_target_says(k: int) -> None:
    """Every draft there is: the run is the greedy continuation, as far as the draft is right."""
    choices = ToyTarget.random(VOCAB, GREEDY).laws.argmax(-1)
    paths = torch.cartesian_prod(*[torch.arange(VOCAB)] * k).view(-1, k) if k else None
    paths = torch.zeros(1, 0, dtype=torch.long) if paths is None else paths
    tokens = torch.cat([torch.tensor(START).expand(len(paths), 2), paths], 1)
    targets = choices[tokens[:, :-1], tokens[:, 1:]]
    verdict = accept_greedy(paths, [k] * len(paths), targets)
    for row, (path, target_row) in enumerate(zip(paths.tolist(), targets.tolist(), strict=True)):
        emitted, accepted_len = greedy_rule(path, target_row, end_ids=())
        context = list(START)
        for token_id in emitted:
            assert token_id == int(choices[context[-2], context[-1]])
            context.append(token_id)
        assert (accepted_len, emitted[-1]) == (verdict.accepted_len[row], verdict.next_ids[row])
        assert emitted[:-1] == path[:accepted_len]
        assert accepted_len == k or path[accepted_len] != emitted[-1]
