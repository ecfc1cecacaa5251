"""The z-lab drafter format: a folder with `config.json` and `model.safetensors`.

Other loaders of this format let wrong files through and draft badly; this one is strict. What it
writes loads in z-lab's package and in the servers that read the format; what else we want to
remember (the target) stands in the metadata of the safetensors file, where nobody else looks.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.tensors import check_tensors
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.interop.zlab_config import parse_zlab_config
from blockdraft.interop.zlab_config_dict import zlab_config_dict
from blockdraft.json_text import parse_json

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"

_NAMESPACE = "blockdraft."

#: Metadata of the weights: `config.json` as it was written with them. Whoever changes the one file
#: later is found out by the other.
_WRITTEN_CONFIG = "blockdraft_config"

_CODEBOOKS = tuple(f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor"))


def read_zlab(path: str | Path) -> tuple[DFlashConfig, dict[str, Tensor]]:
    """Read a drafter folder; tensors by their z-lab names, codebooks without `.weight`.

    Raises: ConfigError if there is no such folder; CheckpointError if a file is missing or damaged,
        or if keys or tensors are missing, unknown, contradictory or misshapen; it names the folder
        and them.
    """
    folder = Path(path)
    raw = _read_config(folder)
    tensors = _read_tensors(folder)
    try:
        config = parse_zlab_config(raw)
        check_tensors(config, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    _warn_of_shared_mask(folder, raw, config)
    return config, tensors


def read_provenance(path: str | Path) -> dict[str, str]:
    """What `write_zlab` recorded beside the weights; empty for files that others wrote.

    Raises: CheckpointError if the weights file is missing or damaged.
    """
    with _open_weights(Path(path)) as file:
        metadata = file.metadata() or {}
    return {
        key.removeprefix(_NAMESPACE): value
        for key, value in metadata.items()
        if key.startswith(_NAMESPACE)
    }


def read_written_config(path: str | Path) -> DFlashConfig | None:
    """The config that `write_zlab` wrote with the weights; None for files that others wrote.

    Raises: CheckpointError if the weights file is missing or damaged.
    """
    with _open_weights(Path(path)) as file:
        text = (file.metadata() or {}).get(_WRITTEN_CONFIG)
    if text is None:
        return None
    try:
        return parse_zlab_config(parse_json(text))
    except ValueError as error:
        raise CheckpointError(f"{path} has damaged metadata: {error}; fetch it again") from error


def checkpoint_fingerprint(path: str | Path) -> str:
    """SHA-256 of a checkpoint's weights file."""
    with (Path(path) / WEIGHTS_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_zlab(
    path: str | Path,
    config: DFlashConfig,
    tensors: Mapping[str, Tensor],
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Write a drafter folder. Killed at any moment, it leaves no folder that loads half-written.

    Args:
        provenance: texts to record, such as `target_name` and `target_fingerprint`.
    Raises: CheckpointError if the tensors do not fit the config; ConfigError if the format cannot
        say what the config says.
    """
    check_tensors(config, tensors)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(zlab_config_dict(config, tensors["fc.weight"].dtype), indent=2) + "\n"
    # One tensor, one storage: views of a larger one would not be written.
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    notes = {f"{_NAMESPACE}{key}": value for key, value in (provenance or {}).items()}
    metadata = {"format": "pt", _WRITTEN_CONFIG: text, **notes}
    # Without config.json a folder does not load: it goes first and comes back last.
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    _replace(folder / WEIGHTS_FILE, lambda temporary: save_file(whole, temporary, metadata))
    _replace(folder / CONFIG_FILE, lambda temporary: temporary.write_text(text, "utf-8"))


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG_FILE
    try:
        raw = parse_json(file.read_text("utf-8"))
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; give a drafter's folder") from error
        raise CheckpointError(
            f"{folder} holds no {CONFIG_FILE}; give a drafter's folder"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{file} holds no table; give a drafter's {CONFIG_FILE}")
    return raw


def _open_weights(folder: Path) -> Any:
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        others = sorted(p.name for p in folder.glob("*.safetensors*")) or ["no safetensors file"]
        raise CheckpointError(
            f"{folder} holds no {WEIGHTS_FILE}, only {', '.join(others)}; join the weights into one"
        )
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; fetch or write it again") from error


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if (folder / "mask_embedding.pt").exists():
        raise CheckpointError(
            f"{folder} holds mask_embedding.pt, a trained mask vector; only the target's embedding"
            " of mask_token_id is implemented"
        )
    tensors: dict[str, Tensor] = {}
    with _open_weights(folder) as file:
        for stored in file.keys():  # noqa: SIM118 - not a mapping
            name = _plain_name(stored)
            if name in tensors:
                raise CheckpointError(f"{folder / WEIGHTS_FILE} holds {name} under two names")
            tensors[name] = file.get_tensor(stored)
    return tensors


def _plain_name(name: str) -> str:
    name = name.removeprefix("model.")
    bare = name.removesuffix(".weight")
    return bare if bare in _CODEBOOKS else name


def _warn_of_shared_mask(folder: Path, raw: Mapping[str, Any], config: DFlashConfig) -> None:
    for key in ("pad_token_id", "eos_token_id"):
        value = raw.get(key)
        if config.mask_token_id in (value if isinstance(value, list) else [value]):
            warnings.warn(
                f"{folder}: mask_token_id {config.mask_token_id} is also {key}; drafts are bad"
                " unless the drafter was trained so",
                stacklevel=3,
            )


def _replace(file: Path, write: Callable[[Path], object]) -> None:
    """Write beside `file`, force it to disk, then put it in place in one step."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
