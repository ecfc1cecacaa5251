"""The greedy rules: one row with end tokens, and a batch without."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from blockdraft.types import Verdict
from blockdraft.verification import accept_greedy, greedy_rule


@pytest.mark.parametrize(
    ("drafts", "choices", "emitted", "accepted_len"),
    [
        ([], [4], [4], 0),
        ([7], [4, 5], [4], 0),
        ([4], [4, 5], [4, 5], 1),
        ([4, 5, 6], [4, 9, 6, 7], [4, 9], 1),
        ([4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7], 3),
        ([9, 4, 5], [4, 4, 5, 7], [4], 0),  # a match behind a rejection counts for nothing
    ],
)
def test_a_prefix_and_one_more(
    drafts: list[int], choices: list[int], emitted: list[int], accepted_len: int
) -> None:
    assert greedy_rule(drafts, choices, end_ids=()) == (emitted, accepted_len)


def test_an_end_token_cuts_wherever_it_is() -> None:
    """BC-01: every position of the end in the emitted run; accepted counts what is emitted."""
    drafts, choices = [10, 11, 12], [10, 11, 12, 13]
    for position, end in enumerate(choices):
        emitted, accepted_len = greedy_rule(drafts, choices, end_ids={end})
        assert emitted == choices[: position + 1]
        assert accepted_len == min(position + 1, 3)


def test_the_first_of_several_ends_cuts() -> None:
    """BC-03."""
    assert greedy_rule([1, 2, 3], [1, 2, 3, 4], end_ids=[3, 2]) == ([1, 2], 2)


def test_a_rejected_end_does_not_end() -> None:
    """BC-04: the draft proposes the end, the target goes on."""
    assert greedy_rule([1, 2, 3], [1, 8, 3, 4], end_ids={2}) == ([1, 8], 1)


@pytest.mark.parametrize(("num_drafts", "num_choices"), [(3, 3), (3, 5), (0, 0), (0, 2)])
def test_a_wrong_length_is_an_error_that_says_both(num_drafts: int, num_choices: int) -> None:
    with pytest.raises(ValueError, match=f"{num_drafts} drafts and {num_choices} target choices"):
        greedy_rule([1] * num_drafts, [1] * num_choices, end_ids=())


def test_a_batch_of_different_lengths() -> None:
    """Entries behind a row's length are ignored, right as they may be."""
    drafts = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 9, 3], [-1, -1, -1]])
    targets = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    verdict = accept_greedy(drafts, (3, 1, 3, 0), targets)
    assert verdict == Verdict(accepted_len=(3, 1, 1, 0), next_ids=(4, 2, 2, 1))


def test_an_empty_batch() -> None:
    empty = torch.zeros(0, 3, dtype=torch.long)
    assert accept_greedy(empty, (), torch.zeros(0, 4, dtype=torch.long)) == Verdict((), ())


@pytest.mark.parametrize(
    ("lens", "width"), [((4,), 4), ((-1,), 4), ((3, 3), 4), ((3,), 3), ((3,), 5)]
)
def test_disagreeing_shapes_are_errors(lens: tuple[int, ...], width: int) -> None:
    refused = (ValueError, TypeCheckError)  # the second where annotations are checked
    with pytest.raises(refused, match=r"lengths|Type-check"):
        accept_greedy(
            torch.zeros(1, 3, dtype=torch.long), lens, torch.zeros(1, width, dtype=torch.long)
        )
