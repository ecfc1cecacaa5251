"""Hidden states recorded while answering equal those of a pass over the whole text."""

from __future__ import annotations

import pytest
import torch

from blockdraft.drafters.base import Drafter
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.errors import ConfigError
from blockdraft.targets.base import RowBatch
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import random_prompts

LAYERS = (0, 2)


@pytest.mark.parametrize("drafter", [None, NgramDrafter()], ids=["plain", "ngram"])
def test_recorded_states_are_those_of_the_whole_text(drafter: Drafter | None) -> None:
    target = tiny_target()
    llm = make_llm(target, drafter)
    prompts = random_prompts([6, 13, 1, 40, 9])
    params = SamplingParams(max_tokens=12)
    outputs = dict(llm.generate_each(prompts, params, record_layer_ids=LAYERS))
    assert len(outputs) == len(prompts)
    for index, output in outputs.items():
        tokens = [*prompts[index], *output.token_ids]
        cache = target.new_cache(1, len(tokens))
        ids = torch.tensor([tokens[:-1]])
        whole = target.forward(cache, RowBatch(ids, (len(tokens) - 1,), layer_ids=LAYERS))
        assert whole.features is not None
        assert output.features is not None
        assert output.features.shape == whole.features[0].shape
        torch.testing.assert_close(output.features, whole.features[0], rtol=1e-3, atol=1e-4)


def test_nothing_is_recorded_unless_asked_for() -> None:
    [(_, output)] = make_llm(tiny_target(), None).generate_each(random_prompts([5]))
    assert output.features is None


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="record_layer_ids is"):
        list(make_llm(tiny_target(), None).generate_each("a", record_layer_ids=(99,)))
