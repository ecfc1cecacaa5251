"""`blockdraft demo`: both texts, both speeds, and whether they are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockdraft.cli.demo import PROMPTS
from tests.cli.conftest import Cli
from tests.cli.tiny_target import write_target


def test_the_texts_are_compared(cli: Cli, target_folder: Path) -> None:
    options = ("--dtype", "float32", "--max-tokens", 12, "--rounds", 1)
    ran = cli("demo", "--target", target_folder, *options)
    assert ran.code == 0, ran.err
    assert ran.out.count("the same text, token for token") == len(PROMPTS)
    summary = ran.out.splitlines()[-1]
    assert summary.startswith("tiny, float32, torch kernels, drafter ngram: ")
    assert summary.endswith(f"{len(PROMPTS)} of {len(PROMPTS)} texts the same token for token")
    assert ran.err.splitlines()[-1] == "warming up .."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drafter", "none"), "there is no drafter to compare with; leave --drafter at auto"),
        (("--rounds", 0), "--rounds is 0; it must be at least 1 to measure speed"),
        (("--max-tokens", 1), "--max-tokens is 1; it must be at least 2 to measure speed"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    cli: Cli, target_folder: Path, options: tuple[object, ...], message: str
) -> None:
    ran = cli("demo", "--target", target_folder, "--dtype", "float32", *options)
    assert (ran.code, ran.out, ran.error) == (2, "", f"error: {message}")


def test_brackets_in_a_text_are_not_markup(
    cli: Cli, target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = "blockdraft.targets.tokenizer.TextCodec.decode"
    monkeypatch.setattr(decode, lambda codec, ids: "a[/b] [red]list[int]")
    options = ("--dtype", "float32", "--max-tokens", 4, "--rounds", 1)
    ran = cli("demo", "--target", target_folder, *options)
    assert ran.code == 0, ran.err
    assert ran.out.count("a[/b] [red]list[int]") == len(PROMPTS)


def test_answers_of_one_token_have_no_speed(cli: Cli, generate: Cli, tmp_path: Path) -> None:
    first = json.loads(generate(PROMPTS[0], "--max-tokens", 1, "--json").out)["token_ids"][0]
    folder = write_target(tmp_path / "mute", eos_token_id=first)
    ran = cli("demo", "--target", folder, "--dtype", "float32", "--rounds", 1)
    assert (ran.code, ran.out) == (1, "")
    assert ran.error.startswith("error: the target ends its answer at the first token")
