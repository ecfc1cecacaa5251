"""Cycles that are replayed, by hand and against decoding; repeats on made-up text."""

from __future__ import annotations

import torch

from benchmarks.findings.asked import Asked
from benchmarks.findings.blocks import AnswerBlocks, collect, commits, cycle_starts
from benchmarks.findings.choosers import CHOOSERS
from benchmarks.findings.figures import chooser_figures, count_figures, repeat_figures
from benchmarks.findings.repeats import lookup_matches, repeated_len
from blockdraft.types import SamplingParams
from tests.evaluation.runs import codec, prompts, target
from tests.fakes.codec import make_llm
from tests.fakes.drafting import random_drafter

TEXT = (1, 2, 3, 9, 1, 2, 3, 4)


def test_a_cycle_commits_what_is_right_from_the_front_and_one_more() -> None:
    matches = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 0]]).bool()
    # The last three are cut by the end of the text.
    assert commits(matches).tolist() == [3, 2, 1, 2, 1]
    assert cycle_starts(commits(matches)) == [0, 3]
    assert cycle_starts(torch.tensor([1, 1])) == [0, 1]


def test_repeats_stand_wholly_in_what_is_written() -> None:
    assert repeated_len(TEXT, 4, 8) == 3  # 1 2 3, and 9 is not 4
    assert repeated_len(TEXT, 4, 2) == 2
    assert repeated_len(TEXT, 3, 8) == 0  # 9 is new
    assert repeated_len(TEXT, 6, 8) == 1  # 3, then the text is new
    assert repeated_len((5, 5, 5, 5), 1, 8) == 1  # not into itself
    assert repeated_len((5, 5, 5, 5), 2, 8) == 2
    assert repeated_len((5, 5, 5), 2, 8) == 1  # the text ends


def test_lookup_is_right_where_it_copies_the_right_thing() -> None:
    # After 1 it copies 2 3 9; after 9 and before that it has nothing.
    found = lookup_matches(TEXT, 4, 3)
    assert found == [[False] * 3, [True, True, False], [True, False, False], [False] * 3]


def answers_of(tokens: int) -> list[AnswerBlocks]:
    llm = make_llm(target(), codec=codec())
    wide = random_drafter(target(), "dflash2", selector_top_k=32)
    asked = [Asked("toy", each.id, each.turns[0]) for each in prompts()]
    return collect(llm, wide, asked, tokens)


def test_the_cycles_are_those_of_decoding() -> None:
    """With every number of candidates, and up to a limit within a block."""
    answers = answers_of(30)
    counts = count_figures(answers, 16)
    for num in (2, 16, 32):
        drafter = random_drafter(target(), "dflash2", selector_top_k=num)
        llm = make_llm(target(), drafter, codec=codec())
        outputs = llm.generate([each.turns[0] for each in prompts()], SamplingParams(max_tokens=30))
        assert [out.token_ids for out in outputs] == [each.answer_ids for each in answers]
        assert counts[str(num)]["walk"]["cycles"] == sum(o.speculation.cycles for o in outputs)
        assert any(out.speculation.accepted for out in outputs)


def test_figures_keep_their_order() -> None:
    answers = answers_of(40)
    counts, choosers = count_figures(answers, 16), chooser_figures(answers, 16)
    assert counts["16"] == {name: choosers[name] for name in ("walk", "oracle")}
    assert counts["1"]["walk"]["cycles"] == choosers["top1"]["cycles"]
    assert choosers.keys() == {*CHOOSERS, "oracle"}
    oracles = [each["oracle"]["cycles"] for each in counts.values()]
    assert oracles == sorted(oracles, reverse=True)
    committed = sum(len(each.answer_ids) - 1 for each in answers)
    assert all(each["committed"] == committed for each in choosers.values())


def test_classes_hold_every_cycle_that_is_known() -> None:
    answers = answers_of(40)
    starts = [cycle_starts(commits(a.matches(CHOOSERS["walk"](a.scores)))) for a in answers]
    known = sum(
        a.num_tokens - at >= 3 for a, own in zip(answers, starts, strict=True) for at in own
    )
    classes = repeat_figures(answers, 32)["3"]
    assert sum(each["cycles"] for each in classes.values()) == known
    for each in classes.values():
        assert each["cycles"]
        assert each["top1_tau"] <= each["oracle_tau"] >= each["walk_tau"] >= 1
