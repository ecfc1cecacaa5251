"""The worker's side: one JSON object a line in, one out. Standard library only, for any venv.

A worker that waits is blocked in a read: it takes no processor time from the one being measured.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Names the file descriptor of the answers: stdout belongs to libraries that print.
ANSWERS = "BLOCKDRAFT_RIVAL_ANSWERS"
Operation = Callable[..., dict[str, Any]]


def serve(operations: Mapping[str, Operation], about: Mapping[str, Any]) -> None:
    """Say `about`, then answer `{"op": name, ..arguments}` until the input ends."""
    answers = os.fdopen(int(os.environ[ANSWERS]), "w")
    _answer(answers, dict(about))
    for line in sys.stdin:
        arguments = json.loads(line)
        name = arguments.pop("op")
        if name not in operations:
            _answer(answers, {"error": f"no operation {name!r}; there are {sorted(operations)}"})
            continue
        try:
            _answer(answers, operations[name](**arguments))
        except Exception as error:  # told to the driver, which stops with it
            _answer(answers, {"error": f"{type(error).__name__}: {error}"})


def _answer(file: Any, answer: dict[str, Any]) -> None:
    file.write(json.dumps(answer) + "\n")
    file.flush()


def median_ms(run: Callable[[], object], reset: Callable[[], object], repeats: int) -> float:
    """Median time of `run` in ms; `reset` comes after each, outside the clock."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
        reset()
    return statistics.median(times)
