"""`blockdraft doctor`: what makes a drafter worse in service than in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockdraft.cli import options

if TYPE_CHECKING:
    from blockdraft.targets.load import LoadedTarget
    from blockdraft.training.doctor.findings import Report


_Drafter = Annotated[
    str,
    typer.Option(
        help="Folder of a checkpoint; or auto, dflash2, dflash: the one shipped for the target. "
        "With +ngram, what is behind the lookup."
    ),
]
_Features = Annotated[
    Path | None,
    typer.Option(help="Folder of the shards it was trained on; their held-out samples."),
]
_Answers = Annotated[
    Path | None,
    typer.Option(help="File of the answers it was trained on, where there are no shards."),
]
_Num = Annotated[int, typer.Option(min=1, help="Samples and prompts that are looked at.")]
_MaxTokens = Annotated[
    int, typer.Option(min=16, help="Most tokens of each answer that is decoded.")
]
_AsJson = Annotated[
    bool, typer.Option("--json", help="Print findings and figures as one JSON object.")
]


def doctor(
    target: options.Target = "smollm2-135m",
    drafter: _Drafter = "auto",
    features: _Features = None,
    answers: _Answers = None,
    num: _Num = 8,
    max_tokens: _MaxTokens = 64,
    dtype: options.Dtype = None,
    as_json: _AsJson = False,
) -> None:
    """Find what makes a drafter bad in silence: wrong taps, template, mask, RoPE, or two paths.

    Decodes prompts, and puts the same blocks through the training path. Without --features and
    --answers, the prompts are the package's own. Exit code 1 if there is a fault.
    """
    from blockdraft.registry import without_lookup
    from blockdraft.targets.load import load_target
    from blockdraft.targets.sources import resolve
    from blockdraft.training.doctor.examine import examine, open_recorded
    from blockdraft.training.doctor.subject import open_subject

    subject = open_subject(drafter, resolve(target, progress=options.note))
    behind = "" if without_lookup(drafter) == drafter else ", which drafts behind the lookup"
    options.note(f"examining {subject.folder}{behind}")
    recorded = open_recorded(features, answers, num)
    loaded = load_target(target, dtype=dtype, log=options.note)
    if recorded is not None:
        prompts = [list(answer.prompt_ids) for answer in recorded.samples]
    else:
        prompts = _own_prompts(loaded, num)
    report = examine(subject, loaded, prompts, recorded, max_tokens=max_tokens, log=options.note)
    if as_json:
        print(json.dumps(_about(subject.folder, loaded) | report.as_dict()))
    else:
        print_report(report)
    if report.faults:
        raise typer.Exit(1)


def _own_prompts(loaded: LoadedTarget, num: int) -> list[list[int]]:
    """Token ids of the first prompts that come with the package."""
    from blockdraft.engine.prompts import encode_prompt
    from blockdraft.evaluation.tasks import OFFLINE, load_task

    task = load_task(OFFLINE, data_dir=None, num_prompts=num, log=options.note)
    texts = [prompt.turns[0] for prompt in task.prompts]
    size = loaded.target.info.vocab_size
    return [encode_prompt(text, loaded.codec, size, i) for i, text in enumerate(texts)]


def _about(folder: Path, loaded: LoadedTarget) -> dict[str, object]:
    from blockdraft.evaluation.provenance import provenance

    info = loaded.target.info
    models = {
        "target": {"name": info.name, "fingerprint": info.fingerprint},
        "drafter": str(folder),
        "dtype": str(info.dtype).removeprefix("torch."),
        "kernels": loaded.kernels,
    }
    return {"provenance": provenance(models)}


def print_report(report: Report) -> None:
    """One line a finding, and below what is wrong the line that says what to do."""
    for each in report.findings:
        word = {"ok": "ok", "warning": "warning", "fault": "FAULT"}[each.level]
        print(f"{word:8} {each.check:11} {each.what}")
        if each.cure:
            print(f"{'':20} -> {each.cure}")
    num = len(report.faults)
    print(f"{num or 'no'} fault{'' if num == 1 else 's'}")
