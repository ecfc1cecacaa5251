"""The command as its own process: what is imported, and how it ends when it is stopped."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.tiny_target import write_target

COMMAND = [sys.executable, "-c", "from blockdraft.cli.app import main; main()"]

HELP = """
import sys
from blockdraft.cli.app import main
for command in (["--version"], [], ["generate"], ["demo"], ["pull"], ["inspect"], ["init-drafter"]):
    sys.argv = ["blockdraft", *command, *([] if command == ["--version"] else ["--help"])]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, command
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.fixture
def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "BLOCKDRAFT_CACHE": str(cache)}


@pytest.fixture(scope="module")
def long_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its texts go on until they are stopped."""
    folder = tmp_path_factory.mktemp("long") / "tiny"
    return write_target(folder, max_position_embeddings=100_000)


def test_the_console_script_is_main() -> None:
    [script] = entry_points(group="console_scripts", name="blockdraft")
    assert script.value == "blockdraft.cli.app:main"


def test_help_waits_for_no_large_package() -> None:
    ran = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "tokenizers", "huggingface_hub"}


def test_the_version_is_one_line(cli: Cli) -> None:
    python = ".".join(map(str, sys.version_info[:3]))
    line = f"blockdraft {version('blockdraft')}, python {python}, torch {version('torch')}\n"
    for more in ((), ("generate", "hello")):
        ran = cli("--version", *more)
        assert (ran.code, ran.out, ran.err) == (0, line, "")


def test_ctrl_c_ends_a_long_text(long_target: Path, environment: dict[str, str]) -> None:
    options = ["--target", str(long_target), "--dtype", "float32", "--max-tokens", "90000"]
    with subprocess.Popen(
        [*COMMAND, "generate", "hello", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        # A shell may start its background jobs deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first
    assert out.endswith(b"\n")
    assert err.decode().splitlines()[1:] == ["interrupted"]


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_left_is_no_traceback(
    target_folder: Path, environment: dict[str, str], options: list[str]
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    more = ["--target", str(target_folder), "--dtype", "float32", "--max-tokens", "8"]
    try:
        ran = subprocess.run(
            [*COMMAND, "generate", "hello", *more, *options],
            stdout=write_end,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[1:] == []


def test_an_encoding_that_cannot_hold_the_text_is_named(
    generate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    ran = generate("hello", "--max-tokens", 30)
    assert ran.code == 1
    assert ran.error.startswith("error: the output is ascii, which cannot write '\\")
    assert ran.error.endswith("; set PYTHONIOENCODING=utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(generate: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # Closing tries to write once more.
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        ran = generate("hello", "--max-tokens", 8)
    assert (ran.code, ran.error) == (1, "error: No space left on device")


def test_ctrl_c_while_the_prompt_is_awaited(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("blockdraft.cli.options.read_prompt", interrupted)
    ran = cli("generate", "-")
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")
