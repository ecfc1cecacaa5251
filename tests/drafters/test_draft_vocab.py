"""Drafting from a subset of the vocabulary: what is drafted, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS, DraftVocab, read_draft_vocab
from blockdraft.drafters.init import init_drafter
from blockdraft.drafters.tensors import check_tensors
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.types import Proposal
from tests.drafters.slow_reference import slow_edge
from tests.drafters.tiny import batch_of, features_for, random_tensors, tiny_drafter_config
from tests.drafters.tiny import tiny_drafter as whole_drafter
from tests.drafters.vocab import IDS, restricted, subset_config, subset_drafter
from tests.fakes.models import tiny_target

METHODS = pytest.mark.parametrize("method", ["dflash", "dflash2"])


def drafted(drafter: Any, batch: Any) -> Any:
    config = drafter.model.config
    context = drafter.new_context(len(batch.positions), 64)
    for slot, n in enumerate(batch.positions):
        context.append(features_for(config, n, seed=slot)[None], slot, [0], [n])
    return drafter.draft(context, batch)


def propose(drafter: Any, batch: Any) -> Proposal:
    proposal: Proposal = drafter.select(drafted(drafter, batch), batch)
    return proposal


def uniforms(b: int, seed: int = 0) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(b, 7, dtype=torch.float64, generator=gen)


def test_rows_and_tokens_are_inverse_and_others_share_a_row() -> None:
    ids = torch.tensor([2, 3, 7])
    vocab = DraftVocab(ids, 9)
    assert torch.equal(vocab.tokens(vocab.rows(ids)), ids)
    assert vocab.rows(torch.tensor([[0, 2], [7, 8]])).tolist() == [[3, 0], [2, 3]]


def test_the_whole_vocabulary_is_its_own_rows() -> None:
    tokens = torch.tensor([5, 0])
    vocab = DraftVocab(None, 9)
    assert vocab.rows(tokens) is tokens
    assert vocab.tokens(tokens) is tokens


@METHODS
def test_the_head_is_the_whole_head_restricted(method: str) -> None:
    batch = batch_of([4, 5], [3, 9])
    some, whole = drafted(subset_drafter(method), batch), drafted(whole_drafter(method), batch)
    torch.testing.assert_close(some.hidden, whole.hidden)
    torch.testing.assert_close(some.logits, whole.logits[..., IDS])


def test_dflash_drafts_the_best_token_of_the_subset() -> None:
    batch = batch_of([4, 5], [3, 9])
    logits = drafted(whole_drafter("dflash"), batch).logits
    expected = IDS[logits[..., IDS].argmax(-1)]
    assert torch.equal(propose(subset_drafter("dflash"), batch).ids, expected)


@pytest.mark.parametrize("anchors", [[4, 6], [5, 155]], ids=["one outside", "both outside"])
def test_dflash2_walks_like_a_plain_loop(anchors: list[int]) -> None:
    """Codebooks by row: an anchor outside the subset has the last row of the predecessors."""
    drafter, tensors = subset_drafter("dflash2"), random_tensors(subset_config("dflash2"))
    batch = batch_of(anchors, [3, 9])
    block = drafted(drafter, batch)
    ids = drafter.select(block, batch).ids
    for i in range(2):
        inside = (anchors[i] == IDS).nonzero()
        before = int(inside) if len(inside) else len(IDS)
        for slot in range(7):
            logits, hidden = block.logits[i, slot], block.hidden[i, slot]
            scores = {
                row: float(logits[row]) + slow_edge(tensors, hidden, before, row)
                for row in logits.topk(16).indices.tolist()
            }
            before = max(scores, key=lambda row: scores[row])
            assert ids[i, slot] == IDS[before]


@METHODS
def test_a_restricted_drafter_drafts_what_the_whole_one_would(method: str) -> None:
    """Codebooks cut out of those of a whole drafter, where other tokens have no chance."""
    config = tiny_drafter_config(method)
    whole, some = whole_drafter(method), restricted(method, random_tensors(config))
    for temperature in (0.0, 0.8):
        batch = batch_of([4, 0], [3, 9], temperatures=[temperature] * 2, uniforms=uniforms(2))
        block = drafted(whole, batch)
        lost = torch.full_like(block.logits, -1e4)
        logits = lost.index_copy(-1, IDS, block.logits[..., IDS])
        expected = whole.select(dataclasses.replace(block, logits=logits), batch)
        got = propose(some, batch)
        assert torch.equal(got.ids, expected.ids)
        if method == "dflash2" and temperature:
            assert torch.equal(got.q_ids, expected.q_ids)
            torch.testing.assert_close(got.q_probs, expected.q_probs)


@METHODS
def test_no_draft_and_no_candidate_is_outside(method: str) -> None:
    drafter = subset_drafter(method)
    for seed in range(5):
        batch = batch_of([5, 6], [3, 9], temperatures=[3.0, 1e-6], uniforms=uniforms(2, seed))
        proposal = propose(drafter, batch)
        assert bool(torch.isin(proposal.ids, IDS).all())
        assert proposal.q_ids is not None
        assert bool(torch.isin(proposal.q_ids, IDS).all())
        torch.testing.assert_close(proposal.q_probs.sum(-1), torch.ones(2, 7))


@METHODS
def test_draws_do_not_depend_on_neighbours(method: str) -> None:
    drafter, u = subset_drafter(method), uniforms(2)
    both = propose(drafter, batch_of([4, 5], [3, 3], temperatures=[1.0, 0.7], uniforms=u))
    alone = propose(drafter, batch_of([4], [3], temperatures=[1.0], uniforms=u[:1]))
    assert torch.equal(alone.ids[0], both.ids[0])


@METHODS
def test_a_fresh_drafter_has_the_shapes_and_no_effect(method: str) -> None:
    ids = [1, 4, 9, *range(20, 60)]
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 1e4,
    }
    config, tensors = init_drafter(
        tiny_target().info, shape, method=method, mask_token_id=155, num_taps=1, draft_vocab_ids=ids
    )
    check_tensors(config, tensors)
    assert config.draft_vocab_size == config.num_draftable_tokens == 43
    assert tensors[DRAFT_VOCAB_IDS].tolist() == ids
    if method == "dflash2":
        part = "candidate_selector"
        assert tensors[f"{part}.predecessor_codebook"].shape == (44, 64)
        assert tensors[f"{part}.successor_codebook"].shape == (43, 64)
        assert not bool(tensors[f"{part}.successor_codebook"].any())


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "draft_vocab_ids is empty"),
        ([3, 160], "draft_vocab_ids holds 160; token ids are 0 to 159"),
        ([-1, 3], "draft_vocab_ids holds -1; token ids are 0 to 159"),
        ([3, 2, 9], "draft_vocab_ids holds 2 after 3; list every token once, in ascending order"),
        ([3, 3], "holds 3 after 3"),
        ([3, 155], "holds the mask token 155, which no text holds; leave it out"),
        ([1, 2, 3], "selector_top_k is 16; it must be 1 to 3"),
    ],
)
def test_wrong_subsets_are_refused_at_the_start(ids: list[int], message: str) -> None:
    shape = {"intermediate_size": 96, "num_attention_heads": 4, "rope_theta": 1e4}
    with pytest.raises(ConfigError, match=message):
        init_drafter(
            tiny_target().info,
            shape,
            method="dflash2",
            mask_token_id=155,
            num_taps=1,
            draft_vocab_ids=ids,
        )


@pytest.mark.parametrize("size", [-1, 160, 161])
def test_wrong_sizes_are_refused(size: int) -> None:
    with pytest.raises(
        ConfigError, match=f"draft_vocab_size is {size}; it must be 1 to 159, or 0 for the whole"
    ):
        tiny_drafter_config(draft_vocab_size=size)


def without_ids(t: dict[str, Tensor]) -> None:
    t.pop(DRAFT_VOCAB_IDS)


def swapped(t: dict[str, Tensor]) -> None:
    t[DRAFT_VOCAB_IDS] = t[DRAFT_VOCAB_IDS].flip(0)


def of_floats(t: dict[str, Tensor]) -> None:
    t[DRAFT_VOCAB_IDS] = t[DRAFT_VOCAB_IDS].float()


def with_whole_codebooks(t: dict[str, Tensor]) -> None:
    t["candidate_selector.predecessor_codebook"] = torch.ones(160, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_ids, "missing draft_vocab_ids"),
        (swapped, "draft_vocab_ids holds .* in ascending order"),
        (of_floats, r"draft_vocab_ids holds torch.float32, not token ids \(torch.int64\)"),
        (with_whole_codebooks, r"predecessor_codebook is \(160, 12\), not \(52, 12\)"),
    ],
)
def test_wrong_tensors_are_listed(change: Any, message: str) -> None:
    config = subset_config("dflash2")
    tensors = random_tensors(config)
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        check_tensors(config, tensors)


def test_a_list_without_a_size_is_unexpected() -> None:
    config: DFlashConfig = tiny_drafter_config("dflash")
    tensors = {**random_tensors(config), DRAFT_VOCAB_IDS: IDS}
    with pytest.raises(CheckpointError, match="unexpected draft_vocab_ids"):
        check_tensors(config, tensors)


@pytest.mark.parametrize("text", ["[1, 5, 9]", " 1 5\n9\n"])
def test_files_of_ids(tmp_path: Path, text: str) -> None:
    (tmp_path / "ids").write_text(text)
    assert read_draft_vocab(tmp_path / "ids") == [1, 5, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 two 3", "holds no token ids .*'two'.*; give a JSON list or numbers alone"),
        ("[1, 2", "holds no token ids"),
        ("[1, 2.5]", "holds 2.5; give token ids, whole numbers"),
        ("[1, true]", "holds True; give token ids, whole numbers"),
    ],
)
def test_files_of_anything_else_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "ids").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_draft_vocab(tmp_path / "ids")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ids cannot be read: No such file"):
        read_draft_vocab(tmp_path / "ids")
