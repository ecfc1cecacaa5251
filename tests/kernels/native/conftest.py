"""Every test of this folder runs on each instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blockdraft.kernels import native

_REASON = native.why_unavailable()
_ISAS = native.usable_isas() if _REASON is None else ("none",)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _ISAS)


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips where there are no kernels; puts the number of threads back to one."""
    if _REASON is not None:
        if "isa" in request.fixturenames:
            pytest.skip(_REASON)
        yield
        return
    native.set_num_threads(1)
    yield
    native.set_num_threads(1)
