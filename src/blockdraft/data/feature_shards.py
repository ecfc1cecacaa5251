"""Hidden states of answers on disk: shards, their index, and reading them by sample.

A folder of shards holds, for each shard number:

- `NNNNN.safetensors`: `features` [N, f] bfloat16, the rows of its samples one after another
  (n-1 rows for a sample of n tokens, prompt and answer), and `lens`, the rows of each;
- `NNNNN.rows.npz`: the answers themselves (`answer_pack`), so that a shard is whole without the
  answers file;

and `index.json`, which says what the states are of and names every shard with its samples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import BFloat16, Int64
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blockdraft.data.answer_pack import unpack_answers
from blockdraft.data.answers import Answer, write_whole
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.json_text import parse_json

INDEX_NAME = "index.json"
SHARDS_NAME = "shards"


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One shard in the index; `lens` are feature rows of each sample."""

    file: str
    ids: tuple[str, ...]
    lens: tuple[int, ...]
    sha256: str

    @property
    def rows_file(self) -> str:
        """Name of the file with the shard's answers."""
        return rows_name(self.file)


@dataclass(frozen=True, kw_only=True)
class FeatureIndex:
    """What the states of a folder are, and where.

    Attributes:
        target: name of the target.
        fingerprint: SHA-256 of its weights.
        layer_ids: tapped layers (0-based outputs, before the final norm), in the order in which
            their states stand side by side in a row.
        hidden_size: width of one layer's state.
    """

    target: str
    fingerprint: str
    layer_ids: tuple[int, ...]
    hidden_size: int
    dtype: str = "bfloat16"
    shards: tuple[ShardEntry, ...] = field(default=())

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return len(self.layer_ids) * self.hidden_size


@dataclass(frozen=True)
class FeatureSample:
    """A sample as training takes it.

    Attributes:
        token_ids: prompt and answer [n].
        prompt_len: tokens of the prompt.
        features: [n-1, f]; row j is the state after token j.
        id: of the answer.
    """

    token_ids: Int64[Tensor, "n"]
    prompt_len: int
    features: BFloat16[Tensor, "r f"]
    id: str


def read_index(folder: Path) -> FeatureIndex:
    """The index of a folder of shards.

    Raises: ConfigError if there is no such folder; CheckpointError if its index is missing or
        damaged.
    """
    path = folder / INDEX_NAME
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is not a folder; make one with blockdraft regenerate and features.layer_ids"
        )
    try:
        table = parse_json(path.read_text(encoding="utf-8"))
        shards = tuple(
            ShardEntry(
                file=str(entry["file"]),
                ids=tuple(entry["ids"]),
                lens=tuple(entry["lens"]),
                sha256=str(entry["sha256"]),
            )
            for entry in table.pop("shards")
        )
        return FeatureIndex(**{**table, "layer_ids": tuple(table["layer_ids"]), "shards": shards})
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} does not exist; make it with blockdraft regenerate and features.layer_ids"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no index of shards: {error!r}") from error


def write_index(folder: Path, index: FeatureIndex) -> None:
    """Write the index, whole or not at all."""
    write_whole(folder / INDEX_NAME, json.dumps(asdict(index)))


def rows_name(shard_file: str) -> str:
    """Name of the file with the answers of a shard."""
    return f"{shard_file.removesuffix('.safetensors')}.rows.npz"


def map_shard(path: Path) -> tuple[BFloat16[Tensor, "n f"], list[int], dict[str, str]]:
    """A shard's features (memory-mapped), rows of each sample, and metadata.

    Raises: CheckpointError if it is missing or damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            lens = [int(i) for i in file.get_tensor("lens")]
            return file.get_tensor("features"), lens, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error


class FeatureStore:
    """Samples of a folder of shards, read by memory map.

    Every sample is checked for its lengths when it is read; `integrity` checks what they hold.

    Args:
        folder: of the shards, with their index.
    Raises: as `read_index`.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.index = read_index(self.folder)
        self._places = [
            (shard, start, length)
            for shard, entry in enumerate(self.index.shards)
            for start, length in zip(_starts(entry.lens), entry.lens, strict=True)
        ]
        self._mapped: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return self.index.layer_ids

    @cached_property
    def answers(self) -> list[Answer]:
        """The answer of each sample, in the order of the samples."""
        return [answer for entry in self.index.shards for answer in self._rows(entry)]

    def sample(self, i: int) -> FeatureSample:
        """Sample `i`; its features are a view of the mapped file: not to be written to.

        Raises: CheckpointError naming file and sample if lengths do not agree.
        """
        shard, start, length = self._places[i]
        answer, features = self.answers[i], self._features(shard)[start : start + length]
        if len(features) != length or len(answer.all_ids) != length + 1:
            raise CheckpointError(
                f"{self.place(i)}: {len(features)} feature rows for {len(answer.all_ids)} tokens; "
                "there must be one row less than tokens"
            )
        return FeatureSample(
            torch.tensor(answer.all_ids), len(answer.prompt_ids), features, answer.id
        )

    def batch(self, indices: Sequence[int]) -> list[FeatureSample]:
        """Several samples."""
        return [self.sample(i) for i in indices]

    def place(self, i: int) -> str:
        """Where sample `i` is, for messages."""
        return f"{self.file_of(i)} sample {self.answers[i].id}"

    def file_of(self, i: int) -> str:
        """The shard that holds sample `i`."""
        return str(self.folder / self.index.shards[self._places[i][0]].file)

    def check_shard(self, shard: int) -> None:
        """Raises: CheckpointError if a shard is missing or damaged, or not as the index says."""
        self._features(shard)

    def shard_samples(self, shard: int) -> range:
        """The samples of a shard."""
        first = sum(len(entry.ids) for entry in self.index.shards[:shard])
        return range(first, first + len(self.index.shards[shard].ids))

    def _features(self, shard: int) -> Tensor:
        if shard not in self._mapped:
            entry = self.index.shards[shard]
            features, lens, _ = map_shard(self.folder / entry.file)
            expected = (sum(entry.lens), self.index.width)
            if tuple(features.shape) != expected or features.dtype != torch.bfloat16:
                raise CheckpointError(
                    f"{self.folder / entry.file} holds {list(features.shape)} {features.dtype}; "
                    f"the index says {list(expected)} bfloat16"
                )
            if tuple(lens) != entry.lens:
                raise CheckpointError(f"{self.folder / entry.file}: lens differ from the index")
            self._mapped[shard] = features
        return self._mapped[shard]

    def _rows(self, entry: ShardEntry) -> list[Answer]:
        path = self.folder / entry.rows_file
        answers = unpack_answers(path)
        if tuple(answer.id for answer in answers) != entry.ids:
            raise CheckpointError(f"{path} holds other samples than the index says")
        return answers


def _starts(lens: Sequence[int]) -> list[int]:
    starts = [0]
    for length in lens[:-1]:
        starts.append(starts[-1] + length)
    return starts[: len(lens)]
