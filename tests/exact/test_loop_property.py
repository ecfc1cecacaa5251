"""Any requests, any acceptance, any batch: tokens are the oracle's, cut where the request says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.engine.outputs import Output
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.drafting import VariedDrafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import random_prompts, scripted
from tests.fakes.scripted import ScriptedDrafter, accept_all

NUM_PROMPTS, ORACLE_LEN = 8, 48


@cache
def known() -> tuple[DecoderTarget, ScriptedDrafter]:
    """A target with a full and a sliding layer, and its continuations of some prompts."""
    target = tiny_target(windows=(None, 9), num_layers=2, end_ids=())
    prompts = random_prompts([1, 2, 5, 8, 9, 10, 23, 40])
    return target, scripted(target, prompts, accept_all, length=ORACLE_LEN)


@dataclass(frozen=True)
class Case:
    """One request: which prompt, its limit, and which token of the oracle ends it, if any."""

    prompt: int
    max_tokens: int
    end: int | None

    def ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return list(known()[1].oracles.items())[self.prompt]  # type: ignore[return-value]

    def params(self) -> SamplingParams:
        ends = () if self.end is None else (self.ids()[1][self.end],)
        return SamplingParams(max_tokens=self.max_tokens, stop_token_ids=ends)

    def expected(self) -> tuple[tuple[int, ...], str]:
        oracle = self.ids()[1][: self.max_tokens]
        end_id = None if self.end is None else self.ids()[1][self.end]
        if end_id in oracle:
            return oracle[: oracle.index(end_id) + 1], "stop"
        return oracle, "length"


CASES = st.builds(
    Case,
    prompt=st.integers(0, NUM_PROMPTS - 1),
    max_tokens=st.integers(0, 34),
    end=st.none() | st.integers(0, 40),
)


# Random floats could bring two logits closer than float32 can tell; fixed examples never will.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    cases=st.lists(CASES, min_size=1, max_size=9),
    batch_size=st.integers(1, 5),
    num_draft_tokens=st.integers(1, 9),
    chunk_len=st.integers(1, 64),
    chance=st.sampled_from([0.0, 0.5, 0.85, 1.0]),
    ragged=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_run_equals_the_oracle(
    cases: list[Case],
    batch_size: int,
    num_draft_tokens: int,
    chunk_len: int,
    chance: float,
    ragged: bool,
    seed: int,
) -> None:
    target, script = known()
    sized = ScriptedDrafter(script.oracles, accept_all, num_draft_tokens, 160)
    llm = make_llm(
        target,
        VariedDrafter(sized, seed, chance, ragged),
        max_batch_size=batch_size,
        prefill_chunk_len=chunk_len,
    )
    outputs = llm.generate([list(c.ids()[0]) for c in cases], [c.params() for c in cases])
    assert [(o.token_ids, o.finish_reason) for o in outputs] == [c.expected() for c in cases]
    for output in outputs:
        check_counters(output)


def check_counters(output: Output) -> None:
    """Every counter derives from what was committed (docs/metrics.md)."""
    spec, length = output.speculation, len(output.token_ids)
    assert output.usage.completion_tokens == length
    assert spec.committed == max(length - 1, 0)
    assert spec.accepted == sum(spec.accepted_by_position)
    assert spec.drafted == sum(spec.drafted_by_position)
    assert spec.accepted <= spec.committed <= spec.accepted + spec.cycles
    pairs = zip(spec.accepted_by_position, spec.drafted_by_position, strict=True)
    assert all(accepted <= drafted <= spec.cycles for accepted, drafted in pairs)
