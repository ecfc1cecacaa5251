"""Whether what comes next has stood in the text before, so that looking it up would have done."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.drafters.ngram import NgramDrafter, NgramIndex


def repeated_len(text: Sequence[int], start: int, most: int) -> int:
    """The greatest n up to `most` for which text[start : start + n] also stands before `start`.

    The earlier occurrence lies wholly in what is already written, the anchor included; where the
    text ends, n ends.
    """
    before = text[:start]
    reach = 0
    for at in range(len(before)):
        n = 0
        while n < most and at + n < start and start + n < len(text):
            if text[at + n] != text[start + n]:
                break
            n += 1
        reach = max(reach, n)
    return reach


def lookup_matches(text: Sequence[int], first: int, width: int) -> list[list[bool]]:
    """Where n-gram lookup, drafting `width` tokens at each place from `first` on, is right."""
    drafter = NgramDrafter(width)
    index, found = NgramIndex(drafter.min_n, drafter.max_n), []
    for start in range(first, len(text)):
        drafts = index.continuation(text[:start], width)
        right = [*text[start : start + width], *[-1] * width]
        matches = [draft == token for draft, token in zip(drafts, right, strict=False)]
        found.append(matches + [False] * (width - len(matches)))
    return found
