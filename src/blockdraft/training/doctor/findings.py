"""What was looked at and what was found: one line each, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """One look.

    Attributes:
        check: what was looked at: target, config, taps, features, template, mask, rope, window,
            dtype, vocabulary, answers, hidden, candidates, path, loop, acceptance.
        what: what was found, in one line.
        cure: what to do; empty where nothing is wrong.
    """

    check: str
    level: Level
    what: str
    cure: str = ""


def ok(check: str, what: str) -> Finding:
    """Nothing is wrong here."""
    return Finding(check, "ok", what)


def warning(check: str, what: str, cure: str) -> Finding:
    """May be meant, and may be wrong."""
    return Finding(check, "warning", what, cure)


def fault(check: str, what: str, cure: str) -> Finding:
    """Wrong: drafts are worse than they could be."""
    return Finding(check, "fault", what, cure)


@dataclass(frozen=True)
class Report:
    """All findings, in the order in which a draft comes about, and the figures behind them."""

    findings: Sequence[Finding]
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def faults(self) -> list[Finding]:
        """What is wrong."""
        return [finding for finding in self.findings if finding.level == "fault"]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"findings": [asdict(each) for each in self.findings], "figures": self.figures}
