"""`--weights int8`: another target, named in the provenance; anything else is refused."""

from __future__ import annotations

import json

import pytest

from blockdraft.kernels import native
from tests.cli.conftest import Cli

ARGS = ("hello hello", "--max-tokens", 6, "--dtype", "bfloat16", "--json")


@pytest.mark.skipif(not native.available(), reason=f"native kernels: {native.why_unavailable()}")
def test_int8_is_the_target_and_is_told(generate: Cli) -> None:
    own, int8 = (
        json.loads(generate(*ARGS, *more).out)["provenance"] for more in ((), ("--weights", "int8"))
    )
    assert (own["weights"], int8["weights"]) == ("bfloat16", "int8")
    assert own["target"]["fingerprint"] != int8["target"]["fingerprint"]


def test_unknown_weights_are_refused(generate: Cli) -> None:
    ran = generate(*ARGS, "--weights", "int3")
    assert ran.code == 2
    assert "'int3' are not offered; choose int8" in ran.error
