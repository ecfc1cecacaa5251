"""A draft vocabulary made whole loads in z-lab's package and drafts there what it drafts here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.interop.zlab import write_zlab
from blockdraft.interop.zlab_expand import expand_vocab
from tests.drafters.tiny import batch_of, features_for, random_tensors, tiny_drafter_config
from tests.drafters.vocab import CLASSES
from tests.fakes.models import NUM_REAL_TOKENS, tiny_target

zlab = pytest.importorskip(
    "tests.parity.test_zlab_backbone", reason="z-lab's package `dflash` is not installed"
)

#: Every token the tiny target says: the other rows of its head are zero, never among the best 16.
REAL = torch.arange(NUM_REAL_TOKENS)


def made(method: str, config: Any, tensors: Any) -> Any:
    drafter = CLASSES[method].from_tensors(config, tensors)
    drafter.bind(tiny_target())
    return drafter


def draft_once(drafter: Any, length: int, anchor: int) -> Any:
    """What is drafted after `length` features, and the block it came from."""
    context = drafter.new_context(1, 80)
    context.append(features_for(drafter.model.config, length)[None], 0, [0], [length])
    batch = batch_of([anchor], [length])
    block = drafter.draft(context, batch)
    return block, drafter.select(block, batch).ids


@pytest.mark.parametrize("anchor", [20, 157], ids=["inside", "outside"])
@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_drafts_are_equal_three_ways(tmp_path: Path, method: str, anchor: int) -> None:
    """The subset here, the whole of it here, and the whole of it in z-lab's package."""
    config = tiny_drafter_config(method, draft_vocab_size=NUM_REAL_TOKENS)
    tensors = {**random_tensors(config), DRAFT_VOCAB_IDS: REAL}
    whole_config, whole = expand_vocab(config, tensors)
    write_zlab(tmp_path, whole_config, whole)
    reference = zlab.load_reference(tmp_path, method)
    some, expanded = made(method, config, tensors), made(method, whole_config, whole)
    for length in (1, 9, 16, 40):
        block, drafts = draft_once(some, length, anchor)
        assert torch.equal(drafts, draft_once(expanded, length, anchor)[1])
        run = zlab.ReferenceRun(reference, tiny_target())
        hidden = run.draft(features_for(config, length), 0, anchor, config.block_size)
        torch.testing.assert_close(block.hidden, hidden, rtol=1e-4, atol=1e-4)
        logits = reference.compute_logits(hidden, tiny_target().head)
        torch.testing.assert_close(block.logits, logits[..., REAL], rtol=1e-4, atol=1e-4)
        assert torch.equal(drafts, zlab.reference_drafts(reference, hidden, logits, anchor))
