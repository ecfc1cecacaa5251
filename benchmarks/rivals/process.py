"""The driver's side: start a worker in its own environment, and ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.rivals.worker import ANSWERS

ROOT = Path(__file__).resolve().parents[2]
#: Threads of a runtime may spin for a moment after work; nobody else is timed meanwhile.
REST_S = 0.1


#: Workers that run our code: what importing it sets for PyTorch is theirs alone.
_OURS = ("ours", "train_ours")


class Rival:
    """A worker process. `about` is what it said of itself when it was ready.

    Args:
        module: worker module under `benchmarks.rivals`.
        arguments: its command line.
        python: interpreter of its environment.
        threads: of its OpenMP runtime.

    Raises: RuntimeError with the worker's message if it cannot start, or if an operation fails.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: str | Path = sys.executable,
        threads: int = 2,
    ) -> None:
        self.name = module
        count = str(threads)
        environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        if module not in _OURS:  # they run as they do where we are not
            environment["THP_MEM_ALLOC_ENABLE"] = "0"
        receive, send = os.pipe()
        self._process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.rivals.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            text=True,
            cwd=ROOT,
            pass_fds=(send,),
            env={**environment, ANSWERS: str(send), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        )
        os.close(send)
        self._answers = os.fdopen(receive)
        self.about = self._read()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Run one operation to its end."""
        assert self._process.stdin is not None
        time.sleep(REST_S)
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"worker {self.name} ended ({self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"worker {self.name}: {answer['error']}")
        return answer

    def __enter__(self) -> Rival:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._answers.close()
