"""Bias, penalties and minimum length: a block's rows equal those of plain decoding, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.sampling import AdjustRow, adjust_logits, check_params, choose
from blockdraft.types import SamplingParams
from blockdraft.verification import accept_greedy

VOCAB = 12
INF = float("inf")
END = 5
SETTINGS = {
    "repetition": SamplingParams(repetition_penalty=1.3),
    "repetition below 1": SamplingParams(repetition_penalty=0.7),
    "frequency": SamplingParams(frequency_penalty=2.0),
    "negative frequency": SamplingParams(frequency_penalty=-2.0),
    "presence": SamplingParams(presence_penalty=1.5),
    "bias": SamplingParams(logit_bias={3: 2.5, 11: -100.0}),
    "minimum": SamplingParams(min_tokens=6, stop_token_ids=(7,)),
    "all": SamplingParams(
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=-0.4,
        logit_bias={0: 1.0, END: 3.0},
        min_tokens=9,
    ),
}


def by_the_book(logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int],
                end_ids: tuple[int, ...] = (END,)) -> Tensor:  # fmt: skip
    """One row, one token at a time, straight from the definitions (float64)."""
    out = logits.double().clone()
    for token_id, bias in params.logit_bias.items():
        out[token_id] += bias
    for token_id in range(len(out)):
        if token_id in prompt or token_id in output:
            factor = params.repetition_penalty
            out[token_id] = out[token_id] / factor if out[token_id] > 0 else out[token_id] * factor
        count = output.count(token_id)
        out[token_id] -= params.frequency_penalty * count
        out[token_id] -= params.presence_penalty * (count > 0)
        is_end = token_id in end_ids or token_id in params.stop_token_ids
        if is_end and len(output) < params.min_tokens:
            out[token_id] = -INF
    return out


def row(
    params: SamplingParams, prompt: list[int], output: list[int], drafts: list[int]
) -> AdjustRow:
    return AdjustRow(params, len(prompt), prompt + output, drafts, (END,))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_row_equals_plain_decoding(name: str) -> None:
    """BC-18, BC-09: also where a token occurs twice inside one block."""
    params = SETTINGS[name]
    prompt, output, drafts = [1, 2, 2, 9], [3, 4, 3], [4, 8, 8, 2, 3, END, 8]
    logits = 3.0 * torch.randn(1, 9, VOCAB, generator=torch.Generator().manual_seed(1))
    block = adjust_logits(logits, [row(params, prompt, output, drafts)])
    for j in range(len(drafts) + 1):
        so_far = output + drafts[:j]
        plain = adjust_logits(logits[:, j : j + 1], [row(params, prompt, so_far, [])])
        assert torch.equal(block[0, j], plain[0, 0])
        expected = by_the_book(logits[0, j], params, prompt, so_far)
        torch.testing.assert_close(block[0, j].double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(block[0, 8], logits[0, 8])  # padding


@settings(deadline=None, max_examples=80)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=6),
    drafts=st.lists(st.integers(0, VOCAB - 1), max_size=6),
    repetition=st.sampled_from([1.0, 1.3, 0.5]),
    frequency=st.sampled_from([0.0, 0.1, -2.0, 2.0]),
    presence=st.sampled_from([0.0, 1.5, -1.5]),
    min_tokens=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_any_block_equals_plain_decoding(
    prompt: list[int],
    output: list[int],
    drafts: list[int],
    repetition: float,
    frequency: float,
    presence: float,
    min_tokens: int,
    seed: int,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        min_tokens=min_tokens,
    )
    generator = torch.Generator().manual_seed(seed)
    logits = 5.0 * torch.randn(1, len(drafts) + 1, VOCAB, generator=generator)
    block = adjust_logits(logits, [row(params, prompt, output, drafts)])
    for j in range(len(drafts) + 1):
        so_far = output + drafts[:j]
        plain = adjust_logits(logits[:, j : j + 1], [row(params, prompt, so_far, [])])
        assert torch.equal(block[0, j], plain[0, 0])
        expected = by_the_book(logits[0, j], params, prompt, so_far)
        torch.testing.assert_close(block[0, j].double(), expected, rtol=1e-5, atol=1e-5)


def greedy_text(
    table: Tensor, params: SamplingParams, drafted: list[int], pattern: int, length: int
) -> list[int]:
    """Greedy decoding on a table of logits; `drafted` is proposed, wrong at every pattern-th."""
    prompt, output = [1, 2], []
    while len(output) < length:
        start = len(output)
        drafts = drafted[start : start + 4]
        if pattern:
            drafts = [(t + 1) % VOCAB if (i + 1) % pattern == 0 else t
                      for i, t in enumerate(drafts)]  # fmt: skip
        history = [*prompt, *output, *drafts]
        logits = table[history[len(prompt) + start - 1 :]][None]
        logits = adjust_logits(logits, [row(params, prompt, output, drafts)])
        drafts_tensor = torch.tensor([drafts], dtype=torch.long).view(1, len(drafts))
        verdict = accept_greedy(drafts_tensor, [len(drafts)], choose(logits))
        output += [*drafts[: verdict.accepted_len[0]], verdict.next_ids[0]]
    return output[:length]


@pytest.mark.parametrize("name", SETTINGS)
def test_speculative_text_equals_plain_text(name: str) -> None:
    """BC-18: every draft right, or right up to the first, second or third."""
    params = SETTINGS[name]
    table = 2.0 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(11))
    plain = greedy_text(table, params, [], 0, 40)
    for pattern in (0, 1, 2, 3):
        assert greedy_text(table, params, plain + [0] * 8, pattern, 40) == plain


def test_the_minimum_counts_tokens_not_cycles() -> None:
    """BC-09: with 4 of 6 tokens there and 3 drafts, the first two rows cannot end, the rest can."""
    params = SamplingParams(min_tokens=6, stop_token_ids=(7,))
    block = adjust_logits(torch.zeros(1, 4, VOCAB), [row(params, [1], [2] * 4, [3, 3, 3])])
    assert block.isinf().nonzero().tolist() == [[0, 0, END], [0, 0, 7], [0, 1, END], [0, 1, 7]]


def test_nothing_asked_gives_the_very_same_tensor() -> None:
    logits = torch.randn(2, 3, VOCAB).bfloat16()
    done = row(SamplingParams(min_tokens=2), [1], [2, 2], [3])
    plain = row(SamplingParams(temperature=0.5, top_k=3), [1], [2], [3, 4])
    assert adjust_logits(logits, [plain, done]) is logits
    assert adjust_logits(logits, []) is logits


def test_only_the_asking_sequence_changes() -> None:
    logits = torch.randn(3, 3, VOCAB).bfloat16()
    before = logits.clone()
    quiet = row(SamplingParams(), [1], [2], [3])
    out = adjust_logits(logits, [quiet, row(SETTINGS["all"], [1], [2], [3]), quiet])
    assert out.dtype == torch.float32
    assert torch.equal(out[[0, 2]], logits[[0, 2]].float())
    assert not torch.equal(out[1, :2], logits[1, :2].float())
    assert torch.equal(logits, before)


def test_minus_infinity_survives_penalties() -> None:
    logits = torch.full((1, 1, VOCAB), -INF)
    logits[0, 0, 2] = 1.0
    out = adjust_logits(logits, [row(SETTINGS["all"], [1, 2], [3, 4], [])])
    assert not out.isnan().any()
    assert int(choose(out)) == 2


@pytest.mark.parametrize("token_id", [-1, VOCAB, 10**9])
@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_an_id_outside_the_vocabulary_is_an_error(name: str, token_id: int) -> None:
    settings_ = {"logit_bias": {token_id: 1.0, 0: 1.0}, "stop_token_ids": (0, token_id)}
    params = SamplingParams(**{name: settings_[name]})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"{name} has token id {token_id}.*0 to {VOCAB - 1}"):
        check_params(params, VOCAB)


def test_more_logprobs_than_tokens_are_an_error() -> None:
    with pytest.raises(ConfigError, match="logprobs is 13"):
        check_params(SamplingParams(logprobs=13), VOCAB)
    check_params(SamplingParams(logprobs=12, logit_bias={0: 1.0}, stop_token_ids=(11,)), VOCAB)


def test_a_repetition_penalty_of_zero_is_an_error() -> None:
    """BC-18."""
    with pytest.raises(ConfigError, match="repetition_penalty is 0"):
        SamplingParams(repetition_penalty=0.0)


def test_wrong_shapes_are_errors() -> None:
    with pytest.raises(ValueError, match="2 sequences of logits and 1 rows"):
        adjust_logits(torch.zeros(2, 1, VOCAB), [row(SamplingParams(), [1], [], [])])
    with pytest.raises(ValueError, match="3 rows; there are 2"):
        adjust_logits(torch.zeros(1, 2, VOCAB), [row(SamplingParams(), [1], [], [2, 3])])
