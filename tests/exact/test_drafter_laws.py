"""The real drafters' own q: every piece of every uniform is drawn as reported, and is lossless.

`select` is run once in the middle of each piece into which the reported q cuts [0, 1), on every
path: the token drawn must be the piece's token, so what is drawn has exactly the law q. That law
then goes through the real acceptance rule against a toy target, by enumeration.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blockdraft.drafters.block_model import DraftedBlock
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.types import Proposal, SamplingParams
from tests.drafters.tiny import batch_of, features_for, random_tensors, tiny_drafter_config
from tests.exact.enumeration import Case, output_law, target_law
from tests.exact.toys import ToyDrafter, ToyTarget
from tests.fakes.models import tiny_target

VOCAB, ANCHOR, CONTEXT_LEN, K = 5, 2, 6, 2
START = (0, ANCHOR)
SUBSET = [0, 1, 3]
TEMPERATURE = 0.8

Drafting = tuple[DFlashDrafter | DFlash2Drafter, DraftedBlock]


@pytest.fixture(params=["dflash", "dflash2", "dflash subset", "dflash2 subset"])
def drafting(request: pytest.FixtureRequest) -> Drafting:
    """A drafter for a vocabulary of 5 with 3 candidates a slot, and one drafted block.

    Or one that drafts from a subset of 3 tokens, 2 candidates a slot; the anchor is outside.
    """
    method, *subset = request.param.split()
    options = {"selector_top_k": 2 if subset else 3} if method == "dflash2" else {}
    options |= {"draft_vocab_size": len(SUBSET)} if subset else {}
    config = tiny_drafter_config(
        method, vocab_size=VOCAB, mask_token_id=4, block_size=K + 1, **options
    )
    cls = DFlash2Drafter if method == "dflash2" else DFlashDrafter
    tensors = random_tensors(config)
    if subset:
        tensors[DRAFT_VOCAB_IDS] = torch.tensor(SUBSET)
    drafter = cls.from_tensors(config, tensors)
    drafter.bind(tiny_target(vocab_size=VOCAB))
    context = drafter.new_context(1, 32)
    context.append(features_for(config, CONTEXT_LEN)[None], 0, [0], [CONTEXT_LEN])
    return drafter, drafter.draft(context, batch_of([ANCHOR], [CONTEXT_LEN], width=K))


def select(drafting: Drafting, u: Tensor) -> Proposal:
    """One proposal for each row of uniforms, all from the same block."""
    drafter, drafted = drafting
    b = len(u)
    block = DraftedBlock(drafted.hidden.expand(b, -1, -1), drafted.logits.expand(b, -1, -1))
    batch = batch_of(
        [ANCHOR] * b, [CONTEXT_LEN] * b, temperatures=[TEMPERATURE] * b, uniforms=u, width=K
    )
    return drafter.select(block, batch)


def every_path(drafting: Drafting) -> tuple[Proposal, list[list[int]]]:
    """A proposal from the middle of every piece, and the piece (candidate) of each slot."""
    branches: list[tuple[list[float], list[int]]] = [([], [])]
    for slot in range(K):
        u = torch.tensor([us + [0.5] * (K - slot) for us, _ in branches], dtype=torch.float64)
        q = select(drafting, u).q_probs
        assert q is not None
        ends = q[:, slot].double().cumsum(-1)
        ends = ends / ends[:, -1:]
        middles = (ends + torch.cat([torch.zeros(len(u), 1), ends[:, :-1]], 1)) / 2
        branches = [
            ([*us, float(middles[i, c])], [*pieces, c])
            for i, (us, pieces) in enumerate(branches)
            for c in range(q.shape[-1])
        ]
    u = torch.tensor([us for us, _ in branches], dtype=torch.float64)
    return select(drafting, u), [pieces for _, pieces in branches]


def test_every_piece_draws_its_token(drafting: Drafting) -> None:
    proposal, pieces = every_path(drafting)
    assert proposal.q_ids is not None
    expected = proposal.q_ids.gather(-1, torch.tensor(pieces)[..., None])[..., 0]
    assert torch.equal(proposal.ids, expected)


@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=TEMPERATURE), SamplingParams(temperature=1.2, top_k=3, top_p=0.9)],
)
def test_the_reported_q_is_lossless(drafting: Drafting, params: SamplingParams) -> None:
    """The law q, as reported on every path, under the real rule: the target's law, to 1e-6."""
    proposal, _ = every_path(drafting)
    assert proposal.q_ids is not None
    assert proposal.q_probs is not None
    num_candidates = proposal.q_ids.shape[-1]
    shape = (VOCAB, VOCAB, K, VOCAB, num_candidates)
    ids = proposal.q_ids[0][:, None].expand(shape)
    probs = torch.full(shape, 1 / num_candidates, dtype=torch.float64)
    for path, q in zip(proposal.ids.tolist(), proposal.q_probs.double(), strict=True):
        for slot, before in enumerate([ANCHOR, *path[:-1]]):
            probs[:, :, slot, before] = q[slot] / q[slot].sum()
    target = ToyTarget.random(VOCAB, params)
    law = output_law(Case(target, ToyDrafter(ids, probs)), START, (K,), K + 1)
    torch.testing.assert_close(law, target_law(target, START, K + 1), rtol=0.0, atol=1e-6)
