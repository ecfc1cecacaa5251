"""A headless browser, where the machine has one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _find() -> str | None:
    """A browser of the system; None leaves it to playwright's own."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Skips where there is none, unless BLOCKDRAFT_REQUIRE_BROWSER says that there must be."""
    from playwright.sync_api import Error, sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as play:
        try:
            found = play.chromium.launch(executable_path=_find(), args=arguments)
        except Error as error:
            if os.environ.get("BLOCKDRAFT_REQUIRE_BROWSER"):
                raise
            pytest.skip(f"no browser: `make browser` installs one ({str(error).splitlines()[0]})")
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens HTML as a file; the test fails if the page says anything on its console."""
    said: list[str] = []
    contexts = []

    def open_page(html: str, **context: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**{"offline": True, **context}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: _check_request(request.url, said))
        page.goto(path.as_uri(), timeout=120_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not said


def _check_request(url: str, said: list[str]) -> None:
    if not url.startswith(("file:", "data:")):
        said.append(f"the page asked for {url}")
