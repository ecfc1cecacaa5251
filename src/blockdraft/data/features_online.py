"""Hidden states made when training asks for them: no disk, at the cost of the target's passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from blockdraft.data.answers import Answer
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.errors import ConfigError
from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import RowBatch, Target


class OnlineFeatures:
    """The same samples as a `FeatureStore`, recomputed by the target at each call.

    Args:
        answers: the samples.
        target: whose states are wanted.
        layer_ids: layers (0-based outputs, before the final norm).
        max_pass_tokens: most tokens of a pass, padding included; a longer sample goes alone.
    Raises: ConfigError if there is no such layer.
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        target: Target,
        layer_ids: tuple[int, ...],
        *,
        max_pass_tokens: int = 8192,
    ) -> None:
        most = target.info.num_layers - 1
        if not layer_ids or any(not 0 <= i <= most for i in layer_ids):
            raise ConfigError(f"layer_ids is {list(layer_ids)}; give some of 0 to {most}")
        self.answers, self.layer_ids = list(answers), layer_ids
        self._target, self._max_pass_tokens = target, max_pass_tokens

    def __len__(self) -> int:
        return len(self.answers)

    def sample(self, i: int) -> FeatureSample:
        """Sample `i`; `batch` is faster for several."""
        return self.batch([i])[0]

    def batch(self, indices: Sequence[int]) -> list[FeatureSample]:
        """Several samples, those of like length in one pass."""
        order = sorted(indices, key=lambda i: len(self.answers[i].all_ids))
        found: dict[int, FeatureSample] = {}
        for group in self._groups(order):
            found |= zip(group, self._run([self.answers[i] for i in group]), strict=True)
        return [found[i] for i in indices]

    def place(self, i: int) -> str:
        """What sample `i` is called in messages."""
        return f"sample {self.answers[i].id}"

    def _groups(self, order: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        for i in order:  # by length: the newest is the longest
            if group and (len(group) + 1) * len(self.answers[i].all_ids) > self._max_pass_tokens:
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    def _run(self, answers: Sequence[Answer]) -> list[FeatureSample]:
        lens = tuple(len(answer.all_ids) - 1 for answer in answers)
        features = self._pass(answers, lens) if max(lens) else None
        return [
            FeatureSample(
                torch.tensor(answer.all_ids),
                len(answer.prompt_ids),
                self._nothing() if features is None else features[row, : lens[row]].clone(),
                answer.id,
            )
            for row, answer in enumerate(answers)
        ]

    @torch.no_grad()
    def _pass(self, answers: Sequence[Answer], lens: tuple[int, ...]) -> Tensor:
        """States of every token but the last of each sample [b, t, f], bfloat16."""
        ids = torch.zeros(len(answers), max(lens), dtype=torch.long)
        for row, answer in enumerate(answers):
            ids[row, : lens[row]] = torch.tensor(answer.all_ids[:-1])
        target = self._target
        batch = RowBatch(ids.to(target.device), lens, logits_for="none", layer_ids=self.layer_ids)
        with torch_on_one_thread(target.has_own_threads):
            features = target.forward(target.new_cache(len(answers), max(lens)), batch).features
        assert features is not None
        return features.to(torch.bfloat16)

    def _nothing(self) -> Tensor:
        width = len(self.layer_ids) * self._target.info.hidden_size
        return torch.zeros(0, width, dtype=torch.bfloat16)
