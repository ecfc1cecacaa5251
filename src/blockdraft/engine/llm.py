"""The public door: a target, a drafter found for it, and text."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft.decoding.clock import Timing
from blockdraft.decoding.row import Row
from blockdraft.decoding.text import TextTracker
from blockdraft.drafters.base import Drafter
from blockdraft.engine.find_drafter import find_drafter
from blockdraft.engine.outputs import Output, Speculation, Usage, build_output
from blockdraft.engine.prompts import Prompt, encode_prompt, split_prompts
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.sampling.adjust import check_params
from blockdraft.targets.base import Target
from blockdraft.targets.load import LoadedTarget, load_target
from blockdraft.types import Request, SamplingParams
from blockdraft.verification.budget import DraftBudget

_NO_TIME = Timing(prefill_s=0, draft_s=0, select_s=0, verify_s=0, other_s=0, total_s=0)


@dataclass(frozen=True)
class StreamPiece:
    """New text and tokens of a streamed answer; the last piece carries the whole output."""

    text: str
    token_ids: tuple[int, ...]
    output: Output | None = None


class LLM:
    """A frozen target and the drafter that makes it faster. Output is exactly the target's.

    Args:
        target: `smollm2-135m`, a hub id, a local folder, or a `.gguf` file.
        drafter: `auto` finds the one made for the target, else n-gram lookup; `none` decodes
            plainly; or a method name or a checkpoint folder.
        dtype: `float32` or `bfloat16`; None takes bfloat16 where the machine computes in it.
        exact: in bfloat16, run all decoding passes in one shape, so that drafting changes nothing.
        num_draft_tokens: most tokens drafted a cycle; None takes the drafter's own.
        max_batch_size: most prompts that run at once.
        weights: `int8` rounds the matrices to 8 bits, in native kernels: half the bytes to read.
            The quantised model is then the target that output is exactly that of. `bfloat16`
            expands matrices in memory that native kernels would read as a GGUF file holds them:
            the same target and the same output.
        adaptive: fit drafts to the load when several requests run at once: shorter ones, looked-up
            ones alone, or none, by what they cost and how often they stand.
        log: receives one-line notices (which drafter was chosen, downloads).
    Raises: UserError with one line for anything that cannot work.
    """

    def __init__(
        self,
        target: str = "smollm2-135m",
        drafter: str = "auto",
        *,
        dtype: str | None = None,
        device: str = "cpu",
        exact: bool = False,
        num_draft_tokens: int | None = None,
        max_batch_size: int = 8,
        prefill_chunk_len: int = 512,
        kernels: str = "auto",
        weights: str | None = None,
        adaptive: bool = True,
        log: Callable[[str], None] | None = None,
    ) -> None:
        if max_batch_size < 1 or prefill_chunk_len < 1:
            raise ConfigError("max_batch_size and prefill_chunk_len must be at least 1")
        if not isinstance(adaptive, bool):
            raise ConfigError(f"adaptive is {adaptive!r}; it must be True or False")
        self.log = log or (lambda _: None)
        self.loaded: LoadedTarget = load_target(
            target,
            dtype=dtype,
            device=device,
            kernels=kernels,
            weights=weights,
            exact=exact,
            log=self.log,
        )
        self.drafter: Drafter | None = find_drafter(
            drafter, self.target, num_draft_tokens, log=self.log
        )
        self.budget = DraftBudget() if adaptive else None
        self.limits = RunnerLimits(
            max_batch_size=max_batch_size, prefill_chunk_len=prefill_chunk_len
        )

    @classmethod
    def from_parts(
        cls,
        loaded: LoadedTarget,
        drafter: Drafter | None,
        limits: RunnerLimits | None = None,
        *,
        adaptive: bool = False,
    ) -> LLM:
        """An engine of models already in memory (the drafter already bound).

        Its drafts are as long as there is room for, whatever the load, unless it is `adaptive`.
        """
        llm = cls.__new__(cls)
        llm.log = lambda _: None
        llm.budget = DraftBudget() if adaptive else None
        llm.loaded, llm.drafter, llm.limits = loaded, drafter, limits or RunnerLimits()
        return llm

    @property
    def target(self) -> Target:
        return self.loaded.target

    def describe(self) -> dict[str, Any]:
        """What runs here, for provenance: target, drafter, dtype, kernels."""
        info, drafter = self.target.info, self.drafter
        return {
            "target": {
                "name": info.name,
                "source": info.source,
                "fingerprint": info.fingerprint,
                "num_parameters": info.num_parameters,
            },
            "drafter": {"name": "none"} if drafter is None else drafter.describe(),
            "dtype": str(info.dtype).removeprefix("torch."),
            "weights": self.loaded.weights,
            "weights_in_memory": self.loaded.weights_in_memory,
            "device": str(self.target.device),
            "kernels": self.loaded.kernels,
            "adaptive": self.budget is not None and drafter is not None,
        }

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_output: Callable[[int, Output], None] | None = None,
    ) -> list[Output]:
        """Answer prompts; outputs come in the order of the prompts.

        A prompt is a text (put in the chat template as a user turn where the target has one), a
        list of chat messages, or a list of token ids (taken as they are).
        """
        outputs: dict[int, Output] = {}
        for index, output in self.generate_each(prompts, params):
            outputs[index] = output
            if on_output is not None:
                on_output(index, output)
        return [outputs[index] for index in sorted(outputs)]

    def generate_each(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        record_layer_ids: tuple[int, ...] = (),
    ) -> Iterator[tuple[int, Output]]:
        """As `generate`, but each output as soon as it is there.

        `record_layer_ids` names target layers (0-based outputs, before the final norm) whose
        hidden states come with each output, concatenated; they are by-products of decoding.

        Raises: ConfigError if there is no such layer, or the drafter needs other ones.
        """
        self._check_layers(record_layer_ids)
        rows = self.rows(split_prompts(prompts), params)
        live = [(i, row) for i, row in enumerate(rows) if row.params.max_tokens > 0]
        yield from ((i, _empty(row)) for i, row in enumerate(rows) if row.params.max_tokens == 0)
        if not live:
            return
        queue = [row for _, row in live]
        runner = self.runner(queue, record_layer_ids)
        for changed in runner.run():
            for j in changed:
                index, row = live[j]
                if row.is_finished:
                    yield index, self.output(row)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamPiece]:
        """Answer one prompt piece by piece, by whole characters; closing the iterator ends it."""
        [row] = self.rows([prompt], params, stream=True)
        if row.params.max_tokens == 0:
            yield StreamPiece("", (), _empty(row))
            return
        assert row.tracker is not None
        runner, shown_len = self.runner([row]), 0
        try:
            for _ in runner.run():
                ids = tuple(row.output_ids[shown_len:])
                shown_len += len(ids)
                output = self.output(row) if row.is_finished else None
                yield StreamPiece(row.tracker.take(), ids, output)
        finally:
            runner.cancel(0)

    def rows(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: bool = False,
    ) -> list[Row]:
        """Checked requests for a `Runner`: what measures between two passes drives it itself."""
        each = _params_of_each(params, len(prompts))
        return [
            self._row(i, prompt, own, stream)
            for i, (prompt, own) in enumerate(zip(prompts, each, strict=True))
        ]

    def runner(self, rows: Sequence[Row], record_layer_ids: tuple[int, ...] = ()) -> Runner:
        """What runs such requests, with what this engine has learnt of its load."""
        return Runner(self.target, self.drafter, rows, self.limits, record_layer_ids, self.budget)

    def output(self, row: Row) -> Output:
        """The answer of a finished row."""
        if row.tracker is not None:
            return build_output(row, row.tracker.text)
        ids = row.output_ids
        if row.finish_reason == "stop":
            ids = ids[:-1]  # no stop strings without a tracker: the last token is the end token
        return build_output(row, self.loaded.codec.decode(ids))

    def _check_layers(self, layer_ids: tuple[int, ...]) -> None:
        most = self.target.info.num_layers - 1
        if any(not 0 <= i <= most for i in layer_ids):
            raise ConfigError(f"record_layer_ids is {list(layer_ids)}; each must be 0 to {most}")
        needed = self.drafter.target_layer_ids if self.drafter else ()
        if layer_ids and needed and layer_ids != needed:
            raise ConfigError(
                f"record_layer_ids is {list(layer_ids)}, but the drafter taps {list(needed)};"
                " record those, or decode with drafter none"
            )

    def _row(self, index: int, prompt: Prompt, params: SamplingParams, stream: bool) -> Row:
        info, codec = self.target.info, self.loaded.codec
        check_params(params, info.vocab_size)
        ids = encode_prompt(prompt, codec, info.vocab_size, index)
        if len(ids) >= info.max_context_len:
            raise CapacityError(
                f"prompt {index} has {len(ids)} tokens; {info.name} holds {info.max_context_len}, "
                "and an answer needs at least one: shorten the prompt"
            )
        tracker = None
        if stream or params.stop:
            tracker = TextTracker(codec.stream(), params.stop, params.include_stop)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return Row(
            request=Request(prompt_ids=tuple(ids), params=params, seed=seed),
            limit_len=min(len(ids) + params.max_tokens, info.max_context_len),
            target_end_ids=frozenset(info.end_ids),
            tracker=tracker,
        )


def _empty(row: Row) -> Output:
    """max_tokens 0: nothing runs."""
    return Output(
        text="",
        token_ids=(),
        finish_reason="length",
        usage=Usage(prompt_tokens=row.prompt_len, completion_tokens=0),
        speculation=Speculation.of(()),
        timing=_NO_TIME,
        seed=row.request.seed,
        logprobs=None if row.params.logprobs is None else (),
    )


def _params_of_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ConfigError("params are no SamplingParams; give one, or a list of one each")
    if len(params) != num_prompts:
        raise ConfigError(
            f"{len(params)} sampling parameters for {num_prompts} prompts; give one, or one each"
        )
    return params
