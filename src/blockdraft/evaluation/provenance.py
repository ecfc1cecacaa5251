"""Where a result comes from: code, versions, machine, models, seed. No result goes without it."""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("blockdraft", "torch", "transformers", "tokenizers", "numpy")

#: Endings of files that decide what is computed.
_SOURCES = (".py", ".c", ".h")


def provenance(models: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Everything needed to run a result again.

    Args:
        models: the engine's description (target, drafter, dtype, kernels).
        more: what else defines the run: seed, settings.
    """
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        **models,
        **more,
    }


@functools.cache
def commit() -> str:
    """The git commit of the code, `-dirty` if files differ from it; else the package version."""
    folder = Path(__file__).resolve().parent
    head = _git(folder, "rev-parse", "HEAD")
    inside = _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
    if head is None or inside is None:
        return f"release-{versions()['blockdraft']}"
    return head + ("-dirty" if _git(folder, "status", "--porcelain", "-uno") else "")


@functools.cache
def code_digest() -> str:
    """A hash of this package's sources: it tells what a commit with changed files does not."""
    folder, found = Path(__file__).resolve().parents[1], hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SOURCES:
            found.update(f"{path.relative_to(folder)}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def versions() -> dict[str, str]:
    """Of Python, this package, and those that compute for it."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@functools.cache
def machine() -> dict[str, Any]:
    """Processor, cores, memory and the instructions that matter."""
    flags = torch.cpu.get_capabilities()
    wanted = ("avx2", "avx512_f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "instructions": [name for name in wanted if flags.get(name)],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
