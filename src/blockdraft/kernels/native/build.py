"""Compile the C sources once with the system compiler, into a cache folder shared by processes."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from blockdraft.errors import UnsupportedError

try:  # pragma: no cover - depends on the system
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

SOURCE_DIR = Path(__file__).parent / "csrc"
COMMON_UNITS = (
    "pool",
    "workspace",
    "layer",
    "attention",
    "rows",
    "output",
    "pass",
    "walk",
    "accept",
    "streams",
    "api",
)
#: Sums keep their order: no -ffast-math, and no contraction that could differ between loops.
BASE_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-Wno-psabi",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
)
_AVX512_FLAGS = (
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vbmi",
    "-mavx512bf16",
    "-mfma",
    "-mprefer-vector-width=512",
)
#: Flags of each instruction set's own compilation of kernels.c.
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": _AVX512_FLAGS,
    "amx": (*_AVX512_FLAGS, "-mamx-tile", "-mamx-bf16"),
}
_SCRATCH = "building-"
#: Of a compiler that was stopped, not one that lacks an instruction set.
_STOPPED = ("Killed", "No space left", "memory exhausted", "out of memory")


class BuildError(UnsupportedError):
    """The native kernels cannot be built here; the message says why in one line."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler: the command with its first arguments, and what it says of its version."""

    command: tuple[str, ...]
    version: str


def cache_dir() -> Path:
    """Folder of the compiled kernels: `$BLOCKDRAFT_CACHE/native`."""
    root = os.environ.get("BLOCKDRAFT_CACHE") or Path.home() / ".cache" / "blockdraft"
    return Path(root) / "native"


def find_compiler() -> Compiler:
    """The compiler named by `CC` (arguments may follow), or else the first of cc, gcc and clang.

    Raises: BuildError if there is none that runs.
    """
    asked = os.environ.get("CC")
    for name, *arguments in [_words(asked)] if asked else [["cc"], ["gcc"], ["clang"]]:
        path = shutil.which(name)
        if path is None:
            continue
        command = (path, *arguments)
        try:
            answer = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, check=False
            )
        except OSError:  # a file for another processor, or no program at all
            continue
        if answer.returncode == 0:
            return Compiler(command, answer.stdout)
    tried = f"CC={asked}" if asked else "cc, gcc, clang"
    raise BuildError(
        f"native kernels need a C compiler and none was found (tried {tried}); install gcc or clang"
    )


def _words(asked: str) -> list[str]:
    """`CC` as a shell takes it apart; as it is where it cannot be."""
    with suppress(ValueError):
        return shlex.split(asked) or [asked]
    return [asked]


def isas_of_machine() -> tuple[str, ...]:
    """Instruction sets worth compiling on this kind of processor."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return tuple(ISA_FLAGS) if is_x86 else ("portable",)


def sources_digest(compiler: Compiler, extra_flags: Sequence[str] = ()) -> str:
    """Names a build: it changes with any source, flag or compiler."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIR.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    settings = (compiler.command, compiler.version, BASE_FLAGS, ISA_FLAGS, tuple(extra_flags))
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:24]


def build() -> Path:
    """The shared library, compiled if no earlier call on this machine did.

    Two processes at once: one compiles, the other waits. What an interrupted build leaves, the next
    one removes.

    Raises: BuildError, in one line, if it cannot be built.
    """
    if fcntl is None:
        raise BuildError("native kernels need a POSIX system")
    compiler = find_compiler()
    folder = cache_dir()
    library = folder / f"blockdraft-{sources_digest(compiler)}.so"
    if _is_whole(library):
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not _is_whole(library):
                _remove_scratch(folder)
                _compile_into(library, compiler)
    except OSError as error:
        raise BuildError(
            f"native kernels cannot be written to {folder} ({error.strerror}); "
            "set BLOCKDRAFT_CACHE to a folder that can be written"
        ) from error
    return library


def _is_whole(library: Path) -> bool:
    """Whether a library is there as it was built: a damaged one would crash, not fail."""
    try:
        return _digest_file(library).read_text() == _sha256(library)
    except OSError:
        return False


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def must_compile() -> bool:
    """Whether the next `build` will compile: there is a compiler, and no library of it yet."""
    try:
        return not _is_whole(cache_dir() / f"blockdraft-{sources_digest(find_compiler())}.so")
    except BuildError:
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _remove_scratch(folder: Path) -> None:
    """Call with the lock held: no other build is then at work."""
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def _compile_into(library: Path, compiler: Compiler) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=_SCRATCH) as name:
        scratch = Path(name)
        kernels = _compile_isas(compiler, scratch)
        defines = [f"-DBD_HAS_{isa.upper()}" for isa in kernels if isa != "portable"]
        units = [SOURCE_DIR / f"{unit}.c" for unit in COMMON_UNITS]
        output = scratch / library.name
        _run([*_start(compiler), *defines, "-shared", "-o", output, *units, *kernels.values()])
        _digest_file(library).write_text(_sha256(output))
        os.replace(output, library)


def _start(compiler: Compiler) -> list[str | Path]:
    return [*compiler.command, *BASE_FLAGS]


def _compile_isas(compiler: Compiler, scratch: Path) -> dict[str, Path]:
    """Object files by instruction set, all at once; a set that the compiler lacks is left out.

    Raises: BuildError if one was stopped: the library without it would stay, slower than need be.
    """
    running, plain = {}, {**os.environ, "LC_ALL": "C"}
    for isa in isas_of_machine():
        defines = [f"-DBD_TARGET={isa}", f"-DBD_USE_{isa.upper()}"]
        command = [*_start(compiler), *ISA_FLAGS[isa], *defines]
        command += ["-c", "-o", scratch / f"{isa}.o", SOURCE_DIR / "kernels.c"]
        running[isa] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=plain)
    results = {isa: process.communicate()[1] for isa, process in running.items()}
    for isa, process in running.items():
        stopped = process.returncode < 0 or any(word in results[isa] for word in _STOPPED)
        if process.returncode != 0 and (isa == "portable" or stopped):
            raise BuildError(_failure(compiler, results[isa]))
    return {
        isa: scratch / f"{isa}.o" for isa, process in running.items() if process.returncode == 0
    }


def _run(command: Sequence[str | Path]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BuildError(_failure(Compiler((str(command[0]),), ""), answer.stderr))


def _failure(compiler: Compiler, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if "error" in line] or stderr.splitlines()
    first = lines[0] if lines else "no message"
    return f"native kernels cannot be compiled by {compiler.command[0]} ({first})"
