"""A trace: one answer, with all that each of its cycles drafted, saw and decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockdraft.decoding.row import Row
from blockdraft.engine.llm import LLM
from blockdraft.engine.outputs import Output
from blockdraft.engine.prompts import Prompt
from blockdraft.engine.runner import Runner
from blockdraft.errors import ConfigError
from blockdraft.evaluation.provenance import provenance
from blockdraft.evaluation.trace_cycle import SeenCycle, cycle_json, token_ids_of
from blockdraft.evaluation.watch_cycles import LatticeWatch, LogitsWatch
from blockdraft.targets.tokenizer import TextCodec
from blockdraft.types import SamplingParams

#: `kind` and `version` of the JSON (`docs/reference/trace_json.md`).
KIND, VERSION = "blockdraft-trace", 1

_PARAMS = ("temperature", "top_k", "top_p", "min_p", "max_tokens")


def record_trace(llm: LLM, prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
    """Answer one prompt and keep its cycles; the text is that of `LLM.generate`.

    Watching costs time, so a trace holds no times.

    Raises: ConfigError for `max_tokens` 0; what `LLM.generate` raises.
    """
    if params.max_tokens < 1:
        raise ConfigError("max_tokens is 0; a trace needs at least one token")
    [row] = llm.rows([prompt], params, stream=True)
    cycles = _run(llm, row)
    output, codec = llm.output(row), llm.loaded.codec
    pieces = text_pieces(codec, output.token_ids, output.text)
    for cycle in cycles:
        cycle["pieces"] = pieces[cycle["start"] : cycle["start"] + len(cycle["committed"])]
    first: dict[str, list[Any]] = {"ids": list(output.token_ids[:1]), "pieces": pieces[:1]}
    return {
        "kind": KIND,
        "version": VERSION,
        "prompt": prompt if isinstance(prompt, str) else codec.decode(row.request.prompt_ids),
        **_answer(output),
        "params": {"is_greedy": params.is_greedy, **{n: getattr(params, n) for n in _PARAMS}},
        "method": "plain" if llm.drafter is None else llm.drafter.name,
        "first": first,
        "cycles": cycles,
        "tokens": _texts(codec, cycles, first["ids"]),
        "provenance": provenance(llm.describe(), seed=output.seed),
    }


def _run(llm: LLM, row: Row) -> list[dict[str, Any]]:
    target = LogitsWatch(llm.target)
    drafter = None if llm.drafter is None else LatticeWatch(llm.drafter)
    runner = Runner(target, drafter, [row], llm.limits)
    cycles: list[dict[str, Any]] = []
    before = list(row.token_ids)
    for _ in runner.run():
        if len(row.cycles) > len(cycles):
            assert target.logits is not None
            seen = SeenCycle(
                before,
                row.cycles[-1],
                drafter.proposal if drafter else None,
                drafter.lattice if drafter else None,
                target.logits[0],
            )
            cycles.append(cycle_json(row, seen))
        if drafter is not None:
            drafter.forget()
        before = list(row.token_ids)
    return cycles


def _answer(output: Output) -> dict[str, Any]:
    speculation = output.speculation
    return {
        "prompt_tokens": output.usage.prompt_tokens,
        "completion_tokens": output.usage.completion_tokens,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "error": output.error,
        "speculation": {
            "cycles": speculation.cycles,
            "drafted": speculation.drafted,
            "accepted": speculation.accepted,
            "committed": speculation.committed,
            "mean_acceptance_length": speculation.mean_acceptance_length,
        },
    }


def text_pieces(codec: TextCodec, ids: Sequence[int], text: str) -> list[str]:
    """What each token adds to the answer's text: "" where it only begins a character.

    Joined they are `text`: what a stop string cut off belongs to no piece.
    """
    stream = codec.stream()
    pieces = [stream.feed(token_id) for token_id in ids]
    if pieces:
        pieces[-1] += stream.flush()
    left, kept = len(text), []
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(kept[-1])
    return kept


def _texts(
    codec: TextCodec, cycles: Sequence[Mapping[str, Any]], more: Sequence[int]
) -> dict[str, str]:
    """Every token that the trace names, each as it reads alone."""
    named = set(more).union(*(token_ids_of(dict(cycle)) for cycle in cycles))
    return {str(i): codec.decode([i], skip_special=False) for i in sorted(named)}
