"""Whether a drafter can serve a target: a wrong pair loads cleanly and only drafts badly."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from blockdraft.drafters.config import DFlashConfig
from blockdraft.errors import CheckpointError
from blockdraft.types import TargetInfo

#: What a checkpoint records of the target it was trained for.
TARGET_NAME = "target_name"
TARGET_FINGERPRINT = "target_fingerprint"
TEMPLATE_SHA256 = "template_sha256"

#: SHA-256 of the checkpoint's own weights file: found when it is read, never recorded in it.
CHECKPOINT_FINGERPRINT = "checkpoint_fingerprint"


def record_target(target: TargetInfo, template_sha256: str | None) -> dict[str, str]:
    """What to write into a checkpoint about the target it is made for.

    Args:
        template_sha256: of the target's chat template; None if it has none.
    """
    found = {TARGET_NAME: target.name, TARGET_FINGERPRINT: target.fingerprint}
    return found if template_sha256 is None else {**found, TEMPLATE_SHA256: template_sha256}


def check_pairing(
    config: DFlashConfig, provenance: Mapping[str, str], target: TargetInfo, drafter: str
) -> None:
    """Refuse a target of another shape; warn if it is not the recorded one.

    Raises: CheckpointError naming both models.
    """
    made_for = provenance.get(TARGET_NAME, "another target")
    faults = [
        f"{what}: {mine} in the drafter, {theirs} in the target"
        for what, mine, theirs in (
            ("hidden size", config.hidden_size, target.hidden_size),
            ("target layers", config.num_target_layers, target.num_layers),
            ("vocabulary", config.vocab_size, target.vocab_size),
        )
        if mine != theirs
    ]
    if faults:
        raise CheckpointError(
            f"drafter {drafter!r} was made for {made_for} and cannot serve {target.name}"
            f" ({'; '.join(faults)}); choose a drafter made for {target.name}"
        )
    _warn_of_other_target(provenance, target, drafter)
    if config.mask_token_id in target.end_ids:
        warnings.warn(
            f"drafter {drafter!r} uses end token {config.mask_token_id} of {target.name} as its"
            " mask; it will draft badly unless it was trained so",
            stacklevel=2,
        )


def _warn_of_other_target(provenance: Mapping[str, str], target: TargetInfo, drafter: str) -> None:
    name, fingerprint = provenance.get(TARGET_NAME), provenance.get(TARGET_FINGERPRINT)
    is_same_file = fingerprint is not None and fingerprint == target.fingerprint
    is_same_name = fingerprint is None and name in (None, target.name)
    if not (is_same_file or is_same_name):
        warnings.warn(
            f"drafter {drafter!r} was made for {name} (weights {str(fingerprint)[:12]}), not for"
            f" {target.name} (weights {target.fingerprint[:12]}): output stays exact, but fewer"
            " drafts may be accepted",
            stacklevel=2,
        )
