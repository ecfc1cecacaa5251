"""The teacher's logits are those that the target chose each token from."""

from __future__ import annotations

import torch

from blockdraft.data.collate import collate
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.drafters.draft_vocab import DraftVocab
from blockdraft.targets.base import RowBatch
from blockdraft.training.head import Head
from blockdraft.training.objectives.blocks import slot_rows
from blockdraft.training.teacher import Teacher
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import random_prompts


def test_logits_of_slots_equal_the_targets() -> None:
    """Recorded while answering, with the last layer beside the taps; greedy tokens are argmax."""
    target = tiny_target()
    last, width = target.info.num_layers - 1, target.info.hidden_size
    [prompt] = random_prompts([6])
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    [(_, output)] = make_llm(target, None).generate_each(
        [prompt], params, record_layer_ids=(0, last)
    )
    tokens = torch.tensor([*prompt, *output.token_ids])
    assert output.features is not None
    sample = FeatureSample(tokens, len(prompt), output.features, "a")
    batch = collate([sample], [torch.tensor([6, 9, 23])], 5, teacher_width=width)
    assert batch.features.shape[1] == width
    slots = slot_rows(batch, DraftVocab(None, target.info.vocab_size))
    head = Head(target.head_rows(torch.arange(target.info.vocab_size))[0])
    teacher = Teacher(head, target.final_norm, target.config.norm_eps)
    logits = torch.cat([teacher(batch, slots, slice(0, 4)), teacher(batch, slots, slice(4, None))])
    assert torch.equal(logits.argmax(-1), slots.labels)
    whole = target.forward(
        target.new_cache(1, len(tokens)), RowBatch(tokens[None, :-1], (len(tokens) - 1,))
    )
    assert whole.logits is not None
    positions = torch.tensor([a + k for a in (6, 9, 23) for k in range(1, 5) if a + k < 26])
    torch.testing.assert_close(logits, whole.logits[0, positions - 1], rtol=1e-3, atol=1e-3)
