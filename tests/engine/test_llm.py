"""The public door: a target by name, a drafter found for it, and errors of one line."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from blockdraft import LLM, SamplingParams, registry
from blockdraft.engine import llm as llm_module
from blockdraft.errors import CheckpointError, ConfigError, UserError
from blockdraft.interop.zlab import write_zlab
from blockdraft.types import ROUNDED_FROM
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, solo
from tests.targets.tiny_models import save, tiny_model
from tests.targets.tiny_tokenizers import byte_level_tokenizer

PROMPTS, PARAMS = random_prompts([6, 13]), SamplingParams(max_tokens=12)


@pytest.fixture
def drafters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder of drafters, empty; and a target that any name loads."""
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    loaded = make_llm(tiny_target()).loaded
    monkeypatch.setattr(llm_module, "load_target", lambda name, **keys: loaded)
    return tmp_path / "drafters"


def write_drafter(folder: Path, provenance: dict[str, str] | None = None, **changes: Any) -> Path:
    config = tiny_drafter_config(**changes)
    write_zlab(folder, config, random_tensors(config), provenance)
    return folder


def test_auto_without_a_trained_drafter_looks_up_ngrams(drafters: Path) -> None:
    lines: list[str] = []
    llm = LLM("any", log=lines.append)
    assert llm.drafter is not None
    assert llm.drafter.name == "ngram"
    assert len(lines) == 1
    assert "ngram" in lines[0]
    assert ids_of(llm.generate(PROMPTS, PARAMS)) == ids_of(solo(tiny_target(), PROMPTS, PARAMS))


def test_auto_takes_the_checkpoint_that_records_this_target(drafters: Path) -> None:
    """Beside it lie one for another target and one that is damaged, which is told."""
    write_drafter(drafters / "a-other", {"target_fingerprint": "another"})
    write_drafter(drafters / "b-broken")
    (drafters / "b-broken" / "model.safetensors").write_bytes(b"no weights")
    own = write_drafter(drafters / "c-own", {"target_fingerprint": "tiny-0", "target_name": "t"})
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm = LLM("any", log=lines.append)
    assert llm.drafter is not None
    assert llm.drafter.name == "dflash2+ngram"
    assert ["b-broken" in line for line in lines] == [True, False]
    assert str(own) in lines[1]
    assert ids_of(llm.generate(PROMPTS, PARAMS)) == ids_of(solo(tiny_target(), PROMPTS, PARAMS))


@pytest.fixture
def shipped(drafters: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the drafter that comes with the package for the target's name would be."""
    monkeypatch.setattr(registry, "_SHIPPED", drafters.parent / "shipped")
    return drafters.parent / "shipped" / "tiny-0-dflash2"


@pytest.mark.parametrize("notes", [{"target_fingerprint": "another"}, {"target_name": "tiny-0"}])
def test_bc46_auto_takes_no_shipped_drafter_by_the_name_alone(
    shipped: Path, notes: dict[str, str]
) -> None:
    """Any folder may be called what a known target is called; nobody asked for that drafter."""
    write_drafter(shipped, notes, hidden_size=32)
    lines: list[str] = []
    llm = LLM("any", log=lines.append)
    assert llm.drafter is not None
    assert llm.drafter.name == "ngram"
    assert len(lines) == 2
    assert "passed over tiny-0-dflash2, which comes with the package (made for weights" in lines[0]
    assert "has tiny-0" in lines[0]
    with pytest.raises(CheckpointError, match="hidden size: 32 in the drafter"):
        LLM("any", "dflash2")  # asked for by name


def test_auto_takes_what_is_shipped_for_the_weights_or_those_they_were_rounded_from(
    shipped: Path,
) -> None:
    write_drafter(shipped, {"target_fingerprint": "tiny-0", "target_name": "tiny-0"})
    llm = LLM("any")
    assert llm.drafter is not None
    assert llm.drafter.describe()["source"] == shipped.name
    target = llm.target
    rounded = {ROUNDED_FROM: "tiny-0"}
    target.info = dataclasses.replace(target.info, fingerprint="rounded", extra=rounded)
    with pytest.warns(UserWarning, match="output stays exact"):
        found = LLM("any").drafter
    assert found is not None
    assert found.describe()["source"] == shipped.name


@pytest.mark.parametrize(
    ("name", "number"), [("none", None), ("auto", 0), ("ngram", 0), ("none", 5)]
)
def test_bc49_no_drafter(drafters: Path, name: str, number: int | None) -> None:
    llm = LLM("any", name, num_draft_tokens=number)
    assert llm.drafter is None
    [output] = llm.generate(PROMPTS[:1], PARAMS)
    assert output.speculation.drafted == 0


@pytest.mark.parametrize("number", [-1, -8])
def test_bc49_a_negative_number_is_refused(drafters: Path, number: int) -> None:
    with pytest.raises(ConfigError, match=f"num_draft_tokens is {number}"):
        LLM("any", "ngram", num_draft_tokens=number)


def test_an_unknown_drafter_is_refused_with_near_misses(drafters: Path) -> None:
    with pytest.raises(ConfigError, match=r"'ngrm'.*did you mean ngram"):
        LLM("any", "ngrm")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_target_layers": 8}, "target layers: 8 in the drafter, 4 in the target"),
        ({"hidden_size": 32}, "hidden size: 32 in the drafter, 64 in the target"),
        ({"vocab_size": 200}, "vocabulary: 200 in the drafter, 160 in the target"),
    ],
)
def test_bc46_a_drafter_of_another_shape_is_refused_naming_both(
    drafters: Path, changes: dict[str, int], fault: str
) -> None:
    folder = write_drafter(drafters / "x", {"target_name": "big-model"}, **changes)
    with pytest.raises(CheckpointError, match=rf"big-model.*tiny-0.*{fault}"):
        LLM("any", str(folder))


def test_bc46_the_shape_of_another_target_is_told_and_the_text_stays(drafters: Path) -> None:
    notes = {"target_name": "other-model", "target_fingerprint": "f00"}
    folder = write_drafter(drafters / "x", notes)
    with pytest.warns(UserWarning, match="other-model.*tiny-0") as caught:
        llm = LLM("any", str(folder))
    assert len(caught) == 1
    assert ids_of(llm.generate(PROMPTS, PARAMS)) == ids_of(solo(tiny_target(), PROMPTS, PARAMS))


@pytest.mark.parametrize("sizes", [{"max_batch_size": 0}, {"prefill_chunk_len": 0}])
def test_sizes_of_a_run_are_checked(drafters: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        LLM("any", **sizes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model on disk: weights, tokenizer, chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    end_id = tokenizer.token_to_id("<|im_end|>")
    save(tiny_model(vocab_size=vocab_size, eos_token_id=end_id), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_from_a_folder_to_text(model_folder: Path, dtype: str, exact: bool) -> None:
    """Tokenizer, template, target, drafter, stops and stream together; text of raw bytes."""
    folder = str(model_folder)
    llm = LLM(folder, "ngram", dtype=dtype, exact=exact)
    plain = LLM(folder, "none", dtype=dtype, exact=exact)
    prompts = ["hello hello hello a", [{"role": "user", "content": "你好 a a a"}]]
    params = [SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, logit_bias={7: 2.0})]
    outputs, expected = llm.generate(prompts, params), plain.generate(prompts, params)
    if dtype == "float32" or exact:
        assert ids_of(outputs) == ids_of(expected)
    assert outputs[0].text == llm.loaded.codec.decode(outputs[0].token_ids)
    pieces = list(llm.stream(prompts[0], params[0]))
    assert "".join(piece.text for piece in pieces) == outputs[0].text
    assert llm.describe()["dtype"] == dtype
    assert isinstance(llm.target.info.end_ids, tuple)


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        LLM(str(tmp_path / "no-such-folder"))
    assert "\n" not in str(caught.value)


def test_auto_adds_the_lookup_to_the_folder_it_looked_at(drafters: Path) -> None:
    """And takes no other one that happens to be called so."""
    own = write_drafter(drafters / "a", {"target_fingerprint": "tiny-0", "target_name": "t"})
    write_drafter(drafters / "a+ngram", {"target_fingerprint": "another"})
    said = LLM("any").describe()["drafter"]
    assert (said["name"], said["source"]) == ("dflash2+ngram", str(own))


def test_describe_of_a_checkpoint_says_where_it_is_from(drafters: Path) -> None:
    folder = write_drafter(drafters / "x", {"target_name": "tiny-0"})
    said = LLM("any", str(folder)).describe()["drafter"]
    assert said["name"] == "dflash2"
    assert said["num_draft_tokens"] == 7


def test_a_target_in_memory_may_be_changed_by_nobody(drafters: Path) -> None:
    """Two engines on one target, run in turns, do not disturb each other."""
    target = tiny_target()
    first, second = make_llm(target), make_llm(target)
    expected = ids_of(solo(target, PROMPTS, PARAMS))
    one, two = first.stream(PROMPTS[0], PARAMS), second.stream(PROMPTS[1], PARAMS)
    pieces = [(next(one), next(two)) for _ in range(12)]
    assert tuple(p.token_ids[0] for p, _ in pieces) == expected[0]
    assert tuple(p.token_ids[0] for _, p in pieces) == expected[1]
