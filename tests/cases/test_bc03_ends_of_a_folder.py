"""BC-03, from the files to the text: both config files say where a text ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockdraft import LLM, SamplingParams
from blockdraft.engine.runner import RunnerLimits
from tests.fakes.scripted import ScriptedDrafter, accept_all
from tests.targets.tiny_models import save, tiny_model
from tests.targets.tiny_tokenizers import byte_level_tokenizer

PROMPT = [5, 60, 99]


def write_model(folder: Path, eos: object, generation_eos: object) -> str:
    tokenizer = byte_level_tokenizer()
    save(tiny_model(vocab_size=tokenizer.get_vocab_size()), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in (("config.json", eos), ("generation_config.json", generation_eos)):
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": value}))
    return str(folder)


@pytest.mark.parametrize("form", ["list", "scalar", "config only"])
def test_the_second_end_id_in_the_middle_of_a_block(form: str, tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=12)
    free = LLM(write_model(tmp_path / "free", [], []), "none", dtype="float32")
    [oracle] = [output.token_ids for output in free.generate(PROMPT, params)]
    b = oracle[3]
    assert oracle.index(b) == 3
    a = next(i for i in range(200) if i not in oracle)
    files = {"list": (a, [a, b]), "scalar": (a, b), "config only": ([a, b], None)}[form]
    loaded = LLM(write_model(tmp_path / "model", *files), "none", dtype="float32").loaded
    assert set(loaded.target.info.end_ids) == {a, b}
    script = ScriptedDrafter({tuple(PROMPT): oracle}, accept_all, 7, loaded.target.info.vocab_size)
    llm = LLM.from_parts(loaded, script, RunnerLimits())
    [output] = llm.generate(PROMPT, params)
    assert (output.token_ids, output.finish_reason) == (oracle[:4], "stop")
    added = SamplingParams(max_tokens=12, stop_token_ids=(oracle[1],))
    assert llm.generate(PROMPT, added)[0].token_ids == oracle[:2]
    beside = SamplingParams(max_tokens=12, stop_token_ids=(oracle[9],))
    assert llm.generate(PROMPT, beside)[0].token_ids == oracle[:4]
