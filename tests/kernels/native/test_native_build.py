"""Building and choosing: no compiler, broken caches, forced instruction sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockdraft.errors import ConfigError
from blockdraft.kernels import native
from blockdraft.kernels.native import build, library
from blockdraft.kernels.native.build import BuildError

_HAS_COMPILER = native.available()
needs_compiler = pytest.mark.skipif(not _HAS_COMPILER, reason=str(native.why_unavailable()))


def stub_compiler(folder: Path, body: str) -> Path:
    path = folder / "fakecc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_no_compiler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"none was found \(tried cc, gcc, clang\); install gcc"):
        build.build()


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="tried CC=no-such-compiler"):
        build.build()


def test_a_compiler_that_is_no_program_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cc").write_bytes(b"\x7fnot a program")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with pytest.raises(BuildError, match="none was found"):
        build.build()


def test_a_compiler_may_have_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stub = stub_compiler(tmp_path, 'echo "$@"')
    monkeypatch.setenv("CC", f"{stub} -m64 '-DNAME=a b'")
    found = build.find_compiler()
    assert found.command == (str(stub), "-m64", "-DNAME=a b")
    assert found.version == "-m64 -DNAME=a b --version\n"


def test_nothing_is_to_be_compiled_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", str(stub_compiler(tmp_path, 'test "$1" = --version')))
    assert build.must_compile()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not build.must_compile()


def test_a_stopped_compiler_is_no_compiler_without_the_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a moment without memory would leave the machine on slower kernels for good."""
    body = (
        'case "$*" in *-mavx2*) echo "fatal error: Killed signal terminated cc1" >&2; exit 1; esac'
    )
    monkeypatch.setenv("CC", str(stub_compiler(tmp_path, body)))
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "isas_of_machine", lambda: ("portable", "avx2"))
    with pytest.raises(BuildError, match="Killed signal"):
        build.build()
    assert not list((tmp_path / "cache" / "native").glob("*.so"))


def test_what_a_killed_build_left_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = tmp_path / "native" / "building-1"
    left.mkdir(parents=True)
    (left / "amx.o").write_text("half")
    monkeypatch.setenv("CC", str(stub_compiler(tmp_path, 'test "$1" = --version')))
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    with pytest.raises(BuildError):
        build.build()
    assert not left.exists()


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = 'test "$1" = --version && echo v1 && exit 0\necho "x.c:1: error: boom" >&2\nexit 1'
    monkeypatch.setenv("CC", str(stub_compiler(tmp_path, body)))
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BuildError, match=r"cannot be compiled by .*fakecc \(x.c:1: error: boom\)"):
        build.build()
    left = list((tmp_path / "cache" / "native").iterdir())
    assert [path.name for path in left] == ["lock"], "a failed build leaves nothing"


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "echo v1"
    monkeypatch.setenv("CC", str(stub_compiler(tmp_path, body)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="set BLOCKDRAFT_CACHE to a folder"):
        build.build()


@needs_compiler
def test_the_name_of_a_build_follows_the_compiler() -> None:
    compiler = build.find_compiler()
    other = build.Compiler(compiler.command, compiler.version + "!")
    assert build.sources_digest(compiler) != build.sources_digest(other)
    assert build.sources_digest(compiler) == build.sources_digest(compiler)


@needs_compiler
@pytest.mark.slow
def test_two_processes_build_once(tmp_path: Path) -> None:
    environment = {**os.environ, "BLOCKDRAFT_CACHE": str(tmp_path)}
    script = "from blockdraft.kernels.native.build import build; print(build().stat().st_ino)"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    inodes = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert inodes[0] == inodes[1], "the second process found what the first one built"
    assert len(list((tmp_path / "native").glob("*.so"))) == 1


@needs_compiler
def test_forced_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_NATIVE_ISA", "portable")
    assert native.choose_isa() == "portable"
    monkeypatch.setenv("BLOCKDRAFT_NATIVE_ISA", "mmx")
    with pytest.raises(ConfigError, match=r"BLOCKDRAFT_NATIVE_ISA is 'mmx'.*portable"):
        native.choose_isa()
    assert not native.available()
    assert "mmx" in str(native.why_unavailable())
    monkeypatch.delenv("BLOCKDRAFT_NATIVE_ISA")
    assert native.choose_isa() == native.usable_isas()[-1]


def test_a_machine_that_is_no_x86_gets_the_portable_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert build.isas_of_machine() == ("portable",)


@needs_compiler
def test_threads_are_bounded() -> None:
    with pytest.raises(ConfigError, match="num_threads is 0; it must be 1 to 256"):
        native.set_num_threads(0)
    assert 1 <= library.default_num_threads() <= (os.cpu_count() or 1)


@needs_compiler
def test_workspace_is_told() -> None:
    assert native.workspace_bytes() >= 0


@needs_compiler
def test_a_forked_child_has_its_own_threads() -> None:
    """The pool's threads do not survive a fork; the child starts its own."""
    script = """
import os, torch
from blockdraft.kernels.native import NativeLinear, set_num_threads
set_num_threads(3)
layer = NativeLinear(torch.ones(400, 64)); x = torch.ones(4, 64).bfloat16()
first = layer(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(layer(x), first) else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(layer(x), first)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
