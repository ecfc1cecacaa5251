"""BC-46: a drafter of another target is refused or warned about, naming both."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest

from blockdraft.drafters.pairing import check_pairing
from blockdraft.errors import CheckpointError
from blockdraft.types import TargetInfo
from tests.drafters.tiny import tiny_drafter_config
from tests.fakes.models import tiny_target

INFO = tiny_target().info
MADE_FOR = {"target_name": "other-model", "target_fingerprint": "f" * 64}


def target(**changes: Any) -> TargetInfo:
    return dataclasses.replace(INFO, **changes)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_layers": 3}, "target layers: 4 in the drafter, 3 in the target"),
        ({"hidden_size": 32}, "hidden size: 64 in the drafter, 32 in the target"),
        ({"vocab_size": 150}, "vocabulary: 160 in the drafter, 150 in the target"),
    ],
)
def test_other_shapes_are_refused_bc46(changes: dict[str, int], part: str) -> None:
    """BC-46 (a), (b)."""
    with pytest.raises(CheckpointError) as error:
        check_pairing(tiny_drafter_config(), MADE_FOR, target(**changes), "some/folder")
    for expected in (part, "other-model", INFO.name, "some/folder"):
        assert expected in str(error.value)


@pytest.mark.parametrize(
    "provenance", [MADE_FOR, {"target_name": "other-model"}, {"target_fingerprint": "f" * 64}]
)
def test_same_shapes_of_another_model_warn_bc46(provenance: dict[str, str]) -> None:
    """BC-46 (c)."""
    with pytest.warns(UserWarning, match=INFO.name) as notices:
        check_pairing(tiny_drafter_config(), provenance, INFO, "some/folder")
    assert len(notices) == 1
    assert str(provenance.get("target_name")) in str(notices[0].message)


@pytest.mark.parametrize(
    "provenance",
    [
        {},
        {"target_name": INFO.name},
        {"target_name": "renamed", "target_fingerprint": INFO.fingerprint},
    ],
)
def test_the_right_or_an_unrecorded_target_is_quiet(provenance: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_pairing(tiny_drafter_config(), provenance, INFO, "some/folder")


def test_mask_that_ends_the_target_warns_bc39() -> None:
    """BC-39: the mask is also an end token."""
    config = tiny_drafter_config(mask_token_id=INFO.end_ids[0])
    with pytest.warns(UserWarning, match="end token 1 of"):
        check_pairing(config, {}, INFO, "some/folder")
