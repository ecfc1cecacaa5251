"""What `check-lossless` looks at, and how hard."""

from __future__ import annotations

from dataclasses import dataclass

from blockdraft.errors import ConfigError
from blockdraft.types import SamplingParams

_AT_LEAST = {
    "num_prompts": 1,
    "max_tokens": 2,
    "num_contexts": 1,
    "num_samples": 200,
    "depth": 2,
    "joint_len": 2,
    "joint_top_k": 2,
}
_MOST_TEXTS = 512
_MOST_SEED = 2**48


@dataclass(frozen=True, kw_only=True)
class LosslessSettings:
    """Sizes of the check.

    Attributes:
        num_prompts, max_tokens: of the greedy texts.
        num_contexts: texts after which the law is tested.
        num_samples: requests after each of them.
        depth: tokens of each request that are looked at.
        joint_len, joint_top_k: tokens of the joint law, and how many of them top-k leaves a place.
        temperature, top_p, top_k, min_p: how requests sample.
        seed: request i of a test samples with a seed made of this and i.
        alpha: chance that a run without any fault fails all the same.
    Raises: ConfigError for a value out of range.
    """

    num_prompts: int = 16
    max_tokens: int = 96
    num_contexts: int = 4
    num_samples: int = 2000
    depth: int = 4
    joint_len: int = 4
    joint_top_k: int = 3
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    alpha: float = 1e-3

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.joint_top_k**self.joint_len > _MOST_TEXTS:
            raise ConfigError(
                f"joint_top_k {self.joint_top_k} and joint_len {self.joint_len} make "
                f"{self.joint_top_k**self.joint_len} texts; ask for at most {_MOST_TEXTS}"
            )
        if not 0.0 < self.alpha <= 0.05:
            raise ConfigError(f"alpha is {self.alpha}; it must be above 0 and at most 0.05")
        if not 0 <= self.seed < _MOST_SEED:
            raise ConfigError(f"seed is {self.seed}; it must be 0 to 2**48 - 1")
        if self.sampling.is_greedy:
            raise ConfigError(
                f"temperature is {self.temperature}; the law of sampled tokens needs one above 0"
            )

    @property
    def sampling(self) -> SamplingParams:
        """How requests sample, but for length and seed."""
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )

    @property
    def joint_sampling(self) -> SamplingParams:
        """As `sampling`, with the few tokens a place that the joint law needs."""
        return SamplingParams(**{**vars(self.sampling), "top_k": self.joint_top_k})

    def seeds(self, test: int) -> range:
        """Seeds of one test's requests: no two tests share any."""
        first = self.seed + (test << 48)
        return range(first, first + self.num_samples)
