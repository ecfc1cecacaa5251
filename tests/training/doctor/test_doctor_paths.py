"""Faults of the serving code itself: planted there, found where the paths part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.cache.draft_context import KVDraftContext
from blockdraft.drafters import dflash2
from blockdraft.drafters.backbone import Backbone
from blockdraft.drafters.block_model import BlockModel
from blockdraft.drafters.draft_vocab import DraftVocab
from blockdraft.layers.conv import BlockConv
from tests.training.doctor.conftest import Trained
from tests.training.doctor.spoiling import found

Patch = pytest.MonkeyPatch


def late_states(patch: Patch) -> None:
    """Context rows of one position earlier: the anchor's own would be the last."""
    append = KVDraftContext.append

    def shifted(self: Any, features: Tensor, *places: Any) -> None:
        append(self, features.roll(1, 1), *places)

    patch.setattr(KVDraftContext, "append", shifted)


def other_positions(patch: Patch) -> None:
    """Keys of the context turned as if they stood one position later."""
    inject = Backbone.inject

    def later(self: Any, features: Tensor, positions: Tensor) -> Any:
        return inject(self, features, positions + 1)

    patch.setattr(Backbone, "inject", later)


def leaking_convolution(patch: Patch) -> None:
    """The second tap of a block's first row reads the last row of a block."""
    enter = BlockConv.enter

    def leak(self: Any, rows: Tensor) -> Any:
        mixed, taps = enter(self, rows)
        return mixed + 0.2 * rows.roll(1, 1), taps

    patch.setattr(BlockConv, "enter", leak)


def scaled_head(patch: Patch) -> None:
    """Logits that are not the head's own."""
    patch.setattr(DraftVocab, "tokens", lambda self, rows: (rows + 1) % 270)


def late_predecessors(patch: Patch) -> None:
    """The selector takes the candidate two slots back for the one before."""
    scores = dflash2.edge_scores

    def off(unary: Tensor, rows: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
        return scores(unary, rows.roll(1, 1), anchors, *rest)

    patch.setattr(dflash2, "edge_scores", off)


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (late_states, "hidden"),
        (other_positions, "hidden"),
        (leaking_convolution, "hidden"),
        (scaled_head, "candidates"),
        (late_predecessors, "path"),
    ],
)
def test_where_the_paths_part(
    trained: Trained, monkeypatch: Patch, plant: Callable[[Patch], None], check: str
) -> None:
    plant(monkeypatch)
    report = trained.examine()
    assert "the paths part" in found(report, check).what
    parted = [each.check for each in report.faults if "the paths part" in each.what]
    assert parted == [check]  # what follows from it is not told


def test_a_loop_that_feeds_other_states(trained: Trained, monkeypatch: Patch) -> None:
    """Same numbers at the same anchors, but decoding accepts less: states of later cycles."""
    append = KVDraftContext.append

    def forgetful(self: Any, features: Tensor, slot: int, starts: Any, lens: Any) -> None:
        is_prefill = all(start == 0 for start in starts)
        append(self, features if is_prefill else 0 * features, slot, starts, lens)

    monkeypatch.setattr(KVDraftContext, "append", forgetful)
    report = trained.examine()
    assert "does not do what training predicts" in found(report, "loop").what
    assert [each.check for each in report.faults] == ["loop"]


def test_drafts_that_are_lost_on_the_way(trained: Trained, monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        BlockModel, "draft_lens", lambda self, batch, finite: (0,) * len(batch.max_lens)
    )
    report = trained.examine()
    assert "1.00 tokens a cycle" in found(report, "acceptance").what
    assert "as good as never accepted" in found(report, "acceptance").what


def test_figures_tell_how_far(trained: Trained, monkeypatch: Patch) -> None:
    other_positions(monkeypatch)
    figures = trained.examine().figures
    assert figures["hidden_median"] > 0.01
    assert "candidates_shared" not in figures
    assert torch.isfinite(torch.tensor(figures["hidden_p95"]))
