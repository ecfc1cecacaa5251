"""Right answers are marked right however they are written, wrong ones wrong."""

from __future__ import annotations

import pytest

from blockdraft.evaluation.answers import Answer
from blockdraft.evaluation.marks import (
    accuracy,
    is_same_expression,
    is_same_number,
    last_boxed,
    passes_tests,
)
from blockdraft.evaluation.tasks import EvalPrompt, Task


@pytest.mark.parametrize(
    ("text", "answer", "is_right"),
    [
        ("so \\boxed{18}.", "18", True),
        ("\\boxed{18} and later 20", "18", True),
        ("12 eggs, then 18", "18", True),
        ("$1,234.00 in all", "1234", True),
        ("it is -3", "3", False),
        ("\\boxed{\\$70{,}000}", "70000", False),
        ("\\boxed{\\$70,000}", "70000", True),
        ("about 18.5", "18", False),
        ("no number", "18", False),
        ("\\boxed{x} is 18", "18", True),
    ],
)
def test_numbers(text: str, answer: str, is_right: bool) -> None:
    assert is_same_number(text, answer) == is_right


@pytest.mark.parametrize(
    ("boxed", "answer", "is_right"),
    [
        ("\\dfrac{14}{3}", "\\frac{14}{3}", True),
        ("\\frac{1}{2}", "0.5", True),
        ("-\\frac12", "-0.5", True),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})", True),
        ("90^\\circ", "90", True),
        ("10,000", "10000", True),
        ("\\text{Evelyn}", "Evelyn", True),
        ("p-q", "q-p", False),
        ("\\frac{3}{0}", "3", False),
        ("2", "3", False),
    ],
)
def test_expressions(boxed: str, answer: str, is_right: bool) -> None:
    assert is_same_expression(f"So we get $\\boxed{{{boxed}}}$.", answer) == is_right


def test_an_expression_must_be_boxed() -> None:
    assert not is_same_expression("the answer is 9", "9")


def test_the_last_complete_box_counts() -> None:
    assert last_boxed("\\boxed{1} \\boxed{ {2} } \\boxed{3") == " {2} "
    assert last_boxed("none") is None


ADD = EvalPrompt(
    id="add",
    turns=("Solve:\n```python\ndef add(a, b):\n    '''Sum.'''\n```",),
    extra={"entry_point": "add", "test": "def check(f):\n    assert f(2, 3) == 5\n"},
)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("```python\ndef add(a, b):\n    return a + b\n```", True),
        ("```\nimport os\n```\n```python\ndef add(a, b):\n    return a + b\n```", True),
        ("def add(a, b):\n    return a + b", True),
        ("    return a + b", True),
        ("```python\ndef add(a, b):\n    return a - b\n```", False),
        ("I would rather not.", False),
        ("```python\ndef add(a, b):\n    return bytes(2**33) and 5\n```", False),
        ("```python\nimport sys\nsys.exit(1)\ndef add(a, b): return 5\n```", False),
        ("```python\ndef add(a, b):\n    return 0\nexit()\n```", False),
        ("```python\nimport os\ndef add(a, b):\n    os._exit(0)\n```", False),
        ("```python\nimport sys\nsys.stdout = None\ndef add(a, b): return a + b\n```", True),
    ],
)
def test_programs(text: str, is_right: bool) -> None:
    assert passes_tests(ADD, text) == is_right


def test_a_program_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.evaluation.marks._CODE_TIMEOUT_S", 0.5)
    assert not passes_tests(ADD, "def add(a, b):\n    while True: pass")


def answer(prompt_id: str, text: str, turn: int = 0) -> Answer:
    return Answer(
        prompt_id=prompt_id,
        turn=turn,
        token_ids=(),
        num_tokens=0,
        prompt_tokens=0,
        text=text,
        finish_reason="stop",
        error=None,
        ttft_s=None,
        decode_s=0.0,
        gaps_s=(),
        cycles=(),
    )


def test_accuracy_is_of_first_turns() -> None:
    prompts = tuple(EvalPrompt(id=i, turns=("?",), answer=i) for i in "123")
    task = Task(name="t", source="", prompts=prompts, check="number")
    answers = [answer("1", "1"), answer("2", "5"), answer("3", "3"), answer("3", "0", turn=1)]
    assert accuracy(task, answers, run_code=False) == pytest.approx(2 / 3)
    assert accuracy(task, [], run_code=False) is None


def test_programs_run_only_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(name="t", source="", prompts=(ADD,), check="code")
    answers = [answer("add", "def add(a, b): return a + b")]
    assert accuracy(task, answers, run_code=True) == 1.0
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("it ran"))
    assert accuracy(task, answers, run_code=False) is None
    unmarked = Task(name="t", source="", prompts=(ADD,), check=None)
    assert accuracy(unmarked, answers, run_code=True) is None
