"""Traces made up for the tests of their page: any length, all reasons to stop."""

from __future__ import annotations

import random
from typing import Any

import torch

from blockdraft.evaluation.trace_cycle import pack

_TEXT = (
    "A tray holds twelve rolls, so six trays hold seventy two rolls. The baker sells fifty of them,"
    " and twenty two are left.\n\nTo check: fifty and twenty two make seventy two again. "
)
WORDS = [(" " if i else "") + word for i, word in enumerate(_TEXT.split(" "))]
NUM_SLOTS, NUM_CANDIDATES = 7, 16


def made_up_trace(num_cycles: int, *, sampled: bool = False, seed: int = 0) -> dict[str, Any]:
    """A trace of `num_cycles` cycles over a text that repeats; its lattices are random."""
    dice = random.Random(seed)
    num_words = len(WORDS)
    at, cycles = 1, []
    for i in range(num_cycles):
        accepted = min(NUM_SLOTS, int(dice.expovariate(0.4)))
        right = [(at + j) % num_words for j in range(NUM_SLOTS + 1)]
        cycles.append(_cycle(dice, at, right, accepted, sampled, is_last=i == num_cycles - 1))
        at += accepted + 1
    text = "".join(piece for cycle in cycles for piece in cycle["pieces"])
    drafted = sum(len(cycle["drafted"]) for cycle in cycles)
    return {
        "kind": "blockdraft-trace",
        "version": 1,
        "prompt": 'How many rolls are left? <b>"Think"</b> step by step.',
        "prompt_tokens": 12,
        "completion_tokens": at,
        "text": WORDS[0] + text,
        "finish_reason": "length",
        "error": None,
        "speculation": {
            "cycles": num_cycles,
            "drafted": drafted,
            "accepted": sum(cycle["accepted"] for cycle in cycles),
            "committed": at - 1,
            "mean_acceptance_length": (at - 1) / num_cycles,
        },
        "params": {"is_greedy": not sampled, "temperature": 1.0 if sampled else 0.0},
        "method": "dflash2",
        "first": {"ids": [0], "pieces": [WORDS[0]]},
        "cycles": cycles,
        "tokens": {str(i): word for i, word in enumerate(WORDS)},
        "provenance": {"target": {"name": "made-up"}, "seed": seed},
    }


def _cycle(
    dice: random.Random, at: int, right: list[int], accepted: int, sampled: bool, is_last: bool
) -> dict[str, Any]:
    slots = [_slot(dice, word, j >= accepted) for j, word in enumerate(right[:NUM_SLOTS])]
    drafted = right[:accepted]
    for j in range(accepted, NUM_SLOTS):
        drafted.append(next(i for i in slots[j]["ids"] if i != right[j]))
    committed = [*drafted[:accepted], right[accepted]]
    noise = torch.Generator().manual_seed(at)
    pair = torch.randn(NUM_SLOTS, NUM_CANDIDATES, NUM_CANDIDATES, generator=noise)
    return {
        "start": at,
        "anchor": right[0] - 1 if right[0] else len(WORDS) - 1,
        "drafted": drafted,
        "accepted": accepted,
        "committed": committed,
        "pieces": [WORDS[i] for i in committed],
        "why": "all_accepted" if accepted == NUM_SLOTS else "rejected",
        "ended": "length" if is_last else None,
        "p": [slot["p"][slot["ids"].index(i)] for slot, i in zip(slots, drafted, strict=True)],
        "q": [round(dice.uniform(0.2, 1), 3) for _ in drafted] if sampled else None,
        "u": [round(dice.random(), 3) for _ in drafted] if sampled else None,
        "says": [
            [[i, 0.72], [(i + 5) % len(WORDS), 0.11], [(i + 9) % len(WORDS), 0.04]] for i in right
        ],
        "slots": slots,
        "pair": pack(pair),
    }


def _slot(dice: random.Random, right: int, may_miss: bool) -> dict[str, Any]:
    """Candidates of one slot; the right one is often on top, and may be missing."""
    others = dice.sample([i for i in range(len(WORDS)) if i != right], NUM_CANDIDATES)
    place = min(int(dice.expovariate(0.9)), NUM_CANDIDATES - 1)
    if may_miss and dice.random() < 0.2:
        place = NUM_CANDIDATES
    ids = [*others[:place], right, *others[place:]][:NUM_CANDIDATES]
    unary = sorted((round(dice.uniform(4, 16), 2) for _ in ids), reverse=True)
    p = [0.72 if i == right else round(dice.random() ** 6 * 0.2, 4) for i in ids]
    return {"ids": ids, "unary": unary, "p": p}
