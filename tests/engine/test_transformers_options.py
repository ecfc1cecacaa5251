"""Options that only our own decoder has are refused for models that run on transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockdraft.errors import UnsupportedError
from blockdraft.targets import load
from tests.cli.tiny_target import write_target


@pytest.mark.parametrize("options", [{"kernels": "torch"}, {"exact": True}])
def test_kernels_and_exact_are_not_ignored(
    options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_target(tmp_path / "target")
    monkeypatch.setattr(load, "_why_not_decoder", lambda source: "a reason")
    with pytest.raises(UnsupportedError, match="a reason"):
        load.load_target(str(folder), log=lambda _: None, **options)  # type: ignore[arg-type]
