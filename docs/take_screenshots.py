"""Take the pictures of the guides to the pages, in a headless browser.

python docs/take_screenshots.py                                   # of made-up figures
python docs/take_screenshots.py --report R.json --trace T.json    # of your own
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from blockdraft.report.load import Run, load_runs, load_trace  # noqa: E402
from blockdraft.report.page import report_page  # noqa: E402
from blockdraft.report.trace_page import trace_page  # noqa: E402
from tests.report.results import made_up_result  # noqa: E402
from tests.report.traces import made_up_trace  # noqa: E402

#: How much of a page is shown, in pixels.
HEIGHTS = {"report": 1010, "trace": 1440}

PICTURES = ROOT / "docs" / "guides" / "pictures"


def pages(report: Path | None, trace: Path | None) -> dict[str, str]:
    """The HTML of each picture."""
    made_up: dict[str, Any] = json.loads(json.dumps(made_up_result(concurrencies=(1, 4))))
    run = Run("made up", made_up["rows"], made_up["settings"], made_up["provenance"])
    return {
        "report": report_page([run] if report is None else load_runs([report])),
        "trace": trace_page(made_up_trace(60) if trace is None else load_trace(trace)),
    }


def take(html: dict[str, str]) -> None:
    """Write one PNG a page."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for name, text in html.items():
            path = Path(folder) / f"{name}.html"
            path.write_text(text, encoding="utf-8")
            page = browser.new_page(viewport={"width": 1180, "height": HEIGHTS[name]})
            page.goto(path.as_uri())
            if name == "trace":
                page.select_option("#jump", "missed")
            page.screenshot(path=PICTURES / f"{name}.png")
            print(f"wrote {PICTURES.relative_to(ROOT)}/{name}.png")
        browser.close()


def main() -> None:
    """Read the options and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="result of `evaluate --out`")
    parser.add_argument("--trace", type=Path, help="trace of `trace --json`")
    given = parser.parse_args()
    take(pages(given.report, given.trace))


if __name__ == "__main__":
    main()
