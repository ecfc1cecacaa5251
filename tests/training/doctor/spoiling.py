"""Small changes to files on disk, as mistakes leave them behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.training.doctor.findings import Finding, Report

Change = Callable[[dict[str, Tensor]], None]


def respoil(file: Path, change: Change, drop: tuple[str, ...] = (), **metadata: str) -> None:
    """Rewrite a safetensors file with its tensors changed, and notes dropped or added."""
    with safe_open(file, "pt") as found:
        notes = dict(found.metadata() or {})
        tensors = {name: found.get_tensor(name).clone() for name in found.keys()}  # noqa: SIM118
    change(tensors)
    notes = {name: text for name, text in notes.items() if name not in drop} | metadata
    save_file(tensors, file, notes)


def forget_config(folder: Path) -> None:
    """As a checkpoint of another program: its weights do not record the config."""
    respoil(folder / "model.safetensors", lambda _: None, drop=("blockdraft_config",))


def relabel(answers: Path, **changes: Any) -> None:
    """Change what the index of the shards says."""
    file = answers / "shards" / "index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def restate(answers: Path, change: Callable[[Tensor], Tensor]) -> None:
    """Change the recorded states of every shard."""
    for file in (answers / "shards").glob("*.safetensors"):
        respoil(file, lambda tensors: tensors.update(features=change(tensors["features"])))


def found(report: Report, check: str, level: str = "fault") -> Finding:
    """The first finding of a look at a level; fails with the whole report if there is none."""
    for each in report.findings:
        if (each.check, each.level) == (check, level):
            assert each.cure
            return each
    raise AssertionError("\n".join(map(str, report.findings)))
