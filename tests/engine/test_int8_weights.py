"""int8 weights by name: the quantised model is a target of its own, and output is exactly its."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockdraft import LLM, SamplingParams
from blockdraft.engine.runner import RunnerLimits
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.interop.new_drafter import NewDrafter, write_new_drafter
from blockdraft.kernels import native
from blockdraft.kernels.native.linear import quantise
from blockdraft.registry import load_drafter
from blockdraft.targets import load
from blockdraft.targets.base import RowBatch
from blockdraft.types import ROUNDED_FROM
from tests.cli.tiny_target import write_target
from tests.fakes.oracle import ids_of, random_prompts

needs_native = pytest.mark.skipif(
    not native.available(), reason=f"native kernels: {native.why_unavailable()}"
)
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_target(tmp_path_factory.mktemp("int8") / "target"))


def load_int8(folder: str, drafter: str = "none") -> LLM:
    return LLM(folder, drafter, dtype="bfloat16", weights="int8")


@needs_native
def test_drafts_change_nothing_alone_or_together(folder: str) -> None:
    llm = load_int8(folder)
    prompts = random_prompts([6, 13, 4], vocab_size=llm.target.info.vocab_size)
    expected = [ids_of(llm.generate([prompt], PARAMS))[0] for prompt in prompts]
    drafting = LLM.from_parts(
        llm.loaded, load_drafter("ngram", llm.target), RunnerLimits(max_batch_size=2)
    )
    outputs = drafting.generate(prompts, PARAMS)
    assert tuple(ids_of(outputs)) == tuple(expected)
    assert sum(out.speculation.drafted for out in outputs) > 0


@needs_native
def test_it_is_another_target_and_says_so(folder: str) -> None:
    own, int8 = LLM(folder, "none", dtype="bfloat16"), load_int8(folder)
    assert (own.describe()["weights"], int8.describe()["weights"]) == ("bfloat16", "int8")
    assert int8.describe()["target"]["fingerprint"] != own.describe()["target"]["fingerprint"]
    assert int8.target.info.fingerprint == load_int8(folder).target.info.fingerprint
    assert int8.target.info.num_parameters == own.target.info.num_parameters


@needs_native
def test_the_head_is_the_quantised_one(folder: str) -> None:
    """Against float64 products of the rounded numbers, which bfloat16 weights are far from."""
    llm = load_int8(folder)
    weight = load_file(Path(folder) / "model.safetensors")["lm_head.weight"].bfloat16()
    integers, scales = quantise(weight)
    hidden = torch.randn(5, weight.shape[1]).bfloat16()
    expected = hidden.double() @ (integers.double() * scales.double()[:, None]).T
    torch.testing.assert_close(llm.target.head(hidden).double(), expected, rtol=1e-4, atol=1e-4)
    assert (hidden.double() @ weight.double().T - expected).abs().max() > 1e-2


@needs_native
def test_logits_stay_near_the_unquantised_ones(folder: str) -> None:
    ids = torch.arange(24)[None] % 50 + 3
    logits = []
    for llm in (LLM(folder, "none", dtype="bfloat16"), load_int8(folder)):
        cache = llm.target.new_cache(1, 24)
        out = llm.target.forward(cache, RowBatch(ids, (24,))).logits
        assert out is not None
        logits.append(out)
    error = (logits[0] - logits[1]).norm() / logits[0].norm()
    assert 0 < error < 0.1


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"weights": "int4"}, "'int4' are not offered; choose int8"),
        ({"weights": "int8", "dtype": "float32"}, "not in float32 on cpu; give --dtype bfloat16"),
        ({"weights": "int8", "kernels": "torch"}, "need the native kernels, not 'torch'"),
    ],
)
def test_what_cannot_be_is_one_line(folder: str, options: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        LLM(folder, "none", **{"dtype": "bfloat16", **options})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_it_is_not_ignored_for_models_on_transformers(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_why_not_decoder", lambda source: "a reason")
    with pytest.raises(UnsupportedError, match="a reason"):
        load_int8(folder)


@needs_native
def test_a_drafter_of_the_unquantised_target_is_told_and_serves(
    folder: str, tmp_path: Path
) -> None:
    asked = NewDrafter(method="dflash2", num_layers=1, block_size=4)
    write_new_drafter(folder, asked, tmp_path / "drafter", log=lambda _: None)
    with pytest.warns(UserWarning, match="output stays exact"):
        llm = load_int8(folder, str(tmp_path / "drafter"))
    rounded_from = llm.target.info.extra[ROUNDED_FROM]  # by which `auto` finds it
    assert rounded_from == LLM(folder, "none").target.info.fingerprint
    prompts = random_prompts([5, 9], vocab_size=llm.target.info.vocab_size)
    plain = LLM.from_parts(llm.loaded, None)
    assert ids_of(llm.generate(prompts, PARAMS)) == ids_of(plain.generate(prompts, PARAMS))
