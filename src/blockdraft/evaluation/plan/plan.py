"""Measure, compute, and say what pays."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.engine.llm import LLM
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.evaluation.plan.ceilings import Ceilings, measure_ceilings
from blockdraft.evaluation.plan.measure import Bench, alternate, other_ms
from blockdraft.evaluation.plan.model import Acceptance, Costs, Gain, gains
from blockdraft.evaluation.provenance import provenance
from blockdraft.registry import MAX_DRAFT_TOKENS


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What is measured.

    Attributes:
        rows: rows of a pass of one sequence: the anchor and so many drafts less one.
        contexts: cached tokens; loads are measured at the first.
        concurrency: sequences of a pass.
        repeats: timed rounds; medians count.
    Raises: ConfigError for an empty list or a value out of range.
    """

    rows: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    contexts: tuple[int, ...] = (256, 1024)
    concurrency: tuple[int, ...] = (1, 4, 16)
    repeats: int = 5

    def __post_init__(self) -> None:
        least = {"rows": 1, "contexts": 2, "concurrency": 1}
        for name, low in least.items():
            values = getattr(self, name)
            if not values or min(values) < low or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give different numbers from {low} on")
        if 1 not in self.rows or len(self.rows) < 2 or max(self.rows) > MAX_DRAFT_TOKENS + 1:
            raise ConfigError(
                f"rows is {list(self.rows)}; give 1 (plain decoding) and others up to "
                f"{MAX_DRAFT_TOKENS + 1}"
            )
        if self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Cost of a pass against its rows, one sequence at one context."""

    context: int
    rows: tuple[int, ...]
    verify_ms: tuple[float, ...]
    draft_ms: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Measured costs and what follows. `num_draft_tokens`: the drafter's own; None without one."""

    ceilings: Ceilings
    curves: tuple[Curve, ...]
    costs: tuple[Costs, ...]
    gains: tuple[Gain, ...]
    num_draft_tokens: int | None

    def as_dict(self) -> dict[str, Any]:
        """The JSON object, but for provenance and settings."""
        first, own = self.curves[0], self.num_draft_tokens
        return {
            "rows": first.rows,
            "verify_ms": first.verify_ms,
            "draft_ms": [
                first.draft_ms if own is not None and 1 < n <= own + 1 else None for n in first.rows
            ],
            **dataclasses.asdict(self.ceilings),
            "read_ms": self.ceilings.read_ms,
            "balance_rows": self.ceilings.balance_rows,
            "curves": [dataclasses.asdict(curve) for curve in self.curves],
            "costs": [dataclasses.asdict(cost) for cost in self.costs],
            "gains": [dataclasses.asdict(gain) for gain in self.gains],
            "num_draft_tokens": own,
        }


def make_plan(
    llm: LLM,
    ids: Sequence[int],
    acceptances: Sequence[Acceptance],
    settings: PlanSettings,
    log: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Measure the machine with these models, and compute the gains.

    Args:
        llm: its drafter may be None: gains are then those of a drafter that costs nothing.
        ids: a text of any length, repeated to the contexts' length.
    Raises: CapacityError if a context does not fit the target; ConfigError if no row is a cycle of
        the drafter, or nothing is known of acceptance at those that are.
    """
    _check_room(llm, settings)
    known = _known(acceptances, _widths(llm, settings), log)
    log("measuring what the machine can do at most ..")
    ceilings = measure_ceilings(llm.target)
    curves = []
    for context in settings.contexts:
        log(f"measuring passes at {context} cached tokens ..")
        curves.append(_curve(llm, _text(ids, context), settings))
    costs: list[Costs] = []
    for concurrency in settings.concurrency:
        log(f"measuring {concurrency} at once ..")
        costs += _costs(llm, _text(ids, settings.contexts[0]), concurrency, settings)
    found = [gain for acceptance in known for gain in gains(costs, acceptance)]
    own = None if llm.drafter is None else llm.drafter.num_draft_tokens
    return Plan(
        ceilings=ceilings,
        curves=tuple(curves),
        costs=tuple(costs),
        gains=tuple(found),
        num_draft_tokens=own,
    )


def _check_room(llm: LLM, settings: PlanSettings) -> None:
    need, room = max(settings.contexts) + max(settings.rows), llm.target.info.max_context_len
    if need > room:
        raise CapacityError(
            f"{max(settings.contexts)} cached tokens and {max(settings.rows)} rows need {need}; "
            f"{llm.target.info.name} holds {room}: give smaller --contexts"
        )


def _widths(llm: LLM, settings: PlanSettings) -> list[int]:
    """Numbers of drafted tokens that are measured: those of the rows that the drafter can fill."""
    rows = sorted(settings.rows)
    if llm.drafter is None:
        return [n - 1 for n in rows if n > 1]
    own = llm.drafter.num_draft_tokens
    widths = [n - 1 for n in rows if 1 < n <= own + 1]
    if not widths:
        raise ConfigError(
            f"rows is {list(settings.rows)}, and {llm.drafter.name} drafts up to {own} tokens: no "
            f"such pass is a cycle of it; give some of 2 to {own + 1}, or --drafter none"
        )
    return widths


def _known(
    acceptances: Sequence[Acceptance], widths: Sequence[int], log: Callable[[str], None]
) -> list[Acceptance]:
    """Those whose tau is known at some width; the others are said."""
    known = [one for one in acceptances if any(one.tau(width) is not None for width in widths)]
    others = [one.label for one in acceptances if one not in known]
    if not others:
        return known
    said = (
        f"measured with fewer than {min(widths)} drafted tokens, so nothing is known at these "
        f"rows: {'; '.join(others)}"
    )
    if not known:
        raise ConfigError(f"{said}. Give smaller --rows, or other acceptances")
    log(said)
    return known


def _text(ids: Sequence[int], length: int) -> list[int]:
    return (list(ids) * (length // len(ids) + 1))[:length]


def _curve(llm: LLM, ids: Sequence[int], settings: PlanSettings) -> Curve:
    bench = Bench(llm.target, llm.drafter, ids, 1, max(settings.rows))
    passes: dict[int, Callable[[], object]] = {n: bench.verify(n) for n in settings.rows}
    if llm.drafter is not None:
        passes[0] = bench.draft()
    times = alternate(passes, settings.repeats)
    return Curve(
        context=len(ids),
        rows=settings.rows,
        verify_ms=tuple(times[n] for n in settings.rows),
        draft_ms=times.get(0),
    )


def _costs(llm: LLM, ids: Sequence[int], concurrency: int, settings: PlanSettings) -> list[Costs]:
    bench = Bench(llm.target, llm.drafter, ids, concurrency, max(settings.rows))
    passes: dict[int, Callable[[], object]] = {n: bench.verify(n) for n in settings.rows}
    if llm.drafter is not None:
        passes[0] = bench.draft()
    times, other = alternate(passes, settings.repeats), other_ms(llm, ids[:64], concurrency)
    return [
        Costs(
            concurrency=concurrency,
            num_draft_tokens=width,
            plain_ms=times[1] + other,
            draft_ms=times.get(0),
            verify_ms=times[width + 1],
            other_ms=other,
        )
        for width in _widths(llm, settings)
    ]


def write_plan(plan: Plan, about: dict[str, Any], settings: PlanSettings, out: Path) -> None:
    """Write the JSON, whole or not at all."""
    result = {
        "provenance": provenance(about),
        "settings": dataclasses.asdict(settings),
        **plan.as_dict(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, out)
