"""What `blockdraft regenerate` is told: prompts, how they are put, who answers, what is kept."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blockdraft.errors import ConfigError
from blockdraft.types import SamplingParams

#: Folder of prompt files where a recipe names none.
DATA_ENV = "BLOCKDRAFT_DATA"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to put a prompt.

    Attributes:
        template: name of one of the recipe's templates; None leaves the prompt as it is.
        match: a regular expression (Python's, "." takes line ends too) that is looked for in the
            prompt, whole; its named groups go to `{name}` in the template. Prompts without it, or
            without one of its groups, are left out of this variant, and counted.
        cut_before: the prompt ends where this text begins, if it holds it.
        temperature: 0 is greedy.
        num_samples: answers drawn of each prompt.
    """

    template: str | None = None
    match: str | None = None
    cut_before: str | None = None
    temperature: float = 0.0
    num_samples: int = 1

    def __post_init__(self) -> None:
        SamplingParams(temperature=self.temperature)
        if self.num_samples < 1:
            raise ConfigError(f"num_samples is {self.num_samples}; it must be 1 or more")
        if self.num_samples > 1 and SamplingParams(temperature=self.temperature).is_greedy:
            raise ConfigError(
                f"num_samples is {self.num_samples} at temperature 0, where all are alike; "
                "take one, or a higher temperature"
            )
        if self.match is not None:
            self._check_match(self.match)

    @property
    def group_names(self) -> tuple[str, ...]:
        """What `match` takes out of a prompt."""
        return () if self.match is None else tuple(re.compile(self.match).groupindex)

    def _check_match(self, pattern: str) -> None:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, TypeError) as error:
            raise ConfigError(f"match {pattern!r} is no regular expression: {error}") from error
        if "prompt" in self.group_names:
            raise ConfigError(f"match {pattern!r} names a group prompt; take another name for it")
        if self.group_names and self.template is None:
            raise ConfigError(
                f"match {pattern!r} names {', '.join(self.group_names)}, and there is no template "
                "that they go into"
            )


@dataclass(frozen=True, kw_only=True)
class Source:
    """A set of prompts: a JSONL file, or a set of the Hugging Face hub.

    Attributes:
        name: of the source; ids of rows without an `id` begin with it.
        file: JSONL, below the recipe's `data_dir` unless absolute; one object a line.
        dataset: id of a hub set, in place of a file.
        dataset_config: name of the set's configuration, where it has several.
        split: of the hub set.
        column: where a row's prompt is: a text, a list of user turns, or chat messages.
        max_rows: first rows taken; None takes all.
        variants: every prompt is put in each of these ways.
    """

    name: str
    file: Path | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    split: str = "train"
    column: str = "turns"
    max_rows: int | None = None
    variants: tuple[Variant, ...] = (Variant(),)

    def __post_init__(self) -> None:
        if (self.file is None) == (self.dataset is None):
            raise ConfigError(f"source {self.name} must have a file or a dataset, and not both")
        if not self.variants:
            raise ConfigError(f"source {self.name} has no variants; leave the key out for one")
        _check_most(f"max_rows of source {self.name}", self.max_rows)


@dataclass(frozen=True, kw_only=True)
class FeatureRecipe:
    """Hidden states kept with the answers.

    Attributes:
        layer_ids: target layers (0-based outputs, before the final norm); empty keeps none.
        shard_samples: answers in a file.
        reserve_gib: disk space that is left free; the run stops before it is touched.
    """

    layer_ids: tuple[int, ...] = ()
    shard_samples: int = 128
    reserve_gib: float = 5.0

    def __post_init__(self) -> None:
        if self.shard_samples < 1 or self.reserve_gib < 0:
            raise ConfigError("shard_samples must be 1 or more, and reserve_gib 0 or more")
        if len(set(self.layer_ids)) != len(self.layer_ids):
            raise ConfigError(f"layer_ids is {list(self.layer_ids)}; give each layer once")


@dataclass(frozen=True, kw_only=True)
class ServerRecipe:
    """An OpenAI-compatible server that runs the target (vLLM, SGLang, llama.cpp).

    Attributes:
        base_url: up to and with `/v1`.
        model: the server's name for the target; None asks it.
        concurrency: requests under way at once.
        timeout_s: longest wait for one answer.
        num_retries: of a request that failed for a passing reason.
    """

    base_url: str
    model: str | None = None
    concurrency: int = 64
    timeout_s: float = 300.0
    num_retries: int = 4

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url is {self.base_url!r}; it must begin with http(s)://")
        if self.concurrency < 1 or self.num_retries < 0 or self.timeout_s <= 0:
            raise ConfigError("concurrency must be 1 or more, timeout_s above 0, num_retries 0 up")


@dataclass(frozen=True, kw_only=True)
class AnswersRecipe:
    """Prompts to the target's own answers.

    Attributes:
        target: as `blockdraft generate --target` takes it.
        out: folder of `answers.jsonl` and the shards; may exist, then the run is resumed.
        sources: where prompts come from.
        data_dir: folder of the sources' files; None takes $BLOCKDRAFT_DATA, else `data`.
        templates: texts by name, each with {prompt} or the groups of a variant's `match` in it.
        max_tokens: of an answer.
        max_prompt_chars, max_prompt_len: longer prompts (in characters as put, in tokens as
            encoded) are left out and counted.
        max_samples: first ones of the plan's order; None takes all.
        order_seed: of the order in which samples are answered.
        dtype, batch_size, window: of the engine; prompts are sorted by length inside a window.
    """

    target: str
    out: Path
    sources: tuple[Source, ...]
    data_dir: Path | None = None
    templates: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int = 256
    max_prompt_chars: int = 4000
    max_prompt_len: int = 1024
    max_samples: int | None = None
    order_seed: int = 0
    dtype: str | None = None
    batch_size: int = 64
    window: int = 2048
    features: FeatureRecipe = field(default_factory=FeatureRecipe)
    server: ServerRecipe | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_sources()
        self._check_templates()
        if self.server is not None and self.features.layer_ids:
            raise ConfigError(
                "a server does not give hidden states; leave features.layer_ids empty "
                "and let training recompute them"
            )

    @property
    def data_folder(self) -> Path:
        """Where relative files of sources are."""
        return self.data_dir or Path(os.environ.get(DATA_ENV, "data"))

    def _check_sizes(self) -> None:
        for name in ("max_tokens", "max_prompt_chars", "max_prompt_len", "batch_size", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        _check_most("max_samples", self.max_samples)

    def _check_templates(self) -> None:
        """Every template holds what its variants put in: their groups, or else the prompt."""
        variants = [variant for source in self.sources for variant in source.variants]
        for name, text in self.templates.items():
            users = [variant for variant in variants if variant.template == name]
            every = {group for variant in users for group in variant.group_names}
            for variant in users or [Variant()]:
                own = set(variant.group_names)
                missing = {group for group in own or {"prompt"} if f"{{{group}}}" not in text}
                if missing:
                    places = ", ".join(f"{{{group}}}" for group in sorted(missing))
                    raise ConfigError(f"template {name} does not say where {places} goes")
                left = sorted(group for group in every - own if f"{{{group}}}" in text)
                if left:
                    raise ConfigError(
                        f"template {name} holds {{{left[0]}}}, which a variant that uses it does "
                        "not match; give that variant a template of its own"
                    )

    def _check_sources(self) -> None:
        names = [source.name for source in self.sources]
        if not names or len(set(names)) != len(names):
            raise ConfigError("sources must be at least one, each with a name of its own")
        for source in self.sources:
            for variant in source.variants:
                if variant.template is not None and variant.template not in self.templates:
                    raise ConfigError(
                        f"source {source.name} uses the template {variant.template!r}, which the "
                        f"recipe does not have; it has {', '.join(self.templates) or 'none'}"
                    )


def _check_most(name: str, number: int | None) -> None:
    """A limit that may be left out: Python would count a negative one from the end."""
    if number is not None and number < 1:
        raise ConfigError(f"{name} is {number}; it must be 1 or more, or left out for all")
