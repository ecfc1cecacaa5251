"""`blockdraft plan`: what a pass costs on this machine, and what drafting pays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM
    from blockdraft.evaluation.plan.model import Acceptance
    from blockdraft.evaluation.plan.plan import PlanSettings

#: Shown where nothing is given: a weak, a fair and a good drafter.
_RATES = (0.5, 0.7, 0.85)

_TEXT = (
    "The library opens at nine in the morning and closes at six in the evening, but on Saturdays "
    "it closes at noon. Children need a card of their own, which costs nothing. "
)


_Drafter = Annotated[
    str,
    typer.Option(help="As for generate; none: costs of the target, as if drafting were free."),
]
_Rows = Annotated[
    str, typer.Option(help="Rows of a pass, by commas: 1, and drafted tokens plus 1.")
]
_Contexts = Annotated[
    str, typer.Option(help="Cached tokens, by commas; loads are measured at the first.")
]
_Concurrency = Annotated[str, typer.Option(help="Requests at once, by commas.")]
_Rates = Annotated[
    str | None,
    typer.Option(
        help="Chance that a draft stands if those before it do, by commas. If nothing is "
        "given: 0.5, 0.7 and 0.85."
    ),
]
_Tau = Annotated[
    float | None,
    typer.Option(help="Committed tokens a cycle at --num-draft-tokens, or the drafter's own."),
]
_FromResult = Annotated[
    Path | None,
    typer.Option("--from", help="JSON of evaluate: acceptance by position, of each row."),
]
_Task = Annotated[str | None, typer.Option(help="Only this task of --from.")]
_Method = Annotated[str | None, typer.Option(help="Only this method of --from.")]
_Repeats = Annotated[int, typer.Option(help="Timed rounds; medians count.")]
_Svg = Annotated[
    Path | None,
    typer.Option(
        "--svg", callback=options.output, help="Plot to write; folders that are missing are made."
    ),
]


def plan(
    target: options.Target = "smollm2-135m",
    drafter: _Drafter = "auto",
    rows: _Rows = "1,2,3,4,6,8,12,16",
    contexts: _Contexts = "256,1024",
    concurrency: _Concurrency = "1,4,16",
    acceptance: _Rates = None,
    tau: _Tau = None,
    from_result: _FromResult = None,
    task: _Task = None,
    method: _Method = None,
    repeats: _Repeats = 5,
    num_draft_tokens: options.NumDraftTokens = None,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
    out: options.JsonFile = None,
    svg: _Svg = None,
) -> None:
    """Measure this machine, and say which block size and which load pay."""
    from blockdraft.evaluation.plan.plan import PlanSettings

    settings = PlanSettings(
        rows=options.numbers("--rows", rows, int),
        contexts=options.numbers("--contexts", contexts, int),
        concurrency=options.numbers("--concurrency", concurrency, int),
        repeats=repeats,
    )
    rates = () if acceptance is None else options.numbers("--acceptance", acceptance, float)
    known = _acceptances(rates, from_result, task, method)
    llm: LLM = options.make_llm(
        target,
        drafter,
        num_draft_tokens=num_draft_tokens,
        dtype=dtype,
        exact=exact,
        weights=weights,
    )
    if tau is not None:
        known = [_of_tau(tau, llm, num_draft_tokens), *known]
    _measure(llm, known or _acceptances(_RATES, None, None, None), settings, out, svg)


def _measure(
    llm: LLM,
    known: list[Acceptance],
    settings: PlanSettings,
    out: Path | None,
    svg: Path | None,
) -> None:
    from blockdraft.evaluation.plan.lines import lines
    from blockdraft.evaluation.plan.plan import make_plan, write_plan
    from blockdraft.evaluation.plan.plot import plan_svg

    found = make_plan(llm, llm.loaded.codec.encode(_TEXT), known, settings, options.note)
    for line in lines(found):
        print(line)
    if out is not None:
        write_plan(found, llm.describe(), settings, out)
    if svg is not None:
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(plan_svg(found), encoding="utf-8")


def _acceptances(
    rates: Sequence[float], path: Path | None, task: str | None, method: str | None
) -> list[Acceptance]:
    from blockdraft.errors import ConfigError
    from blockdraft.evaluation.plan.acceptance_file import read_acceptances
    from blockdraft.evaluation.plan.model import EvenAcceptance

    if path is None and (task or method):
        raise ConfigError("--task and --method choose rows of --from; give that too")
    measured = [] if path is None else read_acceptances(path, task, method)
    return [*measured, *(EvenAcceptance(rate) for rate in rates)]


def _of_tau(tau: float, llm: LLM, num_draft_tokens: int | None) -> Acceptance:
    from blockdraft.errors import ConfigError
    from blockdraft.evaluation.plan.model import EvenAcceptance, rate_of_tau

    if llm.drafter is not None:
        num_draft_tokens = llm.drafter.num_draft_tokens
    if not num_draft_tokens:
        raise ConfigError("--tau says little without a block: give --drafter or --num-draft-tokens")
    return EvenAcceptance(rate_of_tau(tau, num_draft_tokens))
