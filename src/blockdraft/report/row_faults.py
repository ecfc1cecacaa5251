"""Whether a row of a result holds what `evaluate` writes, as far as a page relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blockdraft.param_types import is_number, is_whole

#: Ratios of two methods in `against`; each has an interval.
GAINS = ("tau_ratio", "speed_ratio")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_finite(value: Any) -> bool:
    """A number of a size that a chart can have an axis for."""
    return is_number(value) and abs(value) < 1e300


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_finite, value))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(each is None or _is_finite(each) for each in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_finite, value.values()))


def _is_table_of_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_numbers, value.values()))


def _is_gains(value: Any) -> bool:
    """Of each other method ratios that are numbers, intervals, or null."""
    gains = list(value.values()) if isinstance(value, dict) else [None]
    return all(
        isinstance(gain, dict)
        and all(each is None or _is_finite(each) or _is_interval(each) for each in gain.values())
        and all(_is_interval(gain.get(f"{name}_ci95") or [0, 0]) for name in GAINS)
        and all(_is_finite(gain.get(name) or 0) for name in GAINS)
        for gain in gains
    )


#: Keys that every row has; all others may be absent, or null.
_NEEDED: dict[str, Callable[[Any], bool]] = {
    "task": _is_text,
    "method": _is_text,
    "concurrency": is_whole,
    "temperature": _is_finite,
}

_OTHERS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "a whole number",
        is_whole,
        "num_prompts num_answers num_tokens num_errors num_diverged cycles drafted accepted",
    ),
    (
        "a number",
        _is_finite,
        "tau tau_pooled top1_tau selector_tau oracle_tau headroom_recovered tokens_per_s "
        "decode_tokens_per_s speedup speedup_median decode_speedup predicted_speedup mean_batch "
        "peak_memory_bytes cache_bytes divergence_rate accuracy mean_longest_repeat "
        "distinct_4grams",
    ),
    ("two numbers", _is_interval, "tau_ci95 tau_pooled_ci95 speedup_ci95"),
    ("a list of numbers", _is_numbers, "conditional_acceptance_by_position"),
    ("a table of numbers", _is_table, "ms_per_cycle ttft_ms itl_ms"),
    ("a table of lists", _is_table_of_lists, "recall_by_position"),
    ("a table of gains", _is_gains, "against"),
)


def is_table_of_facts(value: Any) -> bool:
    """Provenance or settings; a target or machine in it is a table, a target's name a text."""
    if not isinstance(value, dict):
        return False
    target, machine = value.get("target") or {}, value.get("machine") or {}
    if not (isinstance(target, dict) and isinstance(machine, dict)):
        return False
    return isinstance(target.get("name") or "", str)


def row_fault(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row, to be said behind its number; None if nothing is."""
    missing = [key for key in _NEEDED if key not in row]
    if missing:
        return f"has no {', '.join(missing)}"
    for key, is_right in _NEEDED.items():
        if not is_right(row[key]):
            return f"has a {key} that no row has"
    for kind, is_right, keys in _OTHERS:
        for key in keys.split():
            if row.get(key) is not None and not is_right(row[key]):
                return f"has a {key} that is not {kind}"
    return None
