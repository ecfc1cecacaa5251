"""Where rows look: by hand, and in a tiny drafter that decodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.findings.asked import Asked
from benchmarks.findings.attention import measure
from benchmarks.findings.attention_watch import PARTS, AttentionWatch, attention, by_part
from blockdraft.engine.llm import LLM
from blockdraft.interop.zlab import write_zlab
from blockdraft.kernels.torch_reference import TorchKernels
from tests.drafters.tiny import random_tensors, tiny_drafter_config
from tests.evaluation.runs import codec, prompts, target
from tests.fakes.codec import make_llm


def test_mass_by_hand() -> None:
    """A block of 2 after 3 rows of context: the last 2 of them are recent."""
    p = torch.tensor([[0.1, 0.2, 0.3, 0.25, 0.15], [0.0, 0.1, 0.2, 0.3, 0.4]])
    want = {
        "itself": [0.25, 0.4],
        "anchor": [0.0, 0.3],
        "slots": [0.15, 0.0],
        "recent": [0.5, 0.3],
        "older": [0.1, 0.0],
    }
    for name, values in zip(PARTS, by_part(p).T.tolist(), strict=True):
        assert values == pytest.approx(want[name], abs=1e-6), name


def test_the_weights_are_those_that_attention_uses() -> None:
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, h, 8, generator=gen) for n, h in ((4, 4), (9, 2), (9, 2)))
    mask = torch.zeros(1, 1, 4, 9)
    mask[..., 1, :3] = -torch.inf
    kernels = TorchKernels(torch.float32, torch.device("cpu"))
    for given in (None, mask, mask == 0):
        values = v.repeat_interleave(2, 2)
        mine = torch.einsum("bhts,bshd->bthd", attention(q, k, given), values).flatten(2)
        torch.testing.assert_close(mine, kernels.attend(q, k, v, given))


def test_watching_changes_nothing_and_sums_to_one() -> None:
    gen = torch.Generator().manual_seed(1)
    kernels = TorchKernels(torch.float32, torch.device("cpu"))
    watch = AttentionWatch(kernels, num_layers=2, width=4)
    for length in (6, 6, 11, 11):  # two layers of two blocks
        q, k = (torch.randn(1, n, 2, 8, generator=gen) for n in (4, length))
        assert torch.equal(watch.attend(q, k, k, None), kernels.attend(q, k, k, None))
    assert watch.num_blocks == 2
    assert watch.context_len == 2 + 7
    for layer in watch.figures():
        assert all(sum(row.values()) == pytest.approx(1) for row in layer)


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_a_checkpoint_is_measured(method: str, tmp_path: Path) -> None:
    config = tiny_drafter_config(method, windows=(None, 5), vocab_size=target().info.vocab_size)
    write_zlab(tmp_path / "mine", config, random_tensors(config))
    llm: LLM = make_llm(target(), codec=codec())
    asked = [Asked("toy", each.id, each.turns[0]) for each in prompts(2)]
    row, about = measure(llm, str(tmp_path / "mine"), asked, 12)
    assert row["has_convolution"] == (method == "dflash2")
    assert about["source"] == row["drafter"] == "mine"
    assert about["fingerprint"]
    assert row["num_blocks"] >= 2
    wide, narrow = row["layers"]
    for layer in (wide, narrow):
        assert sum(layer.values()) == pytest.approx(1)
        assert all(value >= 0 for value in layer.values())
    # Rows of a block of 8 with a window of 5 reach no further back than 4 rows.
    assert narrow["older"] == 0 < wide["older"]
