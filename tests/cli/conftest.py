"""The command line in this process: one tiny target, one cache, nothing of the user's own."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from blockdraft.cli.app import main
from tests.cli.tiny_target import write_target


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says what is wrong; fails the test if there is more or less."""
        lines = self.err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        assert "Traceback" not in self.err
        return lines[-1]


Cli = Callable[..., Ran]


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(folder))
    return folder


@pytest.fixture
def cli(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `blockdraft ARGS` through `main`, as the console script does."""

    def run(*args: object, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["blockdraft", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer puts its own in
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Ran(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def generate(cli: Cli, target_folder: Path) -> Cli:
    """`blockdraft generate` on the tiny target in float32."""

    def run(*args: object, **more: bytes) -> Ran:
        return cli("generate", "--target", target_folder, "--dtype", "float32", *args, **more)

    return run


@pytest.fixture
def drafter_folder(cli: Cli, target_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    ran = cli("init-drafter", target_folder, "-o", folder, "--selector-rank", 8)
    assert ran.code == 0, ran.err
    return folder
