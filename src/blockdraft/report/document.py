"""A page that is one file: styles, scripts and data are inside, nothing is fetched."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

_ASSETS = files("blockdraft.report") / "assets"


THEME_BUTTON = (
    '<button id="theme" class="icon" aria-label="Light or dark" title="Light or dark">◐</button>'
)


def asset(name: str) -> str:
    """Text of a style sheet or script that comes with the package."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Text between tags and in quoted attributes."""
    return html.escape(str(text))


def document(
    *,
    title: str,
    body: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any] | None = None,
) -> str:
    """A whole HTML page.

    Args:
        styles, scripts: names of assets, in order; the base of all pages comes first.
        data: for the scripts, as the JSON of the element `data`.
    """
    style = "\n".join(map(asset, ("base.css", *styles)))
    script = "\n".join(map(asset, ("base.js", *scripts)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}
</style>
</head>
<body>
{body}
{"" if data is None else _json_element(data)}
<script>
"use strict";
{script}
</script>
</body>
</html>
"""


def _json_element(data: Mapping[str, Any]) -> str:
    """`<` is written as an escape: text of a model must not end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (
        f'<script type="application/json" id="data">{text.replace("<", chr(92) + "u003c")}</script>'
    )
