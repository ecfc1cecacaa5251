"""Where the public evaluation sets are from, and how their rows become prompts.

The sentences around the prompts are part of the public benchmarks: those of GSM8K, MATH-500 and
HumanEval are the ones that DFlash's benchmark sends (arXiv 2602.06036), so that acceptance lengths
can be compared; the other sets are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BOXED = "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_SOLVE = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{prompt}\n```"
)


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """A public set.

    Attributes:
        file: its name in a data folder, as rows of `{"id", "turns", "answer"?}`.
        hub: hub id, configuration and split; None where only a local file serves.
        prompt_key, answer_key: columns on the hub.
        wrapper: text around the first turn.
        check: how answers are marked ("number", "math", "code"), or None.
    """

    file: str
    hub: tuple[str, str | None, str] | None
    prompt_key: str = "prompt"
    answer_key: str | None = None
    wrapper: str = "{prompt}"
    check: str | None = None

    def wrap(self, prompt: str) -> str:
        """The first turn as it is sent."""
        return self.wrapper.format(prompt=prompt)

    def from_hub(self, row: Mapping[str, Any], index: int) -> dict[str, Any]:
        """A hub row in the form of a local one."""
        prompt = row[self.prompt_key]
        found: dict[str, Any] = {
            "id": str(row.get("task_id", row.get("prompt_id", row.get("unique_id", index)))),
            "turns": [prompt] if isinstance(prompt, str) else list(prompt),
        }
        if self.answer_key is not None:
            found["answer"] = str(row[self.answer_key])
        if self.check == "number":  # GSM8K writes the working first, then "#### 1,234"
            found["answer"] = found["answer"].rpartition("####")[2].strip().replace(",", "")
        extra = ("test", "entry_point")
        return found | {key: row[key] for key in extra if key in row}


SOURCES: dict[str, TaskSource] = {
    "gsm8k": TaskSource(
        file="gsm8k.jsonl",
        hub=("openai/gsm8k", "main", "test"),
        prompt_key="question",
        answer_key="answer",
        wrapper=_BOXED,
        check="number",
    ),
    "math500": TaskSource(
        file="math500.jsonl",
        hub=("HuggingFaceH4/MATH-500", None, "test"),
        prompt_key="problem",
        answer_key="answer",
        wrapper=_BOXED,
        check="math",
    ),
    "humaneval": TaskSource(
        file="humaneval.jsonl",
        hub=("openai/openai_humaneval", None, "test"),
        answer_key="canonical_solution",
        wrapper=_SOLVE,
        check="code",
    ),
    "mbpp": TaskSource(
        file="mbpp.jsonl",
        hub=("google-research-datasets/mbpp", "sanitized", "test"),
        answer_key="code",  # not marked: the prompts do not tell the names that the tests call
    ),
    "mt-bench": TaskSource(
        file="mt_bench.jsonl", hub=("HuggingFaceH4/mt_bench_prompts", None, "train")
    ),
    "long-context": TaskSource(file="longctx_qmsum_cut.jsonl", hub=None),
}
