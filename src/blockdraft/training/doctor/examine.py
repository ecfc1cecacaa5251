"""The whole examination, from files to decoded answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.data.answers import Answer, read_answers, read_meta
from blockdraft.data.feature_shards import FeatureStore
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import RunnerLimits
from blockdraft.errors import ConfigError
from blockdraft.registry import load_drafter
from blockdraft.targets.load import LoadedTarget
from blockdraft.training.doctor.answers import check_answers
from blockdraft.training.doctor.compare import compare_loop, compare_rows
from blockdraft.training.doctor.findings import Finding, Report, fault, ok
from blockdraft.training.doctor.paths import ServingPath, TrainingPath
from blockdraft.training.doctor.probes import check_probes
from blockdraft.training.doctor.records import check_records
from blockdraft.training.doctor.replay import decode
from blockdraft.training.doctor.subject import Subject
from blockdraft.training.doctor.taps import check_taps
from blockdraft.training.samples import prompt_place

#: Samples whose states are computed anew, with every layer of the target.
_NUM_TAPPED = 4

#: Tokens a block below which drafts are as good as never accepted.
_LEAST_LEN = 1.05


@dataclass(frozen=True)
class Recorded:
    """What a drafter was trained on.

    Attributes:
        chosen: numbers of the samples that are looked at: the held-out ones come first.
    """

    answers: Sequence[Answer]
    chosen: Sequence[int]
    meta: Mapping[str, Any] | None
    store: FeatureStore | None = None

    @property
    def samples(self) -> list[Answer]:
        """The answers that are looked at."""
        return [self.answers[i] for i in self.chosen]


def open_recorded(features: Path | None, answers: Path | None, num: int) -> Recorded | None:
    """The data of a run; None if none is named.

    The samples are those that training keeps apart first, whatever share it keeps.

    Raises: ConfigError or CheckpointError if there is nothing there.
    """
    if features is not None and answers is not None:
        raise ConfigError("--features and --answers are both given; shards hold their answers")
    if features is None and answers is None:
        return None
    store = None if features is None else FeatureStore(features)
    rows = store.answers if store is not None else read_answers(answers or Path())
    if not rows:
        raise ConfigError(f"{features or answers} holds no answers; regenerate some")
    order = sorted(range(len(rows)), key=lambda i: (prompt_place(rows[i].id), rows[i].id))
    folder = features.resolve().parent if features else (answers or Path()).resolve().parent
    return Recorded(rows, order[:num], read_meta(folder), store)


def examine(
    subject: Subject,
    loaded: LoadedTarget,
    prompts: Sequence[Sequence[int]],
    recorded: Recorded | None,
    *,
    max_tokens: int,
    log: Callable[[str], None],
) -> Report:
    """Look at everything; later looks are left out where an earlier fault makes them senseless.

    Args:
        loaded: the target, in the numbers in which it serves.
        prompts: token ids of prompts whose answers are decoded.
        max_tokens: of each of those answers.
    """
    target = loaded.target
    findings = check_records(subject, target.info.dtype)
    if recorded is not None:
        log(f"reading {len(recorded.samples)} recorded answers")
        findings += check_answers(subject, recorded.samples, recorded.meta, target)
        if recorded.store is not None:
            chosen = recorded.chosen[:_NUM_TAPPED]
            findings += check_taps(subject, recorded.store, chosen, target)
    if any(each.check == "target" and "cannot serve" in each.what for each in findings):
        return Report(findings)
    log(f"decoding {len(prompts)} answers on both paths")
    more, figures = replay(subject, loaded, prompts, max_tokens)
    return Report([*findings, *more], figures)


def replay(
    subject: Subject, loaded: LoadedTarget, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[list[Finding], dict[str, Any]]:
    """Decode, and put the same blocks through the training path.

    Raises: ConfigError if no answer is long enough for a cycle.
    """
    drafter = bound_drafter(subject, loaded)
    limits = RunnerLimits(max_batch_size=ServingPath.GROUP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is worth saying becomes a finding
        decoded = decode(LLM.from_parts(loaded, drafter, limits), prompts, max_tokens)
        if not decoded.answers:
            raise ConfigError("no answer is long enough for two cycles; give more prompts (--num)")
        target, dtype = loaded.target, loaded.target.info.dtype
        blocks = decoded.blocks(target, subject.config.target_layer_ids)
        served = ServingPath(drafter).run(blocks)
    # As it was trained: where config.json was changed since, the paths part.
    trained_path = TrainingPath(subject, subject.trained)
    trained_blocks = decoded.blocks(target, subject.trained.target_layer_ids)
    trained, used = trained_path.run(trained_blocks)
    findings, figures = compare_rows(trained, served, used, dtype)
    loop, more = compare_loop(trained, decoded.cycles, dtype)
    findings += [loop]
    if not _is_untrained(subject):  # its weights can not tell what it was trained on
        served_so = TrainingPath(subject, subject.config, trained_path.tables)
        probed, figures["probes"] = check_probes(subject, decoded, target, served_so)
        findings += probed
    return [*findings, _acceptance(subject, decoded.mean_len)], figures | more


def bound_drafter(subject: Subject, loaded: LoadedTarget) -> BlockDrafter:
    """The drafter as it is served."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drafter = load_drafter(subject.folder, loaded.target)
    assert isinstance(drafter, BlockDrafter)
    return drafter


def _is_untrained(subject: Subject) -> bool:
    return subject.provenance.get("trained_steps") == "0"


def _acceptance(subject: Subject, mean_len: float) -> Finding:
    what = f"{mean_len:.2f} tokens a cycle in the loop"
    if mean_len >= _LEAST_LEN:
        return ok("acceptance", what)
    if _is_untrained(subject):
        return fault("acceptance", f"{what}: it was never trained", "blockdraft train")
    cure = "look at the findings above; if there are none, train longer or on more answers"
    return fault("acceptance", f"{what}: drafts are as good as never accepted", cure)
