"""The stream: every sample once a pass, anchors anew, and the same steps for any process count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from blockdraft.data.collate import BlockBatch
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.data.stream import BlockStream, StreamSizes, usable
from blockdraft.errors import ConfigError

SIZES = StreamSizes(block_size=4, num_anchors=3, sequences_per_step=4, sequences_per_pass=2)


class Source:
    """Ten samples; sample i has 12 + i tokens."""

    def batch(self, indices: Sequence[int]) -> list[FeatureSample]:
        return [
            FeatureSample(torch.arange(12 + i), 4, torch.full((11 + i, 2), float(i)), f"s{i}")
            for i in indices
        ]


def _stream(**more: int) -> BlockStream:
    return BlockStream(Source(), range(10), SIZES, **more)


def _key(batch: BlockBatch) -> tuple[object, ...]:
    return batch.sample_ids, tuple(batch.anchors.tolist())


def test_each_sample_comes_once_a_pass_in_a_new_order() -> None:
    stream = _stream()
    ids = [i for _ in range(10) for i in next(stream).sample_ids]
    assert Counter(ids) == {f"s{i}": 2 for i in range(10)}
    assert ids[:10] != ids[10:]


def test_anchors_are_drawn_anew_in_each_pass() -> None:
    """And differ between seeds."""
    stream, anchors = _stream(), []
    for _ in range(10):
        batch = next(stream)
        starts = batch.anchors.split(list(batch.block_counts))
        anchors += [
            tuple(a.tolist()) for i, a in zip(batch.sample_ids, starts, strict=True) if i == "s7"
        ]
    assert len(set(anchors)) == 2
    assert _key(next(_stream(seed=1))) != _key(next(_stream(seed=0)))


@pytest.mark.parametrize("num", [1, 2])
def test_a_step_does_not_depend_on_the_number_of_processes(num: int) -> None:
    whole = _stream()
    shares = [_stream(rank=r, num_processes=num) for r in range(num)]
    for _ in range(7):
        expected = [_key(next(whole)) for _ in range(2)]
        parts = [_key(next(s)) for _ in range(shares[0].num_passes) for s in shares]
        assert parts == expected


def test_resumes_where_it_stood() -> None:
    straight, first, second = _stream(), _stream(), _stream()
    for _ in range(6):
        next(straight)
        next(first)
    second.load_state_dict(first.state_dict())
    assert [_key(next(second)) for _ in range(6)] == [_key(next(straight)) for _ in range(6)]


def test_a_state_between_two_passes_of_a_step_is_refused() -> None:
    stream = _stream()
    next(stream)
    with pytest.raises(AssertionError, match="between steps"):
        stream.state_dict()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="no sample is left"):
        BlockStream(Source(), [], SIZES)
    with pytest.raises(ConfigError, match="cannot be dealt"):
        BlockStream(Source(), range(10), replace(SIZES, sequences_per_pass=3))


def test_answers_of_one_token_are_not_usable() -> None:
    assert usable([3, 3, 3], [3, 4, 5]) == [2]
