"""A trace says what really happened: tokens, laws, coins, candidates, reasons."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch

from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.llm import LLM
from blockdraft.errors import ConfigError
from blockdraft.evaluation.trace import record_trace, text_pieces
from blockdraft.evaluation.trace_cycle import pack
from blockdraft.evaluation.watch_cycles import LogitsWatch
from blockdraft.targets.base import RowBatch, Target
from blockdraft.types import SamplingParams
from tests.engine.test_doubted_drafts import broken_row
from tests.fakes.codec import FakeCodec, make_llm
from tests.fakes.drafting import random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.scripted import ScriptedDrafter, accept_first

#: A vocabulary so small that random drafts are often right.
VOCAB = 20
PROMPT = [5, 9, 14, 5, 9]
METHODS = ["none", "ngram", "dflash", "dflash2"]
GREEDY, SAMPLED = (
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=40, temperature=1, seed=3),
)


def target() -> Target:
    return tiny_target(vocab_size=VOCAB, end_ids=())


def engine(method: str, on: Target | None = None) -> LLM:
    on = on or target()
    if method == "none":
        return make_llm(on)
    return make_llm(on, NgramDrafter() if method == "ngram" else random_drafter(on, method))


def unpacked(pair: dict[str, Any], num_slots: int, width: int) -> np.ndarray[Any, Any]:
    steps = np.frombuffer(base64.b64decode(pair["data"]), "<i2")
    return steps.reshape(num_slots, width, width) * pair["step"]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
def test_the_answer_is_that_of_generate(method: str, params: SamplingParams) -> None:
    llm = engine(method)
    [output] = llm.generate([PROMPT], params)
    trace = json.loads(json.dumps(record_trace(llm, PROMPT, params), allow_nan=False))
    ids = trace["first"]["ids"] + [i for cycle in trace["cycles"] for i in cycle["committed"]]
    pieces = trace["first"]["pieces"] + [p for cycle in trace["cycles"] for p in cycle["pieces"]]
    assert tuple(ids) == output.token_ids
    assert "".join(pieces) == trace["text"] == output.text
    assert [c["start"] for c in trace["cycles"]] == [
        1 + sum(len(c["committed"]) for c in trace["cycles"][:i])
        for i in range(len(trace["cycles"]))
    ]
    counts = output.speculation
    assert sum(len(c["drafted"]) for c in trace["cycles"]) == counts.drafted
    assert sum(c["accepted"] for c in trace["cycles"]) == counts.accepted
    assert trace["speculation"]["mean_acceptance_length"] == counts.mean_acceptance_length
    named = {str(i) for c in trace["cycles"] for i in (*c["committed"], *c["drafted"], c["anchor"])}
    assert named <= set(trace["tokens"])


def test_a_watched_target_is_run_as_the_target_is() -> None:
    """A pass that is planned otherwise would be another pass than that of `generate`."""
    on = target()
    on.has_own_threads, on.computes_padding = True, False
    watch = LogitsWatch(on)
    for name in Target.__annotations__:
        assert getattr(watch, name) is getattr(on, name), name


@pytest.mark.parametrize("method", METHODS)
def test_greedy_cycles_stop_where_the_target_says_something_else(method: str) -> None:
    trace = record_trace(engine(method), PROMPT, GREEDY)
    assert trace["cycles"]
    for cycle in trace["cycles"][:-1]:  # the last one may be cut by the limit
        best = [row[0][0] for row in cycle["says"]]
        assert len(best) == len(cycle["drafted"]) + 1
        assert cycle["committed"] == best[: cycle["accepted"] + 1]
        assert cycle["drafted"][: cycle["accepted"]] == best[: cycle["accepted"]]
        if cycle["why"] == "rejected":
            assert cycle["drafted"][cycle["accepted"]] != best[cycle["accepted"]]
    assert trace["cycles"][-1]["ended"] == "length"


def test_p_is_the_targets_own_after_the_drafts_before_it() -> None:
    on = target()
    trace = record_trace(engine("dflash2", on), PROMPT, GREEDY)
    told = [*PROMPT, *trace["first"]["ids"]]
    for cycle in trace["cycles"][:4]:
        ids = torch.tensor([[*told, *cycle["drafted"]]])
        logits = on.forward(on.new_cache(1, 100), RowBatch(ids, (ids.shape[1],))).logits
        assert logits is not None
        p = torch.softmax(logits[0, len(told) - 1 :], -1)
        expected = [float(p[j, i]) for j, i in enumerate(cycle["drafted"])]
        assert cycle["p"] == pytest.approx(expected, rel=6e-3)
        for j, slot in enumerate(cycle["slots"]):
            assert slot["p"] == pytest.approx(p[j, slot["ids"]].tolist(), rel=6e-3)
        told += cycle["committed"]


@pytest.mark.parametrize("method", ["ngram", "dflash", "dflash2"])
def test_coins_decide_as_they_are_told(method: str) -> None:
    """u * q < p holds for every accepted draft and fails for the refused one."""
    decided = 0
    for seed in range(5):
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=seed)
        for cycle in record_trace(engine(method), PROMPT, params)["cycles"]:
            if not cycle["drafted"]:
                continue
            q = cycle["q"] or [1.0] * len(cycle["drafted"])
            assert (cycle["q"] is None) == (method == "ngram")
            for j in range(min(cycle["accepted"] + 1, len(q))):
                if j == cycle["accepted"] and cycle["why"] != "rejected":
                    continue
                left, right = cycle["u"][j] * q[j], cycle["p"][j]
                if abs(left - right) > 0.02 * right:  # the numbers have three digits
                    assert (left < right) == (j < cycle["accepted"])
                    decided += 1
    assert decided > 30


def test_the_path_is_the_best_walk_over_the_scores() -> None:
    cycles = record_trace(engine("dflash2"), PROMPT, GREEDY)["cycles"]
    for cycle in (cycle for cycle in cycles if cycle["drafted"]):
        width = len(cycle["slots"][0]["ids"])
        pair = unpacked(cycle["pair"], len(cycle["slots"]), width)
        before, path = 0, []
        for slot, extra in zip(cycle["slots"], pair, strict=True):
            scores = np.array(slot["unary"]) + extra[before]
            before = int(scores.argmax())
            path.append(slot["ids"][before])
        assert path == cycle["drafted"]


def test_without_a_selector_the_path_is_the_top() -> None:
    cycles = record_trace(engine("dflash"), PROMPT, GREEDY)["cycles"]
    for cycle in (cycle for cycle in cycles if cycle["drafted"]):
        assert cycle["pair"] is None
        assert [slot["ids"][0] for slot in cycle["slots"]] == cycle["drafted"]
        for slot in cycle["slots"]:
            assert slot["unary"] == sorted(slot["unary"], reverse=True)


def test_methods_without_candidates_have_none() -> None:
    for method in ("none", "ngram"):
        for cycle in record_trace(engine(method), PROMPT, GREEDY)["cycles"]:
            assert (cycle["slots"], cycle["pair"], cycle["q"]) == (None, None, None)
    assert {c["why"] for c in record_trace(engine("none"), PROMPT, GREEDY)["cycles"]} == {
        "nothing_drafted"
    }


def test_a_lookup_before_a_drafter_shows_the_candidates_of_what_was_drafted() -> None:
    block = engine("dflash2")
    assert block.drafter is not None
    both = LLM.from_parts(block.loaded, LookupFirst(NgramDrafter(7, min_n=2), block.drafter))
    cycles = record_trace(both, PROMPT, GREEDY)["cycles"]
    with_slots = [bool(cycle["slots"]) for cycle in cycles if cycle["drafted"]]
    assert {True, False} == set(with_slots)
    for cycle in cycles:
        if cycle["slots"]:
            assert all(
                token in slot["ids"]
                for token, slot in zip(cycle["drafted"], cycle["slots"], strict=True)
            )


def scripted(on: Target, right: int) -> LLM:
    oracle = make_llm(on).generate([PROMPT], SamplingParams(max_tokens=60))[0].token_ids
    drafter = ScriptedDrafter({tuple(PROMPT): oracle}, accept_first(right), 3, VOCAB)
    return make_llm(on, drafter)


def test_reasons_of_scripted_patterns() -> None:
    some = record_trace(scripted(target(), 1), PROMPT, SamplingParams(max_tokens=9))
    assert {c["why"] for c in some["cycles"][:-1]} == {"rejected"}
    whole = record_trace(scripted(target(), 3), PROMPT, SamplingParams(max_tokens=9))
    assert [c["why"] for c in whole["cycles"]] == ["all_accepted"] * 2
    assert [c["ended"] for c in whole["cycles"]] == [None, "length"]


def test_ends_are_told_apart() -> None:
    on = target()
    said = make_llm(on).generate([PROMPT], SamplingParams(max_tokens=20))[0].token_ids
    third = next(i for i in range(2, 20) if said[i] not in said[:i])
    by_token = SamplingParams(max_tokens=20, stop_token_ids=(said[third],))
    trace = record_trace(scripted(on, 3), PROMPT, by_token)
    assert trace["cycles"][-1]["ended"] == "end_token"
    assert trace["cycles"][-1]["committed"][-1] == said[third]
    by_text = SamplingParams(max_tokens=20, stop=f" {said[third]},")
    trace = record_trace(scripted(on, 3), PROMPT, by_text)
    assert trace["cycles"][-1]["ended"] == "stop_string"
    pieces = trace["first"]["pieces"] + [p for c in trace["cycles"] for p in c["pieces"]]
    assert "".join(pieces) == trace["text"]
    assert trace["text"].endswith(f" {said[third - 1]},")


def test_penalties_are_in_what_the_target_says() -> None:
    params = SamplingParams(max_tokens=30, repetition_penalty=1.8, logit_bias={3: 1.0})
    llm = engine("dflash2")
    trace = record_trace(llm, PROMPT, params)
    assert trace["text"] == llm.generate([PROMPT], params)[0].text
    for cycle in trace["cycles"][:-1]:
        assert cycle["committed"][-1] == cycle["says"][cycle["accepted"]][0][0]


def test_a_draft_that_is_taken_back_is_told() -> None:
    on = broken_row(151)
    oracle = make_llm(on).generate([PROMPT], SamplingParams(max_tokens=20))[0].token_ids
    drafter = ScriptedDrafter({tuple(PROMPT): oracle}, accept_first(2), 3, on.info.vocab_size)
    right = drafter._block
    drafter._block = lambda tokens: [*right(tokens)[:2], 151]  # type: ignore[method-assign]
    trace = record_trace(make_llm(on, drafter), PROMPT, SamplingParams(max_tokens=6))
    json.dumps(trace, allow_nan=False)
    first = trace["cycles"][0]
    assert (first["why"], first["committed"], first["p"]) == ("doubted", [], None)
    assert trace["cycles"][1]["why"] == "nothing_drafted"


def test_pieces_of_split_characters_are_empty_until_they_are_whole() -> None:
    codec: Any = FakeCodec([b"\xc3", b"\xa9", b"a", b"<end>"], special_ids=(3,))
    assert text_pieces(codec, [2, 0, 1, 2, 3], "a\u00e9a") == ["a", "", "\u00e9", "a", ""]
    assert text_pieces(codec, [2, 0], "a\ufffd") == ["a", "\ufffd"]
    assert text_pieces(codec, [2, 2, 2], "a") == ["a", "", ""]
    assert text_pieces(codec, [], "") == []


def test_packing_keeps_scores_to_half_a_step() -> None:
    pair = torch.randn(3, 4, 4) * 7
    packed = pack(pair)
    error = np.abs(unpacked(packed, 3, 4) - pair.numpy()).max()
    assert error <= packed["step"] * 0.501
    assert packed["step"] == pytest.approx(float(pair.abs().max()) / 32767)
    assert np.array_equal(unpacked(pack(torch.zeros(1, 2, 2)), 1, 2), np.zeros((1, 2, 2)))


def test_a_trace_needs_a_token() -> None:
    with pytest.raises(ConfigError, match="max_tokens is 0"):
        record_trace(engine("none"), PROMPT, SamplingParams(max_tokens=0))
