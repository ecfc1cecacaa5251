"""`blockdraft doctor` through the door: lines, JSON, exit code, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def doctor(cli: Cli, target_folder: Path) -> Cli:
    """On the tiny target in float32, with a few short answers."""

    def run(*args: object, **more: bytes) -> object:
        size = ("--num", 2, "--max-tokens", 16, "--dtype", "float32")
        return cli("doctor", "--target", target_folder, *size, *args, **more)

    return run  # type: ignore[return-value]


def test_without_data_the_package_s_own_prompts_are_decoded(
    doctor: Cli, drafter_folder: Path
) -> None:
    ran = doctor("--drafter", drafter_folder)
    lines = ran.out.splitlines()
    assert ran.code == 1  # a fresh drafter drafts next to nothing
    assert lines[-1].endswith(("fault", "faults"))
    assert any(line.startswith("FAULT    acceptance") and "never trained" in line for line in lines)
    assert any(line.startswith("ok       hidden") for line in lines)
    assert all(line.startswith(("ok ", "warning ", "FAULT ", " " * 20)) for line in lines[:-1])


def test_json_has_findings_figures_and_where_it_comes_from(
    doctor: Cli, drafter_folder: Path
) -> None:
    ran = doctor("--drafter", drafter_folder, "--json")
    found = json.loads(ran.out)
    assert set(found) == {"provenance", "findings", "figures"}
    assert {"check", "level", "what", "cure"} == set(found["findings"][0])
    assert found["figures"]["num_cycles"] > 0
    assert found["provenance"]["drafter"] == str(drafter_folder)
    assert (ran.code == 1) == any(each["level"] == "fault" for each in found["findings"])


def test_what_drafts_behind_a_lookup_is_examined(doctor: Cli, drafter_folder: Path) -> None:
    ran = doctor("--drafter", f"{drafter_folder}+ngram", "--json")
    assert json.loads(ran.out)["provenance"]["drafter"] == str(drafter_folder)
    assert f"examining {drafter_folder}, which drafts behind the lookup" in ran.err.splitlines()
    alone = doctor("--drafter", drafter_folder, "--json")
    assert f"examining {drafter_folder}" in alone.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "no dflash2 or dflash drafter comes with the package for tiny"),
        (("--drafter", "ngram"), 2, "is no trained drafter"),
        (("--features", "nowhere"), 2, "is not a folder"),
        (("--features", "a", "--answers", "b"), 2, "both given"),
    ],
)
def test_mistakes_are_one_line(
    doctor: Cli, drafter_folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    given = ("--drafter", drafter_folder) if "--features" in arguments else ()
    ran = doctor(*given, *arguments)
    assert (ran.code, words in ran.error) == (code, True), ran.err
