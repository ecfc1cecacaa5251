"""The card's section on what a drafter is bad at, and what it never saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from blockdraft.drafters.config import DFlashConfig

Row = Mapping[str, Any]


def limits(
    result: Mapping[str, Any],
    method: str,
    config: DFlashConfig,
    max_lens: tuple[int, int],
    languages: str,
) -> list[str]:
    """Lines of the section.

    Args:
        result: of `blockdraft evaluate`.
        max_lens: most tokens of a training sequence, and of an answer.
        languages: of prompts and code, in words.
    """
    drafted = config.draft_vocab_size or config.vocab_size
    return [
        "## Limits",
        "",
        "A drafter can only cost time: whatever it drafts, the text is the target's.",
        "",
        *_measured(
            [row for row in result["rows"] if row["method"] == method],
            result["settings"].get("adaptive", False),
        ),
        f"- Trained on {languages}. Of the target's {config.vocab_size:,} tokens"
        f" {drafted:,} can be drafted; text of other tokens, as in other scripts, is not.",
        f"- Trained on prompts and answers of together at most {max_lens[0]} tokens, answers of at"
        f" most {max_lens[1]}; measured on answers of at most {result['settings']['max_tokens']}."
        " Longer texts were neither trained nor measured.",
        "- Trained on one user turn, without a system message, under the target's own chat"
        " template; on the target's weights below and no others.",
    ]


def _measured(rows: Sequence[Row], is_adaptive: bool) -> list[str]:
    """The worst task; the loads where drafting costs time, and what sampling does."""
    cells = defaultdict(list)
    for row in rows:
        cells[row["temperature"], row["concurrency"]].append(row)
    worst = min((row for row in cells[0.0, 1] if row["tau"]), key=lambda row: row["tau"])
    lines = [f"- Worst of these tasks: {worst['task']}, τ {worst['tau']:.2f}."]
    for (temperature, load), own in sorted(cells.items()):
        gain, tau = (_mean([row[key] for row in own]) for key in ("speedup", "tau"))
        if gain is None or tau is None or (gain >= 1.0 and not (temperature and load == 1)):
            continue
        many = f"{load} requests at once" if load > 1 else "One request at a time"
        how = f"at temperature {temperature:g}" if temperature else "greedy"
        # Under load little or nothing is drafted, and τ is that of the load.
        share = f"τ {tau:.2f}, " if load == 1 or not is_adaptive else "drafts fitted to the load, "
        lines.append(f"- {many}, {how}: {share}{gain:.2f} times plain speed.")
    return lines


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
