"""The report page in a real browser: every control, light, dark and on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.report.load import load_runs
from blockdraft.report.page import report_page
from tests.report.results import METHODS, TASKS, made_up_result

Open = Callable[..., Any]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def html_of(folder: Path, **results: dict[str, Any]) -> str:
    paths = []
    for name, result in results.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(result))
    return report_page(load_runs(paths))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return html_of(tmp_path_factory.mktemp("results"), R=made_up_result())


def captions(page: Any) -> list[str]:
    found: list[str] = page.locator("figure:visible figcaption").all_inner_texts()
    return found


def test_choices_change_the_charts(opened: Open, html: str) -> None:
    page = opened(html)
    assert "Speed-up over plain decoding (greedy, one prompt at a time)" in captions(page)
    page.select_option("#temperature", "1")
    page.select_option("#concurrency", "16")
    shown = captions(page)
    assert "Speed-up over plain decoding (temperature 1, 16 prompts at once)" in shown
    assert not [caption for caption in shown if "greedy" in caption]
    by_task = [f"{task}: {what}" for task in TASKS for what in ("tokens/s", "speed-up")]
    assert set(by_task) <= set(shown)


def test_methods_are_hidden_and_shown(opened: Open, html: str) -> None:
    page = opened(html)
    marks = page.locator("figure:visible .k3:visible")
    before = marks.count()
    chip = page.get_by_role("button", name="dflash2")
    chip.click()
    assert before > 20
    assert marks.count() == 0
    assert chip.get_attribute("aria-pressed") == "false"
    assert page.locator("tr.k3:visible").count() == 0
    chip.click()
    assert marks.count() == before


def test_tables_follow_the_choice_or_show_all(opened: Open, html: str) -> None:
    page = opened(html)
    rows = page.locator("section.table").first.locator("tbody tr:visible")
    assert rows.count() == len(TASKS) * len(METHODS)
    page.check("#all")
    assert rows.count() == len(TASKS) * len(METHODS) * 6


def test_heads_sort_by_number_and_by_word(opened: Open, html: str) -> None:
    page = opened(html)
    table = page.locator("section.table").first
    column = table.locator("th").all_inner_texts().index("τ") + 1
    cells = table.locator(f"tbody tr:visible td:nth-child({column})")
    head = table.locator("thead").get_by_role("button", name="τ", exact=True)
    head.click()
    up = [float(text) for text in cells.all_inner_texts()]
    assert up == sorted(up)
    head.click()
    assert [float(text) for text in cells.all_inner_texts()] == up[::-1]
    table.get_by_role("button", name="method").click()
    names = table.locator("tbody tr:visible td:nth-child(2)").all_inner_texts()
    assert names == sorted(names)


def test_a_copy_is_tsv_with_full_precision(opened: Open, html: str) -> None:
    page = opened(html, permissions=["clipboard-read", "clipboard-write"])
    section = page.locator("section.table", has_text="tokens/s").first
    section.get_by_role("button", name="Copy as TSV").click()
    section.get_by_role("button", name="Copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    head, first = lines[0].split("\t"), lines[1].split("\t")
    row = made_up_result()["rows"][0]
    assert len(lines) == 1 + len(TASKS) * len(METHODS)
    assert head[:4] == ["task", "method", "at once", "T"]
    assert float(first[head.index("tokens/s")]) == row["tokens_per_s"]


def test_a_mark_tells_its_numbers(opened: Open, html: str) -> None:
    page = opened(html)
    page.locator("figure:visible rect.bar").first.hover()
    assert page.is_visible("#tip")
    assert page.inner_text("#tip").startswith("gsm8k, ngram: ")
    assert "95 % interval" in page.inner_text("#tip")


def test_the_theme_follows_the_system_and_the_button(opened: Open, html: str) -> None:
    page = opened(html, color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_phone_shows_all_of_it_in_its_width(opened: Open, html: str) -> None:
    page = opened(html, **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("summary").first.tap()
    assert page.get_by_text("provenance", exact=False).last.is_visible()


def test_several_runs_stand_side_by_side(opened: Open, tmp_path: Path) -> None:
    runs = {"old": made_up_result(), "new": made_up_result(shift=1.1)}
    page = opened(html_of(tmp_path, **runs))
    table = page.locator("section.table").first
    heads = table.locator("th").all_inner_texts()
    assert heads[-1] == "tokens/s new / old"
    ratios = table.locator("tbody tr:visible td:last-child").all_inner_texts()
    assert set(ratios) == {"1.00", "1.10"}
    labels = page.locator(".chip").all_inner_texts()
    assert labels == [f"{method} · {run}" for run in runs for method in METHODS]


def test_labels_stay_inside_their_drawings(opened: Open, html: str) -> None:
    page = opened(html)
    outside = page.evaluate(
        """[...document.querySelectorAll("figure:not([hidden]) svg")].flatMap(svg => {
             const box = svg.viewBox.baseVal;
             return [...svg.querySelectorAll("text")].filter(text => {
               const own = text.getBBox();
               return own.x < -1 || own.x + own.width > box.width + 1;
             }).map(text => text.textContent);
           })"""
    )
    assert outside == []
