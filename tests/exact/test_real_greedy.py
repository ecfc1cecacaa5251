"""The default target on real prompts: the same greedy tokens however they are drafted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from blockdraft import LLM, SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.engine.runner import RunnerLimits
from blockdraft.interop.new_drafter import NewDrafter, write_new_drafter
from blockdraft.kernels import native
from blockdraft.registry import load_drafter
from blockdraft.targets.sources.wheel import cache_folder
from tests.fakes.scripted import ScriptedDrafter

DATA = Path(os.environ.get("BLOCKDRAFT_DATA", Path(__file__).parents[3] / "shared" / "data"))
SETS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")
OWN = ("Name three rivers and say where each begins.", "Write a line of Python that sums a list.")
GREEDY = SamplingParams(max_tokens=16)

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (cache_folder() / "targets" / "smollm2-135m").is_dir(),
        reason="the default target is not in the cache: run `blockdraft pull smollm2-135m`",
    ),
]


def prompts() -> list[str]:
    """One of each evaluation set where they are at hand, and two of our own."""
    found = list(OWN)
    for name in SETS:
        path = DATA / "eval" / f"{name}.jsonl"
        if path.is_file():
            with path.open(encoding="utf-8") as file:
                found.append(json.loads(next(file))["turns"][0])
    return found


def drafters(llm: LLM, oracle: Sequence[Sequence[int]], folder: Path) -> list[Drafter]:
    encode = llm.loaded.codec.encode_chat
    known = {
        tuple(encode([{"role": "user", "content": text}])): list(ids)
        for text, ids in zip(prompts(), oracle, strict=True)
    }
    asked = NewDrafter(num_layers=2, selector_rank=32, copy_layers=True)
    write_new_drafter("smollm2-135m", asked, folder / "d2", log=lambda _: None)
    v = llm.target.info.vocab_size
    made: list[Drafter | None] = [
        load_drafter("ngram", llm.target),
        load_drafter(folder / "d2", llm.target),
        ScriptedDrafter(known, lambda cycle, j: (cycle + j) % 3 > 0, 5, v),
        ScriptedDrafter(known, lambda cycle, j: True, 15, v),
    ]
    return [drafter for drafter in made if drafter is not None]


@pytest.mark.parametrize(
    ("dtype", "kernels", "exact"),
    [
        ("float32", "auto", False),
        pytest.param(
            "bfloat16",
            "native",
            False,
            marks=pytest.mark.skipif(not native.available(), reason="no native kernels here"),
        ),
        ("bfloat16", "onednn", True),
    ],
)
def test_drafting_changes_no_token(dtype: str, kernels: str, exact: bool, tmp_path: Path) -> None:
    llm = LLM("smollm2-135m", "none", dtype=dtype, kernels=kernels, exact=exact, max_batch_size=1)
    oracle = [output.token_ids for output in llm.generate(prompts(), GREEDY)]
    accepted = 0
    for drafter in drafters(llm, oracle, tmp_path):
        engine = LLM.from_parts(llm.loaded, drafter, RunnerLimits(max_batch_size=3))
        outputs = engine.generate(prompts(), GREEDY)
        assert [output.token_ids for output in outputs] == oracle, drafter.name
        accepted += sum(output.speculation.accepted for output in outputs)
    # Drafts were taken, not only thrown away; there are fewer prompts where the sets are absent.
    assert accepted > 10 * len(prompts())


def test_float32_text_is_that_of_transformers() -> None:
    import torch

    from benchmarks.decode_speed import transformers_model

    llm = LLM("smollm2-135m", "ngram", dtype="float32")
    model = transformers_model("smollm2-135m", torch.float32)
    for text in prompts()[:3]:
        ids = torch.tensor([llm.loaded.codec.encode_chat([{"role": "user", "content": text}])])
        with torch.inference_mode():
            want = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=GREEDY.max_tokens,
                do_sample=False,
                eos_token_id=list(llm.target.info.end_ids),
                pad_token_id=0,
            )
        [output] = llm.generate(text, GREEDY)
        assert output.token_ids == tuple(want[0, ids.shape[1] :].tolist())
