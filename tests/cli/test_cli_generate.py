"""`blockdraft generate`: the answer on stdout, everything else on stderr, every option felt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from blockdraft.targets.sources import resolve
from blockdraft.targets.tokenizer import TextCodec
from tests.cli.conftest import Cli

PROMPT = "hello hello hello"


def _json(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    assert ran.out.count("\n") == 1
    found: dict[str, Any] = json.loads(ran.out)
    return found


@pytest.fixture
def codec(target_folder: Path) -> TextCodec:
    return resolve(str(target_folder), progress=lambda _: None).codec()


def test_text_goes_to_stdout_and_all_else_to_stderr(generate: Cli) -> None:
    shown, described = (
        generate(PROMPT, "--max-tokens", 24),
        generate(PROMPT, "--max-tokens", 24, "--json"),
    )
    answer = _json(described)
    assert shown.out == answer["text"] + "\n"
    assert shown.err == described.err
    assert shown.err.startswith("drafter: ngram lookup")
    assert len(shown.err.splitlines()) == 1


def test_json_agrees_with_itself(generate: Cli) -> None:
    answer = _json(generate(PROMPT, "--max-tokens", 40, "--json"))
    usage, speculation, timing = answer["usage"], answer["speculation"], answer["timing"]
    assert usage["completion_tokens"] == len(answer["token_ids"]) == 40
    assert (answer["finish_reason"], answer["error"]) == ("length", None)
    assert speculation["committed"] == 39
    assert speculation["committed"] == speculation["accepted"] + speculation["cycles"]
    assert speculation["mean_acceptance_length"] == 39 / speculation["cycles"]
    assert sum(speculation["accepted_by_position"]) == speculation["accepted"]
    assert sum(speculation["drafted_by_position"]) == speculation["drafted"]
    parts = ("draft_s", "select_s", "verify_s", "other_s")
    assert sum(timing[part] for part in parts) == pytest.approx(timing["decode_s"])
    assert timing["decode_s"] + timing["prefill_s"] == pytest.approx(timing["total_s"])
    about = answer["provenance"]
    assert about["target"]["name"] == "tiny"
    assert (about["drafter"]["name"], about["dtype"]) == ("ngram", "float32")


def test_stats_go_to_stderr(generate: Cli) -> None:
    plain = generate(PROMPT, "--max-tokens", 12)
    ran = generate(PROMPT, "--max-tokens", 12, "--stats")
    assert ran.out == plain.out
    for word in ("prefill", "draft", "select", "verify", "other", "total", "tokens: 12, "):
        assert word in ran.err
    assert ran.err.splitlines()[-1].startswith("drafter: ngram; ")


def test_stats_of_an_answer_without_a_cycle(generate: Cli) -> None:
    ran = generate(PROMPT, "--max-tokens", 1, "--stats")
    assert ran.code == 0
    assert ran.err.splitlines()[-1].endswith("tokens: 1; drafts accepted: 0 of 0; cycles: 0")


def test_the_prompt_may_come_from_stdin(generate: Cli) -> None:
    given = generate("zwei\nZeilen \u00e9", "--max-tokens", 12)
    assert generate("-", "--max-tokens", 12, stdin="zwei\nZeilen \u00e9".encode()) == given


def test_a_text_is_a_user_turn_unless_raw(generate: Cli, codec: TextCodec) -> None:
    chat = _json(generate(PROMPT, "--max-tokens", 2, "--json"))
    raw = _json(generate(PROMPT, "--max-tokens", 2, "--json", "--raw"))
    turn = {"role": "user", "content": PROMPT}
    assert chat["usage"]["prompt_tokens"] == len(codec.encode_chat([turn]))
    assert raw["usage"]["prompt_tokens"] == len(codec.encode(PROMPT))


def test_a_system_message_stands_before_the_prompt(generate: Cli, codec: TextCodec) -> None:
    ran = generate(PROMPT, "--max-tokens", 2, "--json", "--system", "Be brief.")
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    assert _json(ran)["usage"]["prompt_tokens"] == len(codec.encode_chat(turns))


def test_the_first_of_several_stop_strings_ends_the_text(generate: Cli) -> None:
    whole = _json(generate(PROMPT, "--max-tokens", 30, "--json"))["text"]
    stop = whole[10:12]
    cut = _json(
        generate(PROMPT, "--max-tokens", 30, "--json", "--stop", stop, "--stop", "never said")
    )
    assert (cut["text"], cut["finish_reason"]) == (whole[: whole.index(stop)], "stop")


def test_a_seed_gives_the_same_text_again(generate: Cli) -> None:
    options = ("--max-tokens", 20, "--temperature", 1, "--json")
    fresh = _json(generate(PROMPT, *options))
    again = _json(generate(PROMPT, *options, "--seed", fresh["provenance"]["seed"]))
    other = _json(generate(PROMPT, *options, "--seed", 7))
    assert again["token_ids"] == fresh["token_ids"]
    assert other["token_ids"] != fresh["token_ids"]


@pytest.mark.parametrize(
    "filters", [("--top-k", 1), ("--top-p", 1e-6), ("--min-p", 1)], ids=lambda f: f[0]
)
def test_filters_that_leave_one_token_are_greedy(generate: Cli, filters: tuple[object]) -> None:
    greedy = generate(PROMPT, "--max-tokens", 20)
    hot = ("--temperature", 5, "--seed", 1)
    assert generate(PROMPT, "--max-tokens", 20, *hot).out != greedy.out
    assert generate(PROMPT, "--max-tokens", 20, *hot, *filters).out == greedy.out


@pytest.mark.parametrize(
    "options", [("--no-drafter",), ("--drafter", "none"), ("--num-draft-tokens", 0)]
)
def test_three_ways_to_decode_plainly(generate: Cli, options: tuple[object, ...]) -> None:
    drafted = _json(generate(PROMPT, "--max-tokens", 40, "--json"))
    plain = _json(generate(PROMPT, "--max-tokens", 40, "--json", *options))
    assert plain["token_ids"] == drafted["token_ids"]
    assert drafted["speculation"]["drafted"] > 0
    assert plain["speculation"]["drafted"] == 0
    assert plain["provenance"]["drafter"] == {"name": "none"}


def test_a_drafter_by_its_folder(generate: Cli, drafter_folder: Path) -> None:
    options = ("--max-tokens", 24, "--json")
    plain = _json(generate(PROMPT, *options, "--no-drafter"))
    drafted = _json(generate(PROMPT, *options, "--drafter", drafter_folder))
    narrow = _json(generate(PROMPT, *options, "--drafter", drafter_folder, "--num-draft-tokens", 2))
    assert drafted["token_ids"] == narrow["token_ids"] == plain["token_ids"]
    assert len(drafted["speculation"]["drafted_by_position"]) == 7
    assert len(narrow["speculation"]["drafted_by_position"]) == 2
    assert drafted["provenance"]["drafter"]["name"] == "dflash2"


def test_auto_finds_the_drafter_that_records_this_target(
    generate: Cli, drafter_folder: Path, cache: Path
) -> None:
    own = cache / "drafters" / "mine"
    shutil.copytree(drafter_folder, own)
    ran = generate(PROMPT, "--max-tokens", 4, "--json")
    assert ran.err == f"drafter: dflash2+ngram from {own}\n"
    assert _json(ran)["provenance"]["drafter"]["name"] == "dflash2+ngram"


def test_a_block_that_is_too_long_is_lowered_with_a_notice(
    generate: Cli, drafter_folder: Path
) -> None:
    ran = generate(PROMPT, "--max-tokens", 4, "--drafter", drafter_folder, "--num-draft-tokens", 20)
    assert ran.code == 0
    assert ran.err.startswith("note: num_draft_tokens is 20, but blocks of 8 draft 7")


def test_no_tokens_is_an_empty_answer(generate: Cli) -> None:
    ran = generate(PROMPT, "--max-tokens", 0)
    assert (ran.code, ran.out) == (0, "\n")


def test_exact_gives_the_text_of_float32(generate: Cli) -> None:
    ran = generate(PROMPT, "--max-tokens", 12, "--json", "--exact")
    assert _json(ran)["provenance"]["kernels"].endswith("-exact")
    assert _json(ran)["text"] + "\n" == generate(PROMPT, "--max-tokens", 12).out
