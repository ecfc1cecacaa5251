"""What goes wrong is said in one line on stderr, with the right exit code and no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Cli
from tests.cli.tiny_target import CONFIG

USAGE, FAILURE = 2, 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", -1), "temperature is -1.0; it must be 0 to 100"),
        (("--temperature", "nan"), "temperature is nan; it must be 0 to 100"),
        (("--top-p", 0), "top_p is 0; it must be greater than 0"),
        (("--top-k", -1), "top_k is -1; it must be 0 (off) or more"),
        (("--min-p", 1.5), "min_p is 1.5; it must be 0 to 1"),
        (("--max-tokens", -2), "max_tokens is -2; it must be 0 or more"),
        (("--seed", -1), "seed is -1; it must be 0 to 2**64 - 1"),
        (("--stop", ""), "a stop string is empty; give at least one character"),
        (("--dtype", "float16"), "dtype 'float16' is not offered; choose float32 or bfloat16"),
        (
            ("--no-drafter", "--num-draft-tokens", "3"),
            "--num-draft-tokens 3 and no drafter contradict each other; give one",
        ),
        (("--raw", "--system", "x"), "--raw and --system contradict each other; give one"),
        (
            ("--no-drafter", "--drafter", "ngram"),
            "--no-drafter and --drafter ngram contradict each other; give one",
        ),
        (
            ("--drafter", "ngrams"),
            "no drafter 'ngrams': not a name (dflash, dflash2, ngram, none) and not a folder; "
            "did you mean ngram?",
        ),
        (("--num-draft-tokens", -1), "num_draft_tokens is -1; it must be 0 (off) to 256"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_wrong_options_name_what_is_allowed(
    generate: Cli, options: tuple[object, ...], message: str
) -> None:
    ran = generate("hello", *options)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.error == f"error: {message}"


@pytest.mark.parametrize("command", ["generate hi", "trace hi -o x", "evaluate --out x"])
@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", "-1"), ("--top-p", "2"), ("--top-k", "-1"), ("--max-tokens", "-1")],
)
def test_wrong_sampling_is_told_before_a_model_is_looked_for(
    cli: Cli, command: str, option: str, value: str
) -> None:
    ran = cli(*command.split(), "--target", "./nowhere", option, value)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.error.startswith(f"error: {option[2:].replace('-', '_')} is {value}")


@pytest.mark.parametrize(
    ("arguments", "words", "command"),
    [
        (("generate", "x", "--max-tokens", "many"), ("'--max-tokens'", "'many'"), "generate"),
        (("doctor", "--num", "0"), ("'--num'", "0", "1"), "doctor"),
        (("generate", "x", "--no-such-option"), ("no such option", "--no-such-option"), "generate"),
        (("generate", "x", "--topk", "3"), ("--topk", "--top-k"), "generate"),
        (("generate", "x", "--target"), ("'--target'", "argument"), "generate"),
        (("generate", "x", "y"), ("unexpected extra argument", "(y)"), "generate"),
        (("generate",), ("missing argument", "prompt"), "generate"),
        (("evaluate",), ("missing option", "--out"), "evaluate"),
        (("no-such-command",), ("no such command 'no-such-command'",), ""),
        (("generat",), ("no such command 'generat'", "did you mean 'generate'"), ""),
        (("--no-such-option",), ("no such option", "--no-such-option"), ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_what_the_parser_refuses_is_one_line(
    cli: Cli, arguments: tuple[str, ...], words: tuple[str, ...], command: str
) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out, ran.err) == (USAGE, "", ran.error + "\n")
    assert all(word.lower() in ran.error.lower() for word in words), ran.error
    named = f"blockdraft {command}".strip()
    assert ran.error.endswith(f" `{named} --help` says what is allowed")


def test_no_command_at_all_shows_them(cli: Cli) -> None:
    ran = cli()
    assert (ran.code, ran.err) == (USAGE, "")
    assert "Usage: blockdraft [OPTIONS] COMMAND" in ran.out
    assert "check-lossless" in ran.out


@pytest.mark.parametrize(("prompt", "stdin"), [("", b""), ("-", b"")], ids=["argument", "stdin"])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(
    cli: Cli, prompt: str, stdin: bytes
) -> None:
    ran = cli("generate", prompt, "--target", "/no/such/folder", stdin=stdin)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.error == "error: the prompt is empty; give some text"


def test_bytes_that_are_no_text_are_refused(generate: Cli) -> None:
    ran = generate("-", stdin=b"caf\xe9")
    assert (ran.code, ran.error) == (USAGE, "error: stdin is not utf-8 text; convert it first")
    for options, name in (
        (("caf\udce9",), "the prompt"),
        (("x", "--system", "caf\udce9"), "--system"),
        (("x", "--stop", "caf\udce9"), "--stop"),
    ):
        ran = generate(*options)
        assert ran.code == USAGE
        assert ran.error == f"error: {name} is not UTF-8 text; convert it first"


def test_a_prompt_that_does_not_fit_says_how_much_does(generate: Cli) -> None:
    ran = generate("x" * CONFIG.max_context_len, "--raw")
    assert (ran.code, ran.out) == (FAILURE, "")
    assert ran.error == (
        "error: prompt 0 has 640 tokens; tiny holds 640, and an answer needs at least one: "
        "shorten the prompt"
    )


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("nope", USAGE, "no target 'nope': give a short name (smollm2-135m), a hub id"),
        ("./nope", USAGE, "nope does not exist; check the path"),
        ("nope.gguf", USAGE, "nope.gguf does not exist; check the path"),
    ],
)
def test_an_unknown_target(cli: Cli, target: str, code: int, message: str) -> None:
    ran = cli("generate", "hello", "--target", target)
    assert (ran.code, ran.out) == (code, "")
    assert ran.error.startswith(f"error: {message}")


def test_no_drafter_is_shipped_for_this_target(generate: Cli) -> None:
    ran = generate("hello", "--drafter", "dflash2")
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.error.startswith("error: no dflash2 drafter comes with the package for tiny; ")


def _cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def _scramble(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(b"\x10" + bytes(7) + b"no header at all" + weights.read_bytes())


def _drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def _spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, ("model.safetensors is ", "bytes, but its header says", "fetch it again")),
        (_scramble, ("model.safetensors has a damaged header; fetch it again",)),
        (_drop_tensor, ("model.norm.weight",)),
        (_spoil_config, ("config.json",)),
        (lambda folder: (folder / "config.json").unlink(), ("config.json",)),
        (lambda folder: (folder / "model.safetensors").unlink(), ("has no model.safetensors",)),
        (lambda folder: (folder / "tokenizer.json").unlink(), ("has no tokenizer.json",)),
    ],
    ids=["cut", "header", "tensor", "config", "no config", "no weights", "no tokenizer"],
)
def test_damaged_files_are_named(
    cli: Cli,
    target_folder: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    words: tuple[str, ...],
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(target_folder, folder)
    damage(folder)
    ran = cli("generate", "hello", "--target", folder, "--dtype", "float32")
    assert (ran.code, ran.out) == (FAILURE, "")
    assert all(word in ran.error for word in words), ran.error


def test_an_answer_that_fails_is_said_beside_what_there_was(
    cli: Cli, target_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "not-finite"
    shutil.copytree(target_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    ran = cli("generate", "hello", "--target", folder, "--dtype", "float32", "--json")
    answer = json.loads(ran.out)
    assert ran.code == FAILURE
    assert (answer["finish_reason"], answer["text"]) == ("error", "")
    assert ran.error == f"error: {answer['error']}"
    assert "non-finite logits" in ran.error


def test_a_drafter_of_another_target_is_refused(
    cli: Cli, generate: Cli, target_folder: Path, drafter_folder: Path
) -> None:
    config = drafter_folder / "config.json"
    config.write_text(
        config.read_text().replace('"num_target_layers": 8', '"num_target_layers": 9')
    )
    ran = generate("hello", "--drafter", drafter_folder)
    assert (ran.code, ran.out) == (FAILURE, "")
    assert "target layers: 9 in the drafter, 8 in the target" in ran.error
