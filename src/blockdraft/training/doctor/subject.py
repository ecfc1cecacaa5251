"""The drafter that is examined, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.errors import ConfigError
from blockdraft.interop.zlab import read_provenance, read_written_config, read_zlab
from blockdraft.registry import shipped_checkpoint
from blockdraft.targets.sources import SourceFiles

#: Methods that are trained; the first that is shipped for a target is "auto".
_METHODS = ("dflash2", "dflash")


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
        drafter: a folder; or `auto`, `dflash2` or `dflash`: the one shipped for the target.
    Raises: ConfigError if there is none; CheckpointError if its files are damaged.
    """
    folder = find_checkpoint(drafter, source.name)
    config, tensors = read_zlab(folder)
    return Subject(
        folder=folder,
        config=config,
        written=read_written_config(folder),
        tensors=tensors,
        provenance=read_provenance(folder),
        source=source,
    )


def find_checkpoint(drafter: str, target_name: str) -> Path:
    """The folder that a drafter's name stands for.

    Raises: ConfigError if it stands for none.
    """
    methods = _METHODS if drafter == "auto" else [each for each in _METHODS if each == drafter]
    for method in methods:
        found = shipped_checkpoint(method, target_name)
        if found is not None:
            return found
    if methods:
        raise ConfigError(
            f"no {' or '.join(methods)} drafter comes with the package for {target_name}; give the"
            " folder of one with --drafter"
        )
    if not Path(drafter).is_dir():
        raise ConfigError(
            f"--drafter {drafter} is no folder of a checkpoint; give one, or auto, dflash2 or"
            " dflash for the one that comes with the package"
        )
    return Path(drafter)
