"""Acceptance lengths, their mean and histogram equal those of z-lab's own decoding loop.

The same float32 weights decode the same prompts greedily, in their loop on a transformers model and
in ours. Their block shrinks near the limit, ours does not: every answer ends with a stop token well
before it.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from blockdraft.engine.llm import LLM
from blockdraft.evaluation.acceptance import acceptance
from blockdraft.evaluation.run_chunk import run_chunk
from blockdraft.evaluation.tasks import EvalPrompt
from blockdraft.interop.zlab import write_zlab
from blockdraft.kernels.choose import choose_kernels
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import SamplingParams
from tests.drafters.tiny import random_tensors
from tests.fakes.codec import FakeCodec, make_llm, numbered_words
from tests.fakes.drafting import random_drafter
from tests.fakes.models import tiny_target
from tests.parity.test_zlab_backbone import load_reference

reference = pytest.importorskip("dflash.model", reason="z-lab's package `dflash` is not installed")

VOCAB, LIMIT = 4, 80
PROMPTS = ([0, 1, 2], [3, 3, 1, 0, 2, 0, 1], [3], [2, 0, 2, 0, 3], [1, 2, 2], [1, 0], [2] * 9)


def both_targets() -> tuple[Any, DecoderTarget]:
    """A random Llama of four words in transformers, and the same weights in ours."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            is_matrix = parameter.ndim == 2
            parameter.normal_(0.0 if is_matrix else 1.0, 0.25 if is_matrix else 0.1)
    ours, device = DecoderConfig.from_dict(config.to_dict()), torch.device("cpu")
    info = dataclasses.replace(tiny_target().info, vocab_size=VOCAB, end_ids=())
    kernels = choose_kernels(torch.float32, device)
    return model, DecoderTarget(ours, dict(model.state_dict()), kernels, info, device)


def stop_token(llm: LLM, ids: list[int]) -> int:
    """A token that the answer says first after a while."""
    [output] = llm.generate([ids], SamplingParams(max_tokens=LIMIT // 2, ignore_eos=True))
    first = {token: output.token_ids.index(token) for token in set(output.token_ids)}
    return max(first, key=lambda token: first[token])


def prompt_of(ids: list[int]) -> EvalPrompt:
    words = numbered_words(VOCAB)
    return EvalPrompt(id=str(ids), turns=("".join(words[i] for i in ids),))


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_tau_and_histogram_are_those_of_the_package(
    tmp_path: Path,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reference, "_cuda_time", lambda: 0.0)
    model, target = both_targets()
    # Of the last layer, transformers hands out the final-normed output, which no checkpoint taps.
    drafter = random_drafter(target, method, target_layer_ids=(0, 1, 2))
    config = drafter.model.config
    write_zlab(tmp_path, config, random_tensors(config))
    theirs = load_reference(tmp_path, method)
    llm = make_llm(target, drafter, codec=FakeCodec(numbered_words(VOCAB)))
    answers, lengths = [], []
    for ids in PROMPTS:
        stop = stop_token(llm, ids)
        params = SamplingParams(max_tokens=LIMIT, stop_token_ids=(stop,))
        answers.append(run_chunk(llm, [prompt_of(ids)], [params], 1).answers[0])
        run = reference.dflash_generate(
            theirs, model, torch.tensor([ids]), LIMIT, [stop], return_stats=True
        )
        assert run.output_ids[0, len(ids) :].tolist() == list(answers[-1].token_ids)
        lengths.append(run.acceptance_lengths)
    committed = [[cycle.committed for cycle in answer.cycles or ()] for answer in answers]
    assert committed == lengths
    figures = acceptance([[answer.cycles or ()] for answer in answers])
    said = summary_of(lengths, config.block_size, capsys)
    assert figures.tau is not None
    assert f"{figures.tau:.2f}" == said[0]
    shares = [count / figures.cycles for count in figures.committed_histogram]
    shares += [0.0] * (config.block_size + 1 - len(shares))
    assert [f"{share * 100:.1f}" for share in shares] == said[1]
    # Otherwise nothing was compared.
    assert figures.tau > 1.1
    assert len({length for own in lengths for length in own}) >= 3


def summary_of(
    lengths: list[list[int]], block_size: int, capsys: pytest.CaptureFixture[str]
) -> tuple[str, list[str]]:
    """Mean and histogram as the package's benchmark prints them."""
    benchmark = pytest.importorskip("dflash.benchmark", reason="its own dependencies are missing")
    plain = SimpleNamespace(time_per_output_token=1.0)
    runs = [
        {1: plain, block_size: SimpleNamespace(time_per_output_token=1.0, acceptance_lengths=own)}
        for own in lengths
    ]
    capsys.readouterr()
    benchmark._print_decode_summary(runs, block_size)
    printed = capsys.readouterr().out
    mean = re.search(r"Average Acceptance length: (\S+)", printed)
    assert mean is not None
    return mean[1], re.findall(r"'([\d.]+)%'", printed)
