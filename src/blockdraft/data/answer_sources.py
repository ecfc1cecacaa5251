"""Who answers: our engine on the target, or a server that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from torch import Tensor

from blockdraft.data.prompts import Sample
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.engine.llm import LLM
from blockdraft.targets.tokenizer import TextCodec
from blockdraft.types import SamplingParams


@dataclass(frozen=True)
class Asked:
    """A sample with its prompt as the target gets it."""

    sample: Sample
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back. `token_ids` end with the end token where `finish_reason` is "stop"."""

    asked: Asked
    token_ids: tuple[int, ...]
    finish_reason: str
    features: Tensor | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class SourceInfo:
    """What a source's target is. `describe` goes into the answers' meta file."""

    codec: TextCodec
    name: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_context_len: int
    end_ids: tuple[int, ...]
    describe: dict[str, Any]


class AnswerSource(Protocol):
    """Answers prompts, many at a time, in whatever order they end."""

    info: SourceInfo

    def replies(self, asked: Sequence[Asked]) -> Iterator[Reply]:
        """One reply for each prompt; one that failed carries its error."""
        ...


class EngineSource:
    """The target on our engine, plainly decoded: the answers are those it gives when served.

    Args:
        recipe: names the target, and the layers whose states come with the answers.
        llm: the engine, if it is there already.
    Raises: UserError if the target cannot be loaded or has no such layer.
    """

    def __init__(self, recipe: AnswersRecipe, log: Any, llm: LLM | None = None) -> None:
        self._llm = llm or LLM(
            recipe.target,
            "none",
            dtype=recipe.dtype,
            max_batch_size=recipe.batch_size,
            prefill_chunk_len=1024,
            log=log,
        )
        self._max_tokens = recipe.max_tokens
        self._layer_ids = recipe.features.layer_ids
        info = self._llm.target.info
        self.info = SourceInfo(
            codec=self._llm.loaded.codec,
            name=info.name,
            fingerprint=info.fingerprint,
            vocab_size=info.vocab_size,
            hidden_size=info.hidden_size,
            num_layers=info.num_layers,
            max_context_len=info.max_context_len,
            end_ids=info.end_ids,
            describe=self._llm.describe(),
        )

    def replies(self, asked: Sequence[Asked]) -> Iterator[Reply]:
        """As `AnswerSource.replies`.

        Prompts of like length are answered beside each other, so that those that join the batch
        together are padded little; and greedy ones together, which need no whole row of logits.
        """
        for _, group in groupby(sorted(asked, key=_place), key=lambda item: _place(item)[0]):
            yield from self._group(list(group))

    def _group(self, asked: Sequence[Asked]) -> Iterator[Reply]:
        """Answers of one run of the engine, whose cache is as long as its longest sequence."""
        params = [
            SamplingParams(
                max_tokens=self._max_tokens,
                temperature=item.sample.temperature,
                seed=item.sample.seed,
            )
            for item in asked
        ]
        prompts = [item.prompt_ids for item in asked]
        for index, output in self._llm.generate_each(
            prompts, params, record_layer_ids=self._layer_ids
        ):
            yield Reply(
                asked=asked[index],
                token_ids=output.token_ids,
                finish_reason=output.finish_reason,
                features=output.features,
                error=output.error,
            )


def _place(item: Asked) -> tuple[int, float, int]:
    """Where a prompt stands in a window; the first number is its run of the engine.

    A batch whose cache has room for a thousand tokens where two hundred are used decodes a third
    slower, for want of address translations: lengths up to 127, 255, 511, .. go by themselves.
    """
    length = len(item.prompt_ids)
    return (length // 128).bit_length(), item.sample.temperature, length
