"""What an output says: usage, counters, seconds, seeds; and in which order outputs come."""

from __future__ import annotations

from typing import Any

import pytest

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.outputs import Output, Speculation
from blockdraft.errors import ConfigError
from blockdraft.types import Cycle, SamplingParams
from tests.fakes.codec import FakeCodec, make_llm
from tests.fakes.drafting import VariedDrafter, random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, script_for, solo
from tests.fakes.scripted import accept_all, accept_first, accept_none

PROMPTS = random_prompts([6, 13, 2, 21, 9])
PARAMS = SamplingParams(max_tokens=20)


def test_counters_of_a_known_run() -> None:
    """20 tokens with 7 drafts, 3 right: 1 from the prefill, 4 a cycle, 3 in the last cycle."""
    target = tiny_target(end_ids=())
    script = script_for(target, PROMPTS[:1], PARAMS, accept_first(3))
    [output] = make_llm(target, script).generate(PROMPTS[:1], PARAMS)
    spec = output.speculation
    # Drafted: 7, 7, 7, then 6 (7 tokens are left, one is the target's own), then 2 of 3.
    assert (spec.cycles, spec.drafted, spec.committed) == (5, 7 + 7 + 7 + 6 + 2, 19)
    assert spec.accepted == 3 + 3 + 3 + 3 + 2
    assert spec.accepted_by_position == (5, 5, 4, 0, 0, 0, 0)
    assert spec.drafted_by_position == (5, 5, 4, 4, 4, 4, 3)
    assert spec.mean_acceptance_length == 19 / 5
    assert output.usage.prompt_tokens == 6
    assert output.usage.completion_tokens == 20


def test_counters_of_cycles() -> None:
    """A cycle that an end token cut within its drafts has no bonus and fewer accepted."""
    cycles = [
        Cycle(4, 2, (1, 2, 3)),
        Cycle(4, 4, (1, 2, 3, 4)),
        Cycle(0, 0, (1,)),
        Cycle(2, 1, (1,)),
    ]
    spec = Speculation.of(cycles)
    assert (spec.cycles, spec.drafted, spec.accepted, spec.committed) == (4, 10, 7, 9)
    assert spec.accepted_by_position == (3, 2, 1, 1)
    assert spec.drafted_by_position == (3, 3, 2, 2)
    assert spec.mean_acceptance_length == 9 / 4
    assert Speculation.of([]).mean_acceptance_length is None


def test_a_run_without_a_drafter_counts_one_token_a_cycle() -> None:
    [output] = make_llm(tiny_target(end_ids=())).generate(PROMPTS[:1], PARAMS)
    spec = output.speculation
    assert (spec.cycles, spec.committed, spec.drafted, spec.accepted) == (19, 19, 0, 0)
    assert spec.accepted_by_position == spec.drafted_by_position == ()
    assert spec.mean_acceptance_length == 1.0


def drafters(target: Any) -> list[Any]:
    script = script_for(target, PROMPTS, PARAMS, accept_all)
    return [
        None,
        NgramDrafter(7, min_n=1),
        random_drafter(target),
        VariedDrafter(script, ragged=True),
        script_for(target, PROMPTS, PARAMS, accept_none),
    ]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_sums_hold_in_every_batch(batch_size: int) -> None:
    target = tiny_target(end_ids=(7,))
    for drafter in drafters(target):
        llm = make_llm(target, drafter, max_batch_size=batch_size)
        for output in llm.generate(PROMPTS, PARAMS):
            check_sums(output, has_drafter=drafter is not None)


def check_sums(output: Output, has_drafter: bool) -> None:
    spec, time = output.speculation, output.timing
    assert spec.committed == output.usage.completion_tokens - 1 == len(output.token_ids) - 1
    assert spec.accepted == sum(spec.accepted_by_position) <= spec.drafted
    assert spec.drafted == sum(spec.drafted_by_position)
    assert spec.cycles <= spec.committed <= spec.accepted + spec.cycles
    parts = (time.prefill_s, time.draft_s, time.select_s, time.verify_s, time.other_s)
    assert sum(parts) == pytest.approx(time.total_s)
    assert all(part >= -1e-9 for part in parts)
    assert time.prefill_s > 0
    assert time.decode_s == pytest.approx(sum(parts[1:]))
    assert (time.verify_s > 0) == (spec.cycles > 0)
    if not has_drafter:
        assert time.draft_s == time.select_s == 0


def test_rows_share_the_clock_while_they_run() -> None:
    """A row that leaves early has less time than one that joined with it and stays longer."""
    params = [SamplingParams(max_tokens=n) for n in (2, 30, 10, 20, 1)]
    llm = make_llm(tiny_target(end_ids=()), max_batch_size=5)
    totals = [output.timing.total_s for output in llm.generate(PROMPTS, params)]
    assert sorted(totals) == [totals[4], totals[0], totals[2], totals[3], totals[1]]


def test_waiting_in_the_queue_is_not_in_the_time() -> None:
    """One slot: the sum of all totals is no more than the time of the whole run."""
    import time

    llm = make_llm(tiny_target(end_ids=()), max_batch_size=1)
    start = time.perf_counter()
    outputs = llm.generate(PROMPTS, PARAMS)
    whole = time.perf_counter() - start
    assert sum(output.timing.total_s for output in outputs) <= whole


def test_generate_each_yields_as_rows_end() -> None:
    params = [SamplingParams(max_tokens=n) for n in (20, 3, 0, 8, 1)]
    llm = make_llm(tiny_target(end_ids=()))
    order = [index for index, _ in llm.generate_each(PROMPTS, params)]
    assert order == [2, 4, 1, 3, 0]
    called: list[int] = []
    outputs = llm.generate(PROMPTS, params, on_output=lambda i, output: called.append(i))
    assert called == order
    assert [len(output.token_ids) for output in outputs] == [20, 3, 0, 8, 1]


def test_generate_each_in_one_slot_keeps_the_order() -> None:
    llm = make_llm(tiny_target(end_ids=()), max_batch_size=1)
    assert [i for i, _ in llm.generate_each(PROMPTS, PARAMS)] == [0, 1, 2, 3, 4]


def test_nothing_runs_for_max_tokens_0() -> None:
    drafter = script_for(tiny_target(), PROMPTS, PARAMS, accept_all)
    llm = make_llm(tiny_target(), drafter)
    params = SamplingParams(max_tokens=0, logprobs=3, seed=9)
    [output] = llm.generate(PROMPTS[:1], params)
    assert (output.text, output.token_ids, output.finish_reason) == ("", (), "length")
    assert (output.usage.prompt_tokens, output.usage.completion_tokens) == (6, 0)
    assert (output.speculation.cycles, output.timing.total_s, output.seed) == (0, 0, 9)
    assert output.logprobs == ()
    assert drafter.num_drafts == 0
    assert ids_of([p.output for p in llm.stream(PROMPTS[0], params) if p.output]) == [()]


def test_params_one_for_all_or_one_each() -> None:
    llm = make_llm(tiny_target(end_ids=()))
    assert [len(o.token_ids) for o in llm.generate(PROMPTS, PARAMS)] == [20] * 5
    by_default = llm.generate([PROMPTS[2]])[0].token_ids
    assert len(by_default) == 254  # 256 asked for, and a context of 256 that begins with 2
    for wrong in ([PARAMS], [PARAMS] * 6, []):
        with pytest.raises(ConfigError, match=f"{len(wrong)} sampling parameters for 5 prompts"):
            llm.generate(PROMPTS, wrong)


def test_text_without_stops_is_the_decoded_answer() -> None:
    """The end token has no text, whether or not it is a special token."""
    target = tiny_target(end_ids=())
    [free] = solo(target, PROMPTS[:1], PARAMS)
    end = free.token_ids[5]
    codec = FakeCodec([f"[{i}]" for i in range(160)])
    llm = make_llm(tiny_target(end_ids=(end,)), codec=codec)
    [output] = llm.generate(PROMPTS[:1], PARAMS)
    assert output.token_ids == free.token_ids[:6]
    assert output.text == "".join(f"[{i}]" for i in free.token_ids[:5])


def test_describe_says_what_runs() -> None:
    target = tiny_target()
    said = make_llm(target, NgramDrafter(5)).describe()
    assert said["target"]["fingerprint"] == "tiny-0"
    assert said["drafter"] == {"name": "ngram", "num_draft_tokens": 5}
    assert (said["dtype"], said["device"]) == ("float32", "cpu")
    assert make_llm(target).describe()["drafter"] == {"name": "none"}
