"""Traps in the checkpoint: each is planted, found and named."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
import torch

from blockdraft.errors import ConfigError
from blockdraft.interop.zlab import read_zlab, write_zlab
from blockdraft.training.doctor.answers import vocabulary_findings
from blockdraft.training.doctor.findings import Report
from blockdraft.training.doctor.records import check_records, dtype_findings
from blockdraft.training.doctor.subject import open_subject
from tests.cli.tiny_target import write_target
from tests.training.doctor.conftest import Edit, Trained, run_cli
from tests.training.doctor.spoiling import forget_config, found, respoil


def test_taps_off_by_one_are_named(trained: Trained, drafter: Path, edit: Edit) -> None:
    edit(target_layer_ids=[2, 5, 7])
    report = trained.examine(trained.subject(drafter))
    taps = found(report, "taps").what
    assert "[2, 5, 7]; the weights were trained with [1, 4, 6]: one layer too late" in taps
    assert "the paths part at the final rows" in found(report, "hidden").what


def test_taps_off_by_one_are_named_though_nothing_records_them(
    trained: Trained, drafter: Path, edit: Edit
) -> None:
    edit(target_layer_ids=[2, 5, 7])
    forget_config(drafter)
    report = trained.examine(trained.subject(drafter))
    assert "with taps one layer earlier" in found(report, "taps").what
    assert "it was trained so" in found(report, "taps").what
    assert "lack" in found(report, "taps", "warning").what


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"mask_token_id": 270}, "mask", "mask_token_id 270; the weights were trained with 271"),
        ({"rope_theta": 500.0}, "rope", "theta 500, factor 1; the weights were trained with"),
        (
            {"is_causal": True},
            "window",
            r"causal \[True\]; the weights were trained with \[False\]",
        ),
        ({"rms_norm_eps": 0.5}, "config", "norm_eps 0.5"),
    ],
)
def test_settings_changed_after_training(
    trained: Trained, drafter: Path, edit: Edit, change: dict[str, object], check: str, words: str
) -> None:
    edit(**change)
    report = trained.examine(trained.subject(drafter))
    assert re.search(words, found(report, check).what)
    assert "config.json" in found(report, check).cure


def test_a_window_that_training_had_not(trained: Trained, drafter: Path, edit: Edit) -> None:
    edit(sliding_window=6, layer_types=["sliding_attention"], use_sliding_window=True)
    report = trained.examine(trained.subject(drafter))
    assert "windows [6]; the weights were trained with [None]" in found(report, "window").what
    assert found(report, "hidden")


def test_another_rope_than_the_target_s(trained: Trained, drafter: Path, edit: Edit) -> None:
    edit(rope_theta=500.0)
    forget_config(drafter)
    what = found(trained.examine(trained.subject(drafter)), "rope").what
    assert "theta 500, factor 1 in the drafter, type default, theta 10000" in what


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("<|im_end|>", "is an end token of"),
        ("<|im_start|>", "which the chat template writes"),
        ("he", "a token of ordinary text"),
    ],
)
def test_masks_that_text_holds(
    trained: Trained, drafter: Path, edit: Edit, mask: str, words: str
) -> None:
    token = trained.loaded.codec.tokenizer.token_to_id(mask)
    edit(mask_token_id=token)
    forget_config(drafter)
    report = trained.examine(trained.subject(drafter))
    assert words in found(report, "mask").what


def test_other_weights_of_the_target(trained: Trained, drafter: Path, tmp_path: Path) -> None:
    respoil(drafter / "model.safetensors", lambda _: None, **{"blockdraft.target_fingerprint": "f"})
    what = found(trained.examine(trained.subject(drafter)), "target").what
    assert "(weights f), not for" in what


def test_another_chat_template_than_at_training(trained: Trained, drafter: Path) -> None:
    weights = drafter / "model.safetensors"
    assert len(trained.subject(drafter).provenance["template_sha256"]) == 64
    respoil(weights, lambda _: None, **{"blockdraft.template_sha256": "f"})
    finding = found(trained.examine(trained.subject(drafter)), "template")
    assert "chat template is another" in finding.what


def test_a_target_of_another_shape_ends_the_examination(trained: Trained, tmp_path: Path) -> None:
    other = write_target(tmp_path / "other", vocab_size=300)
    report = Report(check_records(trained.subject(target=other), torch.float32))
    assert "vocabulary 272, not 300" in found(report, "target").what


def test_numbers_too_large_for_the_dtype(trained: Trained, drafter: Path) -> None:
    respoil(drafter / "model.safetensors", lambda t: t["fc.weight"].mul_(1e6))
    subject = trained.subject(drafter)
    [finding] = dtype_findings(subject, torch.float16)
    assert (finding.level, "fc.weight" in finding.what) == ("fault", True)
    [finding] = dtype_findings(subject, torch.bfloat16)
    assert finding.level == "ok"


def test_numbers_that_overflow_in_service(trained: Trained, drafter: Path) -> None:
    respoil(drafter / "model.safetensors", lambda t: t["norm.weight"].mul_(1e38))
    report = trained.examine(trained.subject(drafter))
    assert "not finite" in found(report, "hidden").what


def test_a_drafter_that_was_never_trained(trained: Trained, tmp_path: Path) -> None:
    run_cli("init-drafter", trained.target, "-o", tmp_path / "new", "--selector-rank", 8)
    report = trained.examine(trained.subject(tmp_path / "new"))
    assert "never trained" in found(report, "acceptance").what
    assert not any("trained so" in each.what for each in report.findings)


def test_end_tokens_that_cannot_be_drafted(trained: Trained, tmp_path: Path) -> None:
    config, tensors = read_zlab(trained.drafter)
    subject = trained.subject()
    ids = torch.arange(60)
    tensors = {**tensors, "draft_vocab_ids": ids}
    small = dataclasses.replace(subject, tensors=tensors)
    answers = trained.recorded().samples
    [finding] = vocabulary_findings(small, answers)
    assert (finding.level, "end token" in finding.what) == ("fault", True)
    with_end = torch.cat([ids, torch.tensor(sorted(subject.source.end_ids))])
    small = dataclasses.replace(subject, tensors={**tensors, "draft_vocab_ids": with_end})
    [finding] = vocabulary_findings(small, answers)
    assert (finding.level, "% of what the answers say" in finding.what) == ("warning", True)
    assert config.vocab_size == 272


def test_names_of_drafters(trained: Trained, tmp_path: Path) -> None:
    source = trained.subject().source
    for name, words in (
        ("auto", "no dflash2 or dflash drafter comes with the package"),
        ("dflash", "no dflash drafter comes with the package"),
        ("ngram", "is no trained drafter"),
        (str(tmp_path / "none"), "not a name .* and not a folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_subject(name, source)


def test_written_config_is_what_was_written(tmp_path: Path, drafter: Path) -> None:
    """A checkpoint that is copied through our reader and writer stays sound."""
    copy = tmp_path / "copy"
    write_zlab(copy, *read_zlab(drafter))
    shutil.rmtree(drafter)
    from blockdraft.interop.zlab import read_written_config

    assert read_written_config(copy) == read_zlab(copy)[0]
