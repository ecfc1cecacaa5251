"""Models of the Hugging Face hub: only the files needed, into the hub's own cache."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.targets.sources.files import Progress, SourceFiles
from blockdraft.targets.sources.folder import read_folder

#: Everything `read_folder` reads, and nothing else (no .bin weights, no original checkpoints).
WANTED = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
]


def read_hub(repo_id: str, progress: Progress) -> SourceFiles:
    """Fetch what is not yet in the cache, and read it.

    Raises:
        ConfigError: no such model, or no access to it.
        CheckpointError: the hub cannot be reached, or what it gave is damaged.
    """
    progress(f"{repo_id}: looking on the hub, fetching what is not here yet")
    try:
        folder = Path(snapshot_download(repo_id, allow_patterns=WANTED))
    except GatedRepoError as error:
        raise ConfigError(
            f"{repo_id} needs its licence accepted on the hub, and a login (`hf auth login`)"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{repo_id} is not on the hub, or is private: check the spelling or log in "
            f"(`hf auth login`); a folder or GGUF file is given by its path"
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"{repo_id!r} is not a hub id (owner/name)") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{repo_id} is not in the cache and the hub did not give it ({_first_line(error)}); "
            f"try again when online, or give the path of a folder or GGUF file"
        ) from error
    return read_folder(folder, name=repo_id, source=f"hub:{repo_id}@{folder.name}")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
