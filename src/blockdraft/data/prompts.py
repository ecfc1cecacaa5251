"""From prompt sets to the list of answers wanted: what is asked, how, and under which id."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.data.recipe import AnswersRecipe, Source, Variant
from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.json_text import parse_json

_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Sample:
    """One answer wanted. `id` is `{prompt id}@{variant}#{sample}`; the seed derives from it."""

    id: str
    source: str
    prompt: str
    temperature: float

    @property
    def seed(self) -> int:
        """Of the random stream: the same whatever else is in the plan, in whatever order."""
        return int(hashlib.sha256(self.id.encode()).hexdigest()[:12], 16)


@dataclass(frozen=True)
class Plan:
    """Samples in the order they are answered, and what was left out.

    Attributes:
        num_too_long: samples whose prompt has more characters than allowed.
        num_unmatched: samples whose prompt lacks what their variant's `match` looks for.
        num_later_turns: prompts with more user turns than the first, which alone is asked.
        num_system_turns: prompts with a system message, or an answer before the first user turn,
            neither of which is asked.
    """

    samples: tuple[Sample, ...]
    num_too_long: int = 0
    num_unmatched: int = 0
    num_later_turns: int = 0
    num_system_turns: int = 0


@dataclass(frozen=True)
class FirstTurn:
    """What is asked of a row, and what is not: see `Plan`."""

    text: str
    has_later: bool
    has_system: bool


def make_plan(recipe: AnswersRecipe) -> Plan:
    """All samples of a recipe, shuffled by id: adding a source changes no other sample.

    Raises: ConfigError or CheckpointError naming the file and line that is missing or damaged.
    """
    samples: list[Sample] = []
    counts: Counter[str] = Counter()
    for source in recipe.sources:
        for prompt_id, turn in read_prompts(source, recipe.data_folder):
            counts["later"] += turn.has_later
            counts["system"] += turn.has_system
            for number, variant in enumerate(source.variants):
                put = put_prompt(turn.text, variant, recipe.templates)
                if put is None:
                    counts["unmatched"] += variant.num_samples
                    continue
                if len(put) > recipe.max_prompt_chars:
                    counts["long"] += variant.num_samples
                    continue
                samples += [
                    Sample(f"{prompt_id}@{number}#{j}", source.name, put, variant.temperature)
                    for j in range(variant.num_samples)
                ]
    _check_ids(samples)
    samples.sort(key=lambda sample: _place(sample.id, recipe.order_seed))
    return Plan(
        tuple(samples[: recipe.max_samples]),
        num_too_long=counts["long"],
        num_unmatched=counts["unmatched"],
        num_later_turns=counts["later"],
        num_system_turns=counts["system"],
    )


def put_prompt(text: str, variant: Variant, templates: Mapping[str, str]) -> str | None:
    """A prompt as the variant puts it; None where its `match`, or one of the groups, is missing."""
    found = None if variant.match is None else re.search(variant.match, text, re.DOTALL)
    if variant.match is not None and (found is None or None in found.groupdict().values()):
        return None
    if variant.cut_before is not None:
        text = text.split(variant.cut_before, 1)[0]
    if variant.template is None:
        return text
    places = {"prompt": text} | (found.groupdict() if found else {})
    # In one go: what a prompt says is never taken for a place.
    return _PLACE.sub(lambda m: places.get(m[1], m[0]), templates[variant.template])


def read_prompts(source: Source, data_folder: Path) -> Iterator[tuple[str, FirstTurn]]:
    """Id and first user turn of each row.

    Raises: ConfigError if the file is not there; CheckpointError naming a row that has no prompt.
    """
    for number, (row, place) in enumerate(_rows(source, data_folder)):
        if number == source.max_rows:
            return
        turn = _first_turn(row.get(source.column))
        if turn is None:
            raise CheckpointError(
                f"{place} has no prompt in {source.column!r}; it must be a text, a list of user "
                "turns or chat messages, the first user turn one text that is not empty, no list "
                f"of parts (the row has {', '.join(row) or 'nothing'})"
            )
        row_id = row.get("id")
        yield f"{source.name}/{number}" if row_id is None else str(row_id), turn


def _rows(source: Source, data_folder: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Rows of a source, each with the words that say where it is."""
    if source.file is not None:
        yield from _file_rows(data_folder / source.file)
        return
    for number, row in enumerate(_hub_rows(source)):
        yield row, f"row {number} of {source.dataset}"


def _file_rows(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    try:
        file = path.open("rb")  # decoded line by line, so that a wrong one is named
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; set data_dir to the folder of the prompt files"
        ) from error
    with file:
        for number, line in enumerate(file, 1):
            place = f"{path}:{number}"
            try:
                row = parse_json(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise CheckpointError(
                    f"{place} is not UTF-8 ({error}); convert the file"
                ) from error
            except ValueError as error:
                raise CheckpointError(f"{place} is no JSON: {error}") from error
            if not isinstance(row, dict):
                raise CheckpointError(f"{place} is no JSON object")
            yield row, place


def _hub_rows(source: Source) -> Iterator[Mapping[str, Any]]:
    # Imported late: it takes a second, and prompt files do not need it.
    from datasets import load_dataset  # type: ignore[import-untyped]

    try:
        rows = load_dataset(source.dataset, source.dataset_config, split=source.split)
    except Exception as error:  # the library raises its own, requests', and plain ones
        reason = (str(error) or repr(error)).splitlines()[0]
        raise CheckpointError(
            f"hub set {source.dataset} ({source.dataset_config or 'default'}, {source.split}) "
            f"cannot be read: {reason}"
        ) from error
    yield from rows


def _first_turn(value: object) -> FirstTurn | None:
    """The first user turn of a row's prompt; None where there is none, or it is no text."""
    messages = [value] if isinstance(value, str) else value
    if not isinstance(messages, Sequence):
        return None
    roles = [item.get("role") if isinstance(item, Mapping) else "user" for item in messages]
    if "user" not in roles:
        return None
    # Not the first that is a text: a later turn must not be asked in its place.
    first = messages[roles.index("user")]
    text = first.get("content") if isinstance(first, Mapping) else first
    if not isinstance(text, str) or not text:
        return None
    has_system = roles[0] != "user" or "system" in roles
    return FirstTurn(text, has_later=roles.count("user") > 1, has_system=has_system)


def _check_ids(samples: Sequence[Sample]) -> None:
    counts = Counter(sample.id for sample in samples)
    twice = next((sample_id for sample_id, count in counts.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"the sources give the id {twice} twice; ids of prompts must differ")


def _place(sample_id: str, order_seed: int) -> bytes:
    return hashlib.sha256(f"{order_seed}:{sample_id}".encode()).digest()
