"""What stands in the trace page before any script runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from blockdraft.report.trace_page import trace_page
from tests.report.traces import made_up_trace


class _Spans(HTMLParser):
    """Text of each cycle, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "span" and "cy" in (given.get("class") or "").split():
            self._open = given.get("data-c") or "first"
            self.texts[self._open] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open] += data


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return made_up_trace(30)


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_each_cycle_has_its_own_text(trace: dict[str, Any]) -> None:
    spans = _Spans()
    spans.feed(trace_page(trace))
    expected = {str(i): "".join(cycle["pieces"]) for i, cycle in enumerate(trace["cycles"])}
    assert spans.texts == {"first": trace["first"]["pieces"][0], **expected}


def test_text_of_a_model_is_text_and_no_markup(trace: dict[str, Any]) -> None:
    bad = "</script><script>alert(1)</script><!--"
    evil = {**trace, "prompt": bad, "tokens": {**trace["tokens"], "0": bad}}
    evil["first"] = {"ids": [0], "pieces": [bad]}
    html = trace_page(evil)
    assert bad not in html
    assert data_of(html)["tokens"]["0"] == bad
    assert html.count("<script") == 2


def test_the_data_are_those_of_the_trace(trace: dict[str, Any]) -> None:
    data = data_of(trace_page(trace))
    for mine, theirs in zip(data["cycles"], trace["cycles"], strict=True):
        assert mine == {key: value for key, value in theirs.items() if key != "pieces"}


def test_nothing_is_fetched(trace: dict[str, Any]) -> None:
    html = trace_page(trace)
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    assert "default-src 'none'" in html
    assert not re.findall(r"url\(|@import|fetch\(", html)


def test_an_answer_of_one_token_has_a_page(trace: dict[str, Any]) -> None:
    none = {"cycles": 0, "drafted": 0, "accepted": 0, "committed": 0}
    short = {**trace, "cycles": [], "speculation": {**none, "mean_acceptance_length": None}}
    html = trace_page(short)
    assert "no cycle ran" in html
    assert 'id="next"' not in html


def test_the_end_token_is_named(trace: dict[str, Any]) -> None:
    cycle = {**trace["cycles"][-1], "ended": "end_token"}
    cycle["pieces"] = [*cycle["pieces"][:-1], ""]
    ended = {**trace, "cycles": [*trace["cycles"][:-1], cycle]}
    name = trace["tokens"][str(cycle["committed"][-1])].strip()
    assert f'<s class="end" data-name="{name}"></s>' in trace_page(ended)
