"""Prompts to the target's own answers: killed at any moment, run again, nothing lost or twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from filelock import FileLock, Timeout

from blockdraft.data.answer_sources import AnswerSource, Asked, EngineSource, Reply
from blockdraft.data.answer_writer import AnswerWriter, DiskFullError
from blockdraft.data.answers import ANSWERS_NAME, Answer, AnswerFile
from blockdraft.data.answers_meta import check_answers, check_meta, write_meta
from blockdraft.data.feature_shards import SHARDS_NAME, FeatureIndex
from blockdraft.data.feature_size import say_size
from blockdraft.data.looping import is_looping
from blockdraft.data.prompts import Plan, Sample, make_plan
from blockdraft.data.recipe import AnswersRecipe
from blockdraft.data.shard_writer import ShardWriter
from blockdraft.engine.prompts import encode_prompt
from blockdraft.errors import CapacityError, ConfigError

Log = Callable[[str], None]


@dataclass
class Summary:
    """What a run did (the public JSON of the command).

    Attributes:
        num_planned: samples of the recipe.
        num_resumed: of them, answered before this run.
        num_answered, num_tokens: answered in this run, and their tokens.
        num_length_cut, num_looping: of all answers in the file, those cut at `max_tokens`, and
            those that go round in circles.
        num_too_long: samples left out because their prompt is too long.
        num_unmatched: samples left out because their prompt lacks what their variant matches.
        num_later_turns: prompts of several user turns, of which the first alone was asked.
        num_failed: samples whose answer failed; the next run asks them again.
        num_system_turns: prompts with a system message, or an answer before the first user turn,
            neither of which was asked.
        stopped_by: "disk" or "memory", whichever there was too little of, where the run ended
            before its plan.
    """

    out: str
    num_planned: int = 0
    num_resumed: int = 0
    num_answered: int = 0
    num_tokens: int = 0
    num_length_cut: int = 0
    num_looping: int = 0
    num_too_long: int = 0
    num_unmatched: int = 0
    num_later_turns: int = 0
    num_system_turns: int = 0
    num_failed: int = 0
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    stopped_by: str | None = None
    failures: list[str] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Samples of the plan that this run has not come to."""
        done = self.num_resumed + self.num_answered + self.num_failed
        return self.num_planned - done


def regenerate(
    recipe: AnswersRecipe,
    *,
    log: Log,
    source: AnswerSource | None = None,
    on_answer: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Answer what a recipe asks and its folder lacks.

    Args:
        source: who answers; None takes what the recipe says.
        on_answer: told after every answer.
    Returns: what was done. A full disk, or a batch that memory cannot hold, ends the run early and
        is named in `stopped_by`; the reason goes to `log`.
    Raises: UserError if the folder's answers are of another target or recipe, or a file is damaged.
    """
    recipe.out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(recipe.out / ".lock", timeout=0):
            return _regenerate(recipe, log, source, on_answer)
    except Timeout as error:
        raise ConfigError(f"{recipe.out} is being written by another run; wait for it") from error


def _regenerate(
    recipe: AnswersRecipe,
    log: Log,
    source: AnswerSource | None,
    on_answer: Callable[[Summary], None],
) -> Summary:
    plan = make_plan(recipe)
    answers = AnswerFile(recipe.out / ANSWERS_NAME)
    source = source or _source(recipe, log)
    # Shards hold answers too, of which the lines may be missing.
    if answers.ids or any((recipe.out / SHARDS_NAME).glob("*.safetensors")):
        check_meta(recipe, source.info)
    shards = _shards(recipe, source, answers, log)
    check_answers(plan, answers, lambda sample: _encode(sample, source))
    write_meta(recipe, source.info)  # after the checks: a refused run leaves it as it was
    todo = [sample for sample in plan.samples if sample.id not in answers.ids]
    summary = _opening(recipe, plan, len(plan.samples) - len(todo))
    if shards is not None:
        say_size(recipe, shards.index, todo, lambda sample: len(_encode(sample, source)), log)
    writer = AnswerWriter(
        answers,
        shards,
        shard_samples=recipe.features.shard_samples,
        reserve_bytes=int(recipe.features.reserve_gib * 2**30) if shards else 0,
    )
    run = _Run(recipe, source, writer, summary, on_answer)
    try:
        run.answer_all(todo)
    except CapacityError as error:
        summary.stopped_by = "disk" if isinstance(error, DiskFullError) else "memory"
        log(str(error))
    finally:
        writer.flush()  # also when the run is stopped from outside
        summary.num_length_cut = answers.counts["length"]
        summary.num_looping = answers.counts["looping"]
    return summary


def _source(recipe: AnswersRecipe, log: Log) -> AnswerSource:
    if recipe.server is None:
        return EngineSource(recipe, log)
    from blockdraft.data.answer_server import ServerSource

    return ServerSource(recipe, log)


def _shards(
    recipe: AnswersRecipe, source: AnswerSource, answers: AnswerFile, log: Log
) -> ShardWriter | None:
    layer_ids, info = recipe.features.layer_ids, source.info
    if not layer_ids:
        return None
    if not all(0 <= i < info.num_layers for i in layer_ids):
        raise ConfigError(
            f"features.layer_ids is {list(layer_ids)}; {info.name} has layers 0 to "
            f"{info.num_layers - 1}"
        )
    index = FeatureIndex(
        target=info.name,
        fingerprint=info.fingerprint,
        layer_ids=layer_ids,
        hidden_size=info.hidden_size,
    )
    shards = ShardWriter(recipe.out / SHARDS_NAME, index, answers)
    shards.recover(log)
    return shards


def _encode(sample: Sample, source: AnswerSource) -> tuple[int, ...]:
    info = source.info
    return tuple(encode_prompt(sample.prompt, info.codec, info.vocab_size, 0))


def _opening(recipe: AnswersRecipe, plan: Plan, num_resumed: int) -> Summary:
    return Summary(
        out=str(recipe.out),
        num_planned=len(plan.samples),
        num_resumed=num_resumed,
        num_too_long=plan.num_too_long,
        num_unmatched=plan.num_unmatched,
        num_later_turns=plan.num_later_turns,
        num_system_turns=plan.num_system_turns,
    )


class _Run:
    """Window by window: encode, ask, write."""

    def __init__(
        self,
        recipe: AnswersRecipe,
        source: AnswerSource,
        writer: AnswerWriter,
        summary: Summary,
        on_answer: Callable[[Summary], None],
    ) -> None:
        self._recipe, self._source, self._writer = recipe, source, writer
        self._summary, self._on_answer = summary, on_answer
        self._started = time.monotonic()

    def answer_all(self, todo: Sequence[Sample]) -> None:
        for asked in self._windows(todo):
            for reply in self._source.replies(asked):
                self._take(reply)

    def _windows(self, todo: Sequence[Sample]) -> Iterator[list[Asked]]:
        size, info = self._recipe.window, self._source.info
        longest = min(self._recipe.max_prompt_len, info.max_context_len - 1)
        for start in range(0, len(todo), size):
            asked = [Asked(s, _encode(s, self._source)) for s in todo[start : start + size]]
            fitting = [item for item in asked if len(item.prompt_ids) <= longest]
            self._summary.num_too_long += len(asked) - len(fitting)
            self._summary.num_planned -= len(asked) - len(fitting)
            if fitting:
                yield fitting

    def _take(self, reply: Reply) -> None:
        summary, sample = self._summary, reply.asked.sample
        if reply.error is not None:
            summary.num_failed += 1
            summary.failures.append(f"{sample.id}: {reply.error}")
        else:
            self._writer.add(_answer(reply), reply.features)
            summary.num_answered += 1
            summary.num_tokens += len(reply.token_ids)
        summary.seconds = time.monotonic() - self._started
        summary.tokens_per_s = summary.num_tokens / max(summary.seconds, 1e-9)
        self._on_answer(summary)


def _answer(reply: Reply) -> Answer:
    sample = reply.asked.sample
    return Answer(
        id=sample.id,
        source=sample.source,
        temperature=sample.temperature,
        seed=sample.seed,
        prompt_ids=reply.asked.prompt_ids,
        token_ids=reply.token_ids,
        finish_reason=reply.finish_reason,
        is_looping=is_looping(reply.token_ids),
    )
