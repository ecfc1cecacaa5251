"""`--weights int8`: another target, named in the provenance; anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockdraft.kernels import native
from tests.cli.conftest import Cli

ARGS = ("hello hello", "--max-tokens", 6, "--dtype", "bfloat16", "--json")


@pytest.mark.skipif(not native.available(), reason=f"native kernels: {native.why_unavailable()}")
def test_int8_is_the_target_and_is_told(generate: Cli) -> None:
    own, int8 = (
        json.loads(generate(*ARGS, *more).out)["provenance"] for more in ((), ("--weights", "int8"))
    )
    assert (own["weights"], int8["weights"]) == ("bfloat16", "int8")
    assert own["target"]["fingerprint"] != int8["target"]["fingerprint"]


def test_unknown_weights_are_refused(generate: Cli) -> None:
    ran = generate(*ARGS, "--weights", "int3")
    assert ran.code == 2
    assert "'int3' are not offered; choose int8" in ran.error


@pytest.mark.parametrize(
    "command",
    [
        ("demo",),
        ("trace", "hello", "-o", "page.html"),
        ("evaluate", "--tasks", "offline", "--methods", "plain", "--num-prompts", 1, "--out", "r"),
        ("check-lossless", "--quick", "--drafter", "ngram"),
        ("plan", "--rows", "1,2", "--contexts", "8", "--concurrency", "1"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_runs_the_target_takes_them(
    cli: Cli, target_folder: Path, command: tuple[object, ...]
) -> None:
    ran = cli(*command, "--target", target_folder, "--weights", "int3")
    assert ran.code == 2
    assert "'int3' are not offered; choose int8" in ran.error


@pytest.mark.skipif(not native.available(), reason=f"native kernels: {native.why_unavailable()}")
def test_int8_is_proven_in_bfloat16_alone(cli: Cli, target_folder: Path) -> None:
    sizes = ("--num-prompts", 2, "--max-tokens", 8, "--contexts", 1, "--samples", 200, "--depth", 2)
    ran = cli(
        "check-lossless", "--target", target_folder, "--drafter", "ngram", "--weights", "int8",
        *sizes,
    )  # fmt: skip
    assert "greedy, bfloat16 (native" in ran.out
    assert "float32" not in ran.out


def test_without_a_compiler_int8_is_an_error_that_says_so(
    generate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "why_unavailable", lambda: "no compiler here")
    ran = generate(*ARGS, "--weights", "int8")
    assert ran.code == 2
    assert "weights 'int8' need the native kernels: no compiler here" in ran.error
