"""JSON of files and servers, read so that whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises: ValueError if it is no JSON, is not UTF-8, or is nested too deep for any file of ours.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
