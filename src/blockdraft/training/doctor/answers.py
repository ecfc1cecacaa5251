"""Are these the target's own answers, asked through its own template?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.data.answers import Answer
from blockdraft.drafters.draft_vocab import DRAFT_VOCAB_IDS
from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import RowBatch, Target
from blockdraft.targets.tokenizer import TextCodec
from blockdraft.training.doctor.findings import Finding, fault, ok, warning
from blockdraft.training.doctor.subject import Subject
from blockdraft.types import GREEDY_TEMPERATURE

#: Share of an answer's tokens that the target would choose: below it, another model said them. Ties
#: in bfloat16 cost a greedy answer a few.
_LEAST_OWN = {"greedy": 0.9, "sampled": 0.4}

#: Share of the answers' tokens that can be drafted, below which the vocabulary costs acceptance.
_LEAST_COVERED = 0.97

_REGENERATE = "regenerate the answers with blockdraft regenerate, and train on those"


def check_answers(
    subject: Subject, answers: Sequence[Answer], meta: Mapping[str, Any] | None, target: Target
) -> list[Finding]:
    """All looks at recorded answers.

    Args:
        meta: what `blockdraft regenerate` wrote beside them, if it did.
    """
    codec = subject.source.codec()
    return [
        *template_findings(codec, answers, meta),
        *end_findings(subject, answers),
        *own_findings(answers, target),
        *mask_in_text(subject, answers),
        *vocabulary_findings(subject, answers),
    ]


def template_findings(
    codec: TextCodec, answers: Sequence[Answer], meta: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Do prompts begin and end as the target's chat template writes a user's turn?"""
    if codec.chat_template is None:
        yield ok("template", "the target has none: prompts are raw text")
        return
    recorded = (meta or {}).get("template_sha256")
    if recorded not in (None, codec.template_sha256):
        what = "the answers were made with another chat template than the target has now"
        yield fault("template", what, f"give the target its old template, or {_REGENERATE}")
        return
    before, after = turn_ids(codec)
    faults = [_prompt_fault(codec, answer.prompt_ids, before, after) for answer in answers]
    found = [each for each in faults if each is not None]
    if found:
        what = f"{len(found)} of {len(faults)} prompts are not as the template writes them:"
        what += f" {found[0]}"
        yield fault("template", what, f"serve prompts as they were trained, or {_REGENERATE}")
    else:
        yield ok("template", f"{len(faults)} prompts are as the target's chat template writes them")


def turn_ids(codec: TextCodec) -> tuple[list[int], list[int]]:
    """The ids that the template writes before and after a user's turn."""
    one, two = (codec.encode_chat([{"role": "user", "content": text}]) for text in ("a\n", "Z 7"))
    before = _num_equal(one, two)
    after = _num_equal(one[before:][::-1], two[before:][::-1])
    return one[:before], one[len(one) - after :]


def _num_equal(one: Sequence[int], two: Sequence[int]) -> int:
    """How many ids two lists begin with alike."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))


def _prompt_fault(
    codec: TextCodec, prompt: Sequence[int], before: list[int], after: list[int]
) -> str | None:
    ids = list(prompt)
    if ids[: len(before)] != before:
        return f"one begins {_text(codec, ids[: len(before)])}, not {_text(codec, before)}"
    end = ids[len(ids) - len(after) :]
    if end != after:
        return f"one ends {_text(codec, end)}, not {_text(codec, after)}"
    inner = codec.decode(ids[len(before) : len(ids) - len(after)], skip_special=False)
    if codec.encode_chat([{"role": "user", "content": inner}]) != ids:
        return "the text of one is encoded otherwise (a begin token, or another tokenizer?)"
    return None


def _text(codec: TextCodec, ids: Sequence[int]) -> str:
    return repr(codec.decode(ids, skip_special=False))


def end_findings(subject: Subject, answers: Sequence[Answer]) -> Iterator[Finding]:
    """Do answers that stopped end with an end token, and hold none before it?"""
    ends = set(subject.source.end_ids)
    stopped = [a for a in answers if a.finish_reason == "stop" and a.token_ids]
    without = [a for a in stopped if a.token_ids[-1] not in ends]
    inside = [a for a in answers if ends & set(a.token_ids[:-1])]
    if without:
        what = f"{len(without)} answers stopped without an end token: {without[0].id}"
        cure = "keep the end token in training answers, or the drafter never learns to end"
        yield fault("answers", what, cure)
    elif inside:
        what = f"{len(inside)} answers go on after an end token: {inside[0].id}"
        yield fault("answers", what, _REGENERATE)


def own_findings(answers: Sequence[Answer], target: Target) -> Iterator[Finding]:
    """Are the answers' tokens those that the target itself would choose?"""
    for kind in ("greedy", "sampled"):
        chosen = [a for a in answers if (a.temperature < GREEDY_TEMPERATURE) == (kind == "greedy")]
        if not chosen:
            continue
        share = own_share(chosen, target)
        what = f"{share:.1%} of the tokens of {len(chosen)} {kind} answers are the target's first"
        what += " choice"
        if share < _LEAST_OWN[kind]:
            yield fault("answers", f"only {what}: another model's, or dataset text", _REGENERATE)
        else:
            yield ok("answers", what)


@torch.no_grad()
def own_share(answers: Sequence[Answer], target: Target) -> float:
    """Share of the answers' tokens that the target gives the greatest logit after what precedes."""
    right = total = 0
    for answer in answers:
        ids = torch.tensor([answer.all_ids[:-1]], device=target.device)
        batch = RowBatch(ids, (ids.shape[1],), wants_best=True)
        with torch_on_one_thread(target.has_own_threads):
            out = target.forward(target.new_cache(1, ids.shape[1]), batch)
        first = len(answer.prompt_ids) - 1
        best = out.best[0][0] if out.best is not None else _argmax(out.logits)
        said = torch.tensor(answer.token_ids, device=best.device)
        right, total = right + int((best[first:] == said).sum()), total + len(said)
    return right / max(total, 1)


def _argmax(logits: Tensor | None) -> Tensor:
    assert logits is not None
    return logits[0].argmax(-1)


def mask_in_text(subject: Subject, answers: Sequence[Answer]) -> Iterator[Finding]:
    """No text may hold the mask."""
    mask = subject.config.mask_token_id
    holding = [a for a in answers if mask in a.all_ids]
    if holding:
        what = f"mask_token_id {mask} stands in {len(holding)} of {len(answers)} samples"
        yield fault("mask", what, "train with a token that text never holds")


def vocabulary_findings(subject: Subject, answers: Sequence[Answer]) -> Iterator[Finding]:
    """Can what the target says be drafted?"""
    ids = subject.tensors.get(DRAFT_VOCAB_IDS)
    if ids is None:
        yield ok("vocabulary", "every token can be drafted")
        return
    known = set(ids.tolist())
    missing_ends = [end for end in subject.source.end_ids if end not in known]
    tokens = [token for answer in answers for token in answer.token_ids]
    share = sum(token in known for token in tokens) / max(1, len(tokens))
    what = f"{len(known):,} tokens can be drafted: {share:.1%} of what the answers say"
    if missing_ends:
        cure = "keep end tokens in the draft vocabulary: no drafted answer can end"
        yield fault("vocabulary", f"end token {missing_ends[0]} cannot be drafted", cure)
    elif share < _LEAST_COVERED:
        yield warning("vocabulary", what, "train with a larger drafter.draft_vocab_size")
    else:
        yield ok("vocabulary", what)
