"""Traps in what a drafter was trained on: states, prompts, answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdraft.data.answers import Answer
from blockdraft.data.features_online import OnlineFeatures
from blockdraft.errors import ConfigError
from blockdraft.training.doctor.answers import check_answers
from blockdraft.training.doctor.examine import Recorded, open_recorded
from blockdraft.training.doctor.findings import Report
from blockdraft.training.doctor.taps import check_taps
from tests.training.doctor.conftest import Trained
from tests.training.doctor.spoiling import found, relabel, restate


def taps(trained: Trained, folder: Path) -> Report:
    recorded = trained.recorded(folder)
    assert recorded.store is not None
    chosen = recorded.chosen[:4]
    return Report(check_taps(trained.subject(), recorded.store, chosen, trained.loaded.target))


def test_states_of_another_layer_are_named(trained: Trained, answers: Path) -> None:
    relabel(answers, layer_ids=[1, 5, 6])
    what = found(taps(trained, answers), "taps").what
    assert "the features say layer 5, but these are layer 4's" in what


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows.roll(1, 0), "shifted by one: row j holds the state of the token before"),
        (lambda rows: rows.roll(-1, 0), "shifted by one: row j holds the state of the token after"),
        (lambda rows: rows * 0, "all zero or not finite"),
        (lambda rows: rows.index_fill(0, torch.tensor([3]), torch.nan), "1 of"),
        (lambda rows: rows.roll(64, 1), "but these are layer"),
        (lambda rows: rows.flip(0), "no layer's of this target"),
    ],
)
def test_rows_that_are_not_what_they_should(
    trained: Trained, answers: Path, change: Callable[[Tensor], Tensor], words: str
) -> None:
    restate(answers, change)
    whats = [each.what for each in taps(trained, answers).faults]
    assert any(words in what for what in whats), whats


def test_a_final_norm_in_the_last_layer_s_states(trained: Trained, answers: Path) -> None:
    recorded = trained.recorded(answers)
    assert recorded.store is not None
    target = trained.loaded.target
    last = OnlineFeatures(recorded.answers, target, (7,)).batch(range(len(recorded.answers)))
    normed = [torch.nn.functional.normalize(each.features.float(), dim=-1) for each in last]
    rows = 8 * torch.cat(normed).bfloat16()
    restate(answers, lambda old: torch.cat([old[:, :128], rows], 1))
    relabel(answers, layer_ids=[1, 4, 7])
    assert "is the final norm in them?" in found(taps(trained, answers), "features").what


def test_states_of_another_target(trained: Trained, answers: Path) -> None:
    relabel(answers, fingerprint="0" * 64, target="cousin")
    assert "recorded from cousin (weights 0000" in found(taps(trained, answers), "features").what


def looked_at(
    trained: Trained,
    change: Callable[[Answer], Answer] = lambda answer: answer,
    **more: object,
) -> Report:
    """The looks at answers, each of them changed first."""
    recorded = trained.recorded()
    changed = [change(answer) for answer in recorded.samples]
    spoiled = dataclasses.replace(recorded, answers=changed, chosen=range(len(changed)), **more)  # type: ignore[arg-type]
    target = trained.loaded.target
    return Report(check_answers(trained.subject(), spoiled.samples, spoiled.meta, target))


def test_answers_as_they_are(trained: Trained) -> None:
    assert [each.level for each in looked_at(trained).findings] == ["ok"] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: {"prompt_ids": a.prompt_ids[3:]}, "one begins "),
        (lambda a: {"prompt_ids": a.prompt_ids[:-3]}, "one ends "),
        (lambda a: {"prompt_ids": a.prompt_ids[:1] + a.prompt_ids}, "one begins "),
    ],
)
def test_prompts_that_the_template_does_not_write(
    trained: Trained, change: Callable[[Answer], dict[str, object]], words: str
) -> None:
    report = looked_at(trained, lambda a: dataclasses.replace(a, **change(a)))  # type: ignore[arg-type]
    what = found(report, "template").what
    assert "8 of 8 prompts are not as the template writes them" in what
    assert words in what


def test_a_template_that_has_changed(trained: Trained) -> None:
    report = looked_at(trained, meta={"template_sha256": "0" * 64})
    assert "another chat template" in found(report, "template").what


def test_answers_that_another_model_gave(trained: Trained) -> None:
    report = looked_at(trained, lambda a: dataclasses.replace(a, token_ids=a.token_ids[::-1]))
    finding = found(report, "answers")
    assert "another model's, or dataset text" in finding.what
    assert "regenerate" in finding.cure


def test_ends_that_are_missing_or_inside(trained: Trained) -> None:
    [end] = trained.subject().source.end_ids
    cut = looked_at(trained, lambda a: dataclasses.replace(a, finish_reason="stop"))
    assert "stopped without an end token" in found(cut, "answers").what
    inside = looked_at(trained, lambda a: dataclasses.replace(a, token_ids=(end, *a.token_ids[1:])))
    assert "go on after an end token" in found(inside, "answers").what


def test_a_mask_that_stands_in_the_text(trained: Trained) -> None:
    mask = trained.subject().config.mask_token_id
    report = looked_at(
        trained, lambda a: dataclasses.replace(a, token_ids=(mask, *a.token_ids[1:]))
    )
    assert "stands in 8 of 8 samples" in found(report, "mask").what


def test_sources_of_data(trained: Trained, tmp_path: Path) -> None:
    shards, file = trained.answers / "shards", trained.answers / "answers.jsonl"
    assert open_recorded(None, None, 4) is None
    both = [open_recorded(shards, None, 4), open_recorded(None, file, 4)]
    stored, alone = (each for each in both if isinstance(each, Recorded))
    assert [a.id for a in stored.samples] == [a.id for a in alone.samples]
    assert stored.meta == alone.meta
    assert stored.meta is not None
    assert stored.meta["fingerprint"] == trained.subject().source.fingerprint
    with pytest.raises(ConfigError, match="both given"):
        open_recorded(shards, file, 4)
    (tmp_path / "answers.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no answers"):
        open_recorded(None, tmp_path / "answers.jsonl", 4)
