"""The drafter that is examined, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.interop.zlab import read_provenance, read_written_config, read_zlab
from blockdraft.registry import checkpoint_folder
from blockdraft.targets.sources import SourceFiles


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A checkpoint and the files of its target.

    Attributes:
        config: as `config.json` says now, and as it is served.
        written: as it was when the weights were written, and so as it was trained; None where the
            weights do not tell.
        provenance: what the weights record of their target.
    """

    folder: Path
    config: DFlashConfig
    written: DFlashConfig | None
    tensors: Mapping[str, Tensor]
    provenance: Mapping[str, str]
    source: SourceFiles

    @property
    def trained(self) -> DFlashConfig:
        """The config that training used, as far as is known."""
        return self.written or self.config


def open_subject(drafter: str, source: SourceFiles) -> Subject:
    """Read a drafter's checkpoint.

    Args:
        drafter: as `checkpoint_folder` takes it.
    Raises: ConfigError if there is none; CheckpointError if its files are damaged.
    """
    folder = checkpoint_folder(drafter, source.name)
    config, tensors = read_zlab(folder)
    return Subject(
        folder=folder,
        config=config,
        written=read_written_config(folder),
        tensors=tensors,
        provenance=read_provenance(folder),
        source=source,
    )
