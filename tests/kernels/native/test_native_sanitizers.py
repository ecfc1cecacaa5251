"""The C code under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from blockdraft.kernels import native
from blockdraft.kernels.native import build

_CHECK = Path(__file__).parent / "check.c"
_FLAGS = ("-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", *build.BASE_FLAGS[3:])

pytestmark = pytest.mark.skipif(not native.available(), reason=str(native.why_unavailable()))


def compile_program(folder: Path, sanitizers: str) -> Path:
    """The C test program with all kernels; skips if the compiler lacks the sanitizers."""
    start = [*build.find_compiler().command, *_FLAGS, f"-fsanitize={sanitizers}"]
    start += ["-fno-sanitize-recover=all", f"-I{build.SOURCE_DIR}"]
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    answer = subprocess.run(
        [*start, probe, "-o", folder / "probe"], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        pytest.skip(f"the compiler has no -fsanitize={sanitizers}")
    running = {}
    for isa in native.usable_isas():
        defines = [f"-DBD_TARGET={isa}", f"-DBD_USE_{isa.upper()}"]
        command = [*start, *build.ISA_FLAGS[isa], *defines, "-c"]
        command += [build.SOURCE_DIR / "kernels.c", "-o", folder / f"{isa}.o"]
        running[folder / f"{isa}.o"] = subprocess.Popen(command)
    assert [process.wait() for process in running.values()] == [0] * len(running)
    has = [f"-DBD_HAS_{isa.upper()}" for isa in native.usable_isas()]
    units = [build.SOURCE_DIR / f"{unit}.c" for unit in build.COMMON_UNITS]
    program = folder / "check"
    subprocess.run([*start, *has, _CHECK, *units, *running, "-o", program], check=True)
    return program


def run_program(command: list[str | Path]) -> str:
    environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    return answer.stdout


@pytest.mark.slow
def test_no_access_outside_a_buffer_and_nothing_undefined(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "address,undefined")
    assert run_program([program]).count("ok") == len(native.usable_isas())


@pytest.mark.slow
def test_no_data_race(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "thread")
    # ThreadSanitizer of older compilers cannot live with random addresses of newer kernels.
    start = ["setarch", "-R"] if shutil.which("setarch") else []
    assert run_program([*start, program]).count("ok") == len(native.usable_isas())
