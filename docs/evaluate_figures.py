"""Tables of `benchmarks/results/evaluate.json`: README's, those of `docs/results.md`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

METHODS = {
    "ngram": "n-gram",
    "dflash": "DFlash",
    "dflash2": "DFlash 2",
    "dflash2+ngram": "DFlash 2 + n-gram",
}

Row = dict[str, Any]


def evaluate(result: dict[str, Any]) -> str:
    """README's table of what the shipped drafters do on five tasks: one request, greedy."""
    about, asked, by = result["provenance"], result["settings"], _alone(result)
    tasks, methods = _tasks(result), _methods(result)
    lines = [
        f"Five tasks, {by[tasks[0], 'plain']['num_prompts']} prompts each, greedy, at most {asked['max_tokens']} tokens, one "
        f"request at a time, {about['dtype']}, {about['machine']['threads']} threads; plain decoding and the drafters in turns "
        "on the same prompts, prompts' passes included ([JSON](benchmarks/results/evaluate.json)). Speed-up over plain "
        f"decoding, and τ: the tokens that a pass of the target commits, the mean over answers (95 % interval); the oracle's τ is "
        f"pooled over cycles. {_sameness(by.values())}",
        "",
        f"| task | plain, tokens/s | {' | '.join(METHODS[name] for name in methods)} | oracle τ of DFlash 2 |",
        "|---" * (len(methods) + 3) + "|",
    ]
    for task in tasks:
        cells = [_cell(by[task, name]) for name in methods]
        lines.append(
            f"| {task} | {by[task, 'plain']['tokens_per_s']:.0f} | {' | '.join(cells)} | "
            f"{by[task, 'dflash2']['oracle_tau']:.2f} |"
        )
    means = (_mean([by[task, name]["speedup"] for task in tasks]) for name in methods)
    lines.append(f"| mean | | {' | '.join(f'**{mean:.2f} times**' for mean in means)} | |")
    return "\n".join(lines) + "\n"


def evaluate_loads(result: dict[str, Any]) -> str:
    """Speed-up by load and temperature, the mean over the tasks."""
    loads, methods = result["settings"]["concurrency"], _methods(result)
    lines = [
        f"Mean over {len(_tasks(result))} tasks. Plain decoding in tokens/s, the others in speed-up over plain decoding under "
        "the same load, in brackets that of the worst task ([JSON](../benchmarks/results/evaluate.json)).",
        "",
        f"| temperature | requests at once | plain | {' | '.join(METHODS[name] for name in methods)} |",
        "|---" * (len(methods) + 3) + "|",
    ]
    for temperature in result["settings"]["temperatures"]:
        for load in loads:
            rows = [r for r in result["rows"] if _is_at(r, load, temperature)]
            rate = _over(rows, "plain", lambda row: row["tokens_per_s"])
            gains = [_over(rows, name, lambda row: row["speedup"]) for name in methods]
            worst = [_worst(rows, name) for name in methods]
            cells = " | ".join(
                "-" if gain is None else f"{gain:.2f} ({least:.2f})"
                for gain, least in zip(gains, worst, strict=True)
            )
            lines.append(f"| {temperature:g} | {load} | {rate:.0f} | {cells} |")
    return "\n".join(lines) + "\n"


def evaluate_pair(result: dict[str, Any]) -> str:
    """DFlash 2 against DFlash, trained alike: one request, greedy."""
    by, tasks = _alone(result), _tasks(result)
    lines = [
        f"Greedy, one request at a time, {by[tasks[0], 'plain']['num_prompts']} prompts a task, one training of each "
        "([JSON](../benchmarks/results/evaluate.json)). τ is the mean over answers, with its 95 % interval. The other columns "
        "are pooled over cycles: DFlash, DFlash 2 with each slot's best candidate alone, with its selector, and with a perfect "
        "choice among 16.",
        "",
        "| task | τ of DFlash | τ of DFlash 2 | gain | DFlash | best alone | selector | perfect | recovered |",
        "|---" * 9 + "|",
    ]
    gains = []
    for task in tasks:
        one, two = by[task, "dflash"], by[task, "dflash2"]
        gains.append(two["tau"] / one["tau"])
        lines.append(
            f"| {task} | {_tau(one)} | {_tau(two)} | {_gain(two, gains[-1])} | {one['selector_tau']:.2f} | "
            f"{two['top1_tau']:.2f} | {two['selector_tau']:.2f} | {two['oracle_tau']:.2f} | {two['headroom_recovered']:.0%} |"
        )
    lines.append(f"| mean | | | **{_mean(gains) - 1:+.0%}** | | | | | |")
    return "\n".join(lines) + "\n"


def _is_at(row: Row, load: int, temperature: float) -> bool:
    return bool(row["concurrency"] == load and row["temperature"] == temperature)


def _alone(result: dict[str, Any]) -> dict[tuple[str, str], Row]:
    """Greedy rows of one request at a time, by task and method."""
    return {(r["task"], r["method"]): r for r in result["rows"] if _is_at(r, 1, 0.0)}


def _tasks(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in result["rows"]))


def _methods(result: dict[str, Any]) -> list[str]:
    there = {row["method"] for row in result["rows"]}
    return [name for name in METHODS if name in there]


def _sameness(rows: Any) -> str:
    if any(row["num_diverged"] for row in rows):
        return "Some texts differ from plain decoding: see the JSON."
    return "All texts are those of plain decoding."


def _worst(rows: Sequence[Row], method: str) -> float:
    return min((row["speedup"] for row in rows if row["method"] == method), default=float("nan"))


def _over(rows: Sequence[Row], method: str, value: Callable[[Row], float | None]) -> float | None:
    """The mean of a figure over the tasks; None where a task has none."""
    found = [value(row) for row in rows if row["method"] == method]
    known = [each for each in found if each is not None]
    return _mean(known) if known and len(known) == len(found) else None


def _cell(row: Row) -> str:
    return f"**{row['speedup']:.2f} times**, τ {_tau(row)}"


def _gain(row: Row, ratio: float) -> str:
    """Of DFlash 2 over DFlash, with the interval of the same prompts where the result has it."""
    paired = row.get("against", {}).get("dflash")
    if not paired or not paired["tau_ratio_ci95"]:
        return f"{ratio - 1:+.0%}"
    low, high = paired["tau_ratio_ci95"]
    return f"{ratio - 1:+.0%} ({low - 1:+.0%} to {high - 1:+.0%})"


def _tau(row: Row) -> str:
    low, high = row["tau_ci95"]
    return f"{row['tau']:.2f} ({low:.2f}-{high:.2f})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
