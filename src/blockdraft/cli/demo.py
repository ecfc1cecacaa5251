"""`blockdraft demo`: a few prompts with and without the drafter, text and speed side by side."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM
    from blockdraft.engine.outputs import Output

PROMPTS = (
    "List the days of the week, then list them again in reverse order.",
    "A baker fills 6 trays with 12 rolls each and sells 50 rolls. How many rolls are left? "
    "Think step by step.",
    "Correct the spelling of this text and give back the whole text: The libary opens at nine in "
    "the morning and closes at six in the evning. On sundays the libary opens at noon and closes "
    "at four in the afternon. Books can be borowed for three weeks.",
)


def demo(
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "auto",
    max_tokens: options.MaxTokens = 128,
    rounds: Annotated[int, typer.Option(help="Runs of each kind; medians are shown.")] = 3,
    dtype: options.Dtype = None,
    exact: options.Exact = False,
    weights: options.Weights = None,
    num_draft_tokens: options.NumDraftTokens = None,
) -> None:
    """Generate the same prompts plainly and with drafting, alternately, and compare."""
    from blockdraft.engine.llm import LLM
    from blockdraft.errors import ConfigError
    from blockdraft.types import SamplingParams

    for name, value, least in (("--rounds", rounds, 1), ("--max-tokens", max_tokens, 2)):
        if value < least:
            raise ConfigError(f"{name} is {value}; it must be at least {least} to measure speed")
    drafting: LLM = options.make_llm(
        target,
        drafter,
        dtype=dtype,
        exact=exact,
        num_draft_tokens=num_draft_tokens,
        weights=weights,
    )
    if drafting.drafter is None:
        raise ConfigError("there is no drafter to compare with; leave --drafter at auto")
    plain = LLM.from_parts(drafting.loaded, None)
    params = SamplingParams(max_tokens=max_tokens)
    engines = {"plain": plain, "drafted": drafting}
    options.note("warming up ..")
    for llm in engines.values():
        llm.generate(PROMPTS[0], params)
    rates = []
    for prompt in PROMPTS:
        runs: dict[str, list[Output]] = {name: [] for name in engines}
        for _ in range(rounds):
            for name, llm in engines.items():  # alternately, so that noise hits both alike
                runs[name].extend(llm.generate(prompt, params))
        rates.append(_show(prompt, runs, drafting))
    _summary(rates, drafting)


def rate(outputs: list[Output]) -> float:
    """Median tokens/s after the first token.

    Raises: UserError if no answer is longer than that.
    """
    from blockdraft.errors import UserError

    rates = [
        (out.usage.completion_tokens - 1) / out.timing.decode_s
        for out in outputs
        if out.usage.completion_tokens > 1
    ]
    if not rates:
        raise UserError("the target ends its answer at the first token: no speed to measure")
    return statistics.median(rates)


def _show(prompt: str, runs: dict[str, list[Output]], llm: LLM) -> tuple[float, float, bool]:
    from rich.console import Console
    from rich.table import Table

    plain, drafted = runs["plain"][-1], runs["drafted"][-1]
    same = plain.token_ids == drafted.token_ids
    speeds = rate(runs["plain"]), rate(runs["drafted"])
    name = llm.describe()["drafter"]["name"]
    table = Table(title=prompt, title_justify="left", show_lines=True, expand=True)
    table.add_column(f"plain: {speeds[0]:.0f} tokens/s", ratio=1)
    length = drafted.speculation.mean_acceptance_length or 1.0
    table.add_column(f"with {name}: {speeds[1]:.0f} tokens/s, {length:.2f} tokens a cycle", ratio=1)
    table.add_row(plain.text, "the same text, token for token" if same else drafted.text)
    Console().print(table, markup=False)
    return *speeds, same


def _summary(rates: list[tuple[float, float, bool]], llm: LLM) -> None:
    ratio = statistics.median(drafted / plain for plain, drafted, _ in rates)
    same = sum(equal for _, _, equal in rates)
    about = llm.describe()
    print(
        f"{about['target']['name']}, {about['dtype']}, {about['kernels']} kernels, drafter "
        f"{about['drafter']['name']}: {ratio:.2f} times as fast as plain decoding (median of "
        f"{len(rates)} prompts); {same} of {len(rates)} texts the same token for token"
    )
    if same < len(rates):
        print("bfloat16 texts may part at ties of two tokens: docs/exactness.md, or use --exact")
