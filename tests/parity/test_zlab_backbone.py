"""Block hidden states, candidates, scores and greedy drafts equal those of z-lab's own package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.interop.zlab import write_zlab
from tests.drafters.tiny import batch_of, features_for, random_tensors, tiny_drafter

reference = pytest.importorskip("dflash.model", reason="z-lab's package `dflash` is not installed")

#: Rows accepted in each of the cycles that follow a prompt: all, none, some.
CYCLES = (8, 1, 3, 8, 2)
PROMPT_LENS = (1, 9, 16, 40)


def load_reference(folder: Path, method: str) -> Any:
    name = "DFlash2DraftModel" if method == "dflash2" else "DFlashDraftModel"
    model = getattr(reference, name).from_pretrained(folder, dtype=torch.float32)
    return model.eval().requires_grad_(False)


class ReferenceRun:
    """z-lab's drafting of one sequence: context rows enter with the next block, then a crop."""

    def __init__(self, model: Any, target: Any) -> None:
        self.model, self.target = model, target
        self.cache = reference._make_cache(model.config)

    @torch.inference_mode()
    def draft(self, new_features: Tensor, start: int, anchor: int, width: int) -> Tensor:
        """Final-normed rows of the slots to fill; `new_features` stand at start.. ."""
        end = start + len(new_features)
        ids = torch.tensor([[anchor] + [self.model.mask_token_id] * (width - 1)])
        scale = reference._draft_value(self.model.config, "input_embedding_scale", 1.0)
        hidden = self.model(
            target_hidden=new_features[None],
            noise_embedding=self.target.embed(ids) * scale,
            position_ids=torch.arange(start, end + width)[None],
            past_key_values=self.cache,
            use_cache=True,
        )
        reference._crop_to(self.cache, end)
        return hidden[:, 1:]


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
@pytest.mark.parametrize(
    ("windows", "causal"),
    [
        ((None, None), (False, False)),
        ((16, 16), (False, False)),
        ((16, 16), (True, True)),
        ((16, None), (False, False)),
        ((16, None), (True, False)),
        ((None, None), (True, True)),
    ],
)
def test_cycles_equal_the_reference(
    tmp_path: Path,
    method: str,
    windows: tuple[int | None, ...],
    causal: tuple[bool, ...],
) -> None:
    """Contexts shorter than, as long as and longer than the window, over several cycles."""
    options = {"output_multiplier": 0.7, "final_logit_softcapping": 8.0}
    drafter = tiny_drafter(
        method, windows=windows, causal=causal, input_embedding_scale=2.0, **options
    )
    model, config = drafter.model, drafter.model.config
    write_zlab(tmp_path, config, random_tensors(config))
    zlab_model = load_reference(tmp_path, method)
    for prompt_len in PROMPT_LENS:
        run_cycles(drafter, ReferenceRun(zlab_model, model.target), prompt_len)


def run_cycles(drafter: Any, run: ReferenceRun, prompt_len: int) -> None:
    model, config = drafter.model, drafter.model.config
    features = features_for(config, 80)
    context, start = model.new_context(1, 80), 0
    for cycle, new_len in enumerate((prompt_len, *CYCLES)):
        end, anchor = start + new_len, 20 + cycle
        expected = run.draft(features[start:end], start, anchor, config.block_size)
        context.append(features[None, start:end], 0, [start], [new_len])
        batch = batch_of([anchor], [end])
        drafted = model.draft(context, batch)
        torch.testing.assert_close(drafted.hidden, expected, rtol=1e-5, atol=1e-5)
        logits = run.model.compute_logits(expected, model.target.head)
        ours = model.transform(drafted.logits)
        torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-5)
        drafts = drafter.select(drafted, batch).ids
        assert torch.equal(drafts, reference_drafts(run.model, expected, logits, anchor))
        if isinstance(drafter, DFlash2Drafter):
            check_lattice(drafter, drafted, run.model, expected, anchor)
        start = end


def reference_drafts(model: Any, hidden: Tensor, logits: Tensor, anchor: int) -> Tensor:
    if not hasattr(model, "candidate_selector"):
        return logits.argmax(-1)
    path, _, _ = model.candidate_selector.select(hidden, logits, torch.tensor([anchor]), 0.0)
    return path


def check_lattice(
    drafter: DFlash2Drafter, drafted: Any, model: Any, hidden: Tensor, anchor: int
) -> None:
    """Same candidates; and along our greedy path and a random one, the reference's scores."""
    lattice = drafter.lattice(drafted, torch.tensor([anchor]))
    selector, head = model.candidate_selector, drafter.model.target.head
    logits = model.compute_logits(hidden, head)
    ids = torch.topk(logits, selector.top_k, dim=-1)[1]
    assert torch.equal(lattice.ids.sort(-1)[0], ids.sort(-1)[0])
    gate = selector.hidden_projection(hidden)
    for slot in range(ids.shape[1]):
        before = torch.tensor([anchor]) if slot == 0 else lattice.ids[0, slot - 1]
        edges = torch.einsum(
            "pr,cr->pc",
            selector.predecessor_codebook(before) * gate[0, slot],
            selector.successor_codebook(lattice.ids[0, slot]),
        )
        expected = logits[0, slot, lattice.ids[0, slot]] + edges
        torch.testing.assert_close(
            lattice.scores[0, slot], expected.expand(selector.top_k, -1), rtol=1e-5, atol=2e-5
        )
