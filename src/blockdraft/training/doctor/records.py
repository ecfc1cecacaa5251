"""What the files alone show: the target, settings that were changed, mask, RoPE, window, dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from blockdraft.drafters.pairing import TARGET_FINGERPRINT, TARGET_NAME, TEMPLATE_SHA256
from blockdraft.errors import UnsupportedError
from blockdraft.layers.rope import RopeConfig
from blockdraft.targets.load import source_info
from blockdraft.training.doctor.findings import Finding, fault, ok, warning
from blockdraft.training.doctor.subject import Subject

#: Which look a field of the config belongs to; the rest is "config".
_CHECK_OF = {
    "target_layer_ids": "taps",
    "mask_token_id": "mask",
    "rope": "rope",
    "windows": "window",
    "causal": "window",
    "draft_vocab_size": "vocabulary",
}

_RESTORE = "set config.json back to what the weights were trained with"


def check_records(subject: Subject, run_dtype: torch.dtype) -> list[Finding]:
    """All looks at files alone."""
    looks: list[Callable[[], Iterator[Finding]]] = [
        lambda: target_findings(subject),
        lambda: template_findings(subject),
        lambda: edit_findings(subject),
        lambda: mask_findings(subject),
        lambda: rope_findings(subject),
        lambda: window_findings(subject),
        lambda: dtype_findings(subject, run_dtype),
    ]
    return [finding for look in looks for finding in look()]


def target_findings(subject: Subject) -> Iterator[Finding]:
    """Is this the target that the drafter was made for?"""
    info, config = source_info(subject.source), subject.config
    made_for = subject.provenance.get(TARGET_NAME, "another target")
    sizes = (
        ("hidden size", config.hidden_size, info.hidden_size),
        ("target layers", config.num_target_layers, info.num_layers),
        ("vocabulary", config.vocab_size, info.vocab_size),
    )
    wrong = [f"{name} {mine}, not {theirs}" for name, mine, theirs in sizes if mine != theirs]
    recorded = subject.provenance.get(TARGET_FINGERPRINT)
    if wrong:
        what = f"made for {made_for} and cannot serve {info.name}: {', '.join(wrong)}"
        yield fault("target", what, f"give --target {made_for}, or a drafter made for {info.name}")
    elif recorded is None:
        what = f"the checkpoint does not say which weights it was made for; {info.name} fits"
        yield warning("target", what, "make sure that it was trained for this very model")
    elif recorded != info.fingerprint:
        what = (
            f"made for {made_for} (weights {recorded[:12]}), not for {info.name} (weights"
            f" {info.fingerprint[:12]})"
        )
        yield fault("target", what, f"give --target {made_for}, or train a drafter for this one")
    else:
        yield ok("target", f"made for {info.name} (weights {recorded[:12]})")


def template_findings(subject: Subject) -> Iterator[Finding]:
    """Was the drafter made for prompts as the target's chat template writes them now?"""
    recorded, present = subject.provenance.get(TEMPLATE_SHA256), subject.source.codec()
    if recorded is not None and recorded != present.template_sha256:
        what = "the target's chat template is another than the one the drafter was made for"
        yield fault("template", what, "give the target its old template, or train on new answers")


def edit_findings(subject: Subject) -> Iterator[Finding]:
    """Does config.json still say what was trained?"""
    if subject.written is None:
        what = "the weights do not record the settings they were trained with"
        yield warning("config", what, "nothing, if config.json was never changed by hand")
        return
    edits = list(_edits(subject))
    yield from edits
    if not edits:
        yield ok("config", "config.json is as it was when the weights were written")


def _edits(subject: Subject) -> Iterator[Finding]:
    assert subject.written is not None
    for field in dataclasses.fields(subject.written):
        then, now = getattr(subject.written, field.name), getattr(subject.config, field.name)
        if then == now:
            continue
        check = _CHECK_OF.get(field.name, "config")
        what = f"config.json says {field.name} {_short(now)}; the weights were trained with"
        what += f" {_short(then)}"
        if field.name == "target_layer_ids" and len(then) == len(now):
            what += _shift(then, now)
        yield fault(check, what, _RESTORE)


def _shift(then: tuple[int, ...], now: tuple[int, ...]) -> str:
    steps = {b - a for a, b in zip(then, now, strict=True)} - {0}
    if steps not in ({1}, {-1}):
        return ""
    return f": one layer too {'late' if steps == {1} else 'early'}"


def _short(value: object) -> str:
    if isinstance(value, RopeConfig):
        return f"type {value.rope_type}, theta {value.theta:g}, factor {value.factor:g}"
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def mask_findings(subject: Subject) -> Iterator[Finding]:
    """Is the mask a token that no text holds?"""
    mask, source = subject.config.mask_token_id, subject.source
    cure = "train with a token that text never holds (drafter.mask_token_id)"
    if mask in source.end_ids:
        yield fault("mask", f"mask_token_id {mask} is an end token of {source.name}", cure)
        return
    if source.tokenizer is None:
        yield warning("mask", f"{mask}; {source.name} has no tokenizer to look it up in", cure)
        return
    codec = source.codec()
    spelling = codec.tokenizer.id_to_token(mask)
    named = [name for name, text in codec.special_tokens.items() if text and text == spelling]
    if spelling is None:
        yield ok("mask", f"{mask}, a row beyond the tokenizer's vocabulary")
    elif named:
        yield fault("mask", f"mask_token_id {mask} is the {named[0]} {spelling!r}", cure)
    elif spelling in (codec.chat_template or ""):
        what = f"mask_token_id {mask} is {spelling!r}, which the chat template writes"
        yield fault("mask", what, cure)
    elif mask not in codec.special_ids:
        what = f"mask_token_id {mask} is {spelling!r}, a token of ordinary text"
        yield fault("mask", what, cure)
    else:
        yield ok("mask", f"{mask} ({spelling}), which text does not hold")


def rope_findings(subject: Subject) -> Iterator[Finding]:
    """Do drafter and target turn alike? Both see the same positions."""
    mine = subject.config.rope
    try:
        theirs = RopeConfig.from_dict(subject.source.config)
    except UnsupportedError as error:
        yield warning("rope", f"the target's RoPE cannot be read ({error})", "compare it by hand")
        return
    if _turns(mine) == _turns(theirs):
        yield ok("rope", _short(mine))
        return
    what = f"{_short(mine)} in the drafter, {_short(theirs)} in the target"
    if subject.written is not None and subject.written.rope == mine:
        yield warning("rope", f"{what}; it was trained so", "nothing, if it was meant")
    else:
        yield fault("rope", what, "set the drafter's rope_theta and scaling to the target's")


def _turns(rope: RopeConfig) -> RopeConfig:
    """What decides the angles: a plain RoPE does not look at the original length."""
    plain = rope.rope_type in ("default", "linear")
    return dataclasses.replace(rope, original_max_len=0) if plain else rope


def window_findings(subject: Subject) -> Iterator[Finding]:
    """A window must hold a block, and some context."""
    config = subject.config
    narrow = [w for w in config.windows if w is not None and w <= config.block_size]
    if narrow:
        what = f"a window of {min(narrow)} rows hardly reaches past a block of {config.block_size}"
        yield warning("window", what, "train with a larger drafter.window, or 0 for none")
        return
    words = sorted({"the whole context" if w is None else f"{w} rows" for w in config.windows})
    kind = "causal" if all(config.causal) else "rows of a block see each other"
    yield ok("window", f"{' and '.join(words)}; {kind}")


def dtype_findings(subject: Subject, run_dtype: torch.dtype) -> Iterator[Finding]:
    """Do the weights survive the numbers they are run in?"""
    floats = {n: t for n, t in subject.tensors.items() if t.is_floating_point()}
    stored = sorted({str(t.dtype).removeprefix("torch.") for t in floats.values()})
    served = str(run_dtype).removeprefix("torch.")
    limit = torch.finfo(run_dtype).max
    large = [name for name, t in floats.items() if float(t.abs().max()) > limit]
    if large:
        what = f"{large[0]} holds numbers that {served} cannot hold ({len(large)} such tensors)"
        yield fault("dtype", what, "serve in float32 or bfloat16")
    elif "float16" in stored:
        what = f"stored in {', '.join(stored)}, served in {served}"
        yield warning("dtype", what, "store it in bfloat16: float16 overflows above 65504")
    else:
        yield ok("dtype", f"stored in {', '.join(stored)}, served in {served}")
