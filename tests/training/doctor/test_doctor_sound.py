"""A drafter with nothing wrong: every look is there, and none complains."""

from __future__ import annotations

from tests.training.doctor.conftest import Trained


def test_a_sound_drafter_has_no_fault(trained: Trained) -> None:
    report = trained.examine()
    assert [each for each in report.findings if each.level != "ok"] == []
    looks = {each.check for each in report.findings}
    expected = "target config mask rope window dtype template answers vocabulary taps"
    assert looks == {*expected.split(), "hidden", "candidates", "path", "loop", "acceptance"}


def test_both_paths_give_the_same_figures(trained: Trained) -> None:
    figures = trained.examine().figures
    assert figures["hidden_p95"] < 1e-3
    assert figures["candidates_best_agree"] == figures["path_agree"] == 1.0
    assert figures["predicted_len"] == figures["decoded_len"] == figures["path_served_len"]
    assert figures["cycles_agree"] == 1.0
    assert figures["num_cycles"] > 30
    # It learnt something, else the faults of the other tests could not be told.
    assert figures["decoded_len"] > 1.5
