"""Measuring with tiny models: what is timed is what decoding does, and nothing is left behind."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
import torch

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.evaluation.plan.ceilings import Ceilings
from blockdraft.evaluation.plan.lines import lines
from blockdraft.evaluation.plan.measure import Bench, alternate, other_ms
from blockdraft.evaluation.plan.model import EvenAcceptance, MeasuredAcceptance
from blockdraft.evaluation.plan.plan import Plan, PlanSettings, make_plan
from blockdraft.evaluation.plan.plot import plan_svg
from tests.fakes.codec import make_llm
from tests.fakes.drafting import fresh_drafts, random_drafter
from tests.fakes.models import tiny_target

IDS = [3, 9, 27, 81, 5, 15, 45, 135, 7, 21, 63]
SMALL = PlanSettings(rows=(1, 4), contexts=(12, 30), concurrency=(1, 2), repeats=1)


def test_medians_of_turns_without_the_first() -> None:
    waits = iter([0.05, 0.001, 0.03, 0.002])
    order: list[str] = []

    def slow() -> None:
        order.append("a")
        time.sleep(next(waits))

    found = alternate({"a": slow, "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 4
    assert 1.0 < found["a"] < 25.0  # the median of 1, 30 and 2 ms
    assert found["b"] < found["a"]


def test_a_verify_pass_leaves_the_cache_as_it_was() -> None:
    bench = Bench(tiny_target(), None, IDS, 2, 8)
    lens = list(bench.cache.lens)
    for num_rows in (1, 8):
        bench.verify(num_rows)()
    assert bench.cache.lens == lens == [len(IDS) - 1] * 2
    with pytest.raises(ValueError, match="no drafter"):
        bench.draft()


def test_the_timed_draft_is_the_one_that_decoding_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target()
    drafter = random_drafter(target)
    seen: list[Any] = []
    select = drafter.select
    monkeypatch.setattr(
        drafter, "select", lambda *given: seen.append(select(*given)) or seen[-1], raising=True
    )
    Bench(target, drafter, IDS, 2, 8).draft()()
    drafts = fresh_drafts(target, drafter, IDS)
    assert seen[0].ids.tolist() == [drafts, drafts]


def test_the_rest_of_a_cycle_is_a_small_time() -> None:
    assert 0.0 < other_ms(make_llm(tiny_target()), IDS, 2, num_tokens=4) < 1e3


def plan(drafter: bool = True) -> Plan:
    target = tiny_target()
    llm = make_llm(target, random_drafter(target) if drafter else None)
    return make_plan(llm, IDS, [EvenAcceptance(0.9), EvenAcceptance(0.1)], SMALL)


def test_a_plan_has_every_cost_and_gain() -> None:
    found = plan()
    data = found.as_dict()
    assert data["rows"] == (1, 4)
    assert len(data["verify_ms"]) == len(data["draft_ms"]) == 2
    assert data["draft_ms"][0] is None
    assert data["draft_ms"][1] > 0.0
    assert data["bandwidth_gb_s"] > 0.1
    assert [curve["context"] for curve in data["curves"]] == [12, 30]
    assert [(c.concurrency, c.num_draft_tokens) for c in found.costs] == [(1, 3), (2, 3)]
    assert len(found.gains) == 4
    assert found.num_draft_tokens is not None


def test_the_lines_name_costs_break_even_and_the_best() -> None:
    text = "\n".join(lines(plan()))
    for part in ("GB/s", "pass over n rows", "tau above which drafting pays", "acceptance 0.90"):
        assert part in text
    free = "\n".join(lines(plan(drafter=False)))
    assert "if drafting were free" in free


def test_a_block_that_costs_more_than_it_can_give_never_pays() -> None:
    found = plan(drafter=False)
    dear = [vars(cost) | {"verify_ms": 1e6} for cost in found.costs]
    worse = Plan(**{**vars(found), "costs": tuple(type(found.costs[0])(**c) for c in dear)})
    assert "never" in "\n".join(lines(worse))


def test_the_plot_is_an_image_with_a_line_for_each_series() -> None:
    root = ElementTree.fromstring(plan_svg(plan()))
    names = [child.tag.split("}")[1] for child in root]
    assert names.count("polyline") == 4  # two contexts, two loads
    texts = " ".join(child.text or "" for child in root.iter())
    assert "12 cached tokens" in texts
    assert "2 at once" in texts


def test_ceilings_by_hand() -> None:
    top = Ceilings(
        bandwidth_gb_s=50.0, gflop_s=400.0, weight_bytes=200_000_000, num_parameters=10**8
    )
    assert top.read_ms == pytest.approx(4.0)
    assert top.compute_ms(8) == pytest.approx(4.0)
    assert top.balance_rows == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": (2, 4)}, r"give 1 \(plain decoding\)"),
        ({"rows": (1,)}, "give 1"),
        ({"concurrency": (0,)}, "different numbers from 1 on"),
        ({"contexts": (1,)}, "different numbers from 2 on"),
        ({"repeats": 0}, "repeats is 0"),
    ],
)
def test_settings_that_measure_nothing_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlanSettings(**changes)


def test_a_context_that_does_not_fit_is_refused() -> None:
    settings = PlanSettings(rows=(1, 4), contexts=(300,), concurrency=(1,))
    with pytest.raises(CapacityError, match="give smaller --contexts"):
        make_plan(make_llm(tiny_target()), IDS, [], settings)


def test_rows_that_are_no_cycle_of_the_drafter_are_refused() -> None:
    settings = PlanSettings(rows=(1, 8, 16), contexts=(12,), concurrency=(1,))
    llm = make_llm(tiny_target(), NgramDrafter(num_draft_tokens=3))
    message = r"rows is \[1, 8, 16\], and ngram drafts up to 3 tokens: .*; give some of 2 to 4, or"
    with pytest.raises(ConfigError, match=message):
        make_plan(llm, IDS, [EvenAcceptance(0.5)], settings)


def test_acceptances_of_shorter_blocks_than_the_rows_are_said_or_refused() -> None:
    short, notes = MeasuredAcceptance("short", (0.5, 0.2)), list[str]()
    llm = make_llm(tiny_target())
    with pytest.raises(ConfigError, match=r"fewer than 3 drafted tokens.*: short\. Give smaller"):
        make_plan(llm, IDS, [short], SMALL)
    found = make_plan(llm, IDS, [short, EvenAcceptance(0.5)], SMALL, notes.append)
    assert {gain.acceptance for gain in found.gains} == {"acceptance 0.50"}
    assert any(note.endswith("at these rows: short") for note in notes)


def test_torch_threads_are_left_alone() -> None:
    before = torch.get_num_threads()
    plan(drafter=False)
    assert torch.get_num_threads() == before
