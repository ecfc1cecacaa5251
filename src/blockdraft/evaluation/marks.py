"""Whether an answer is right, for sets that say what is."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

from blockdraft.evaluation.answers import Answer
from blockdraft.evaluation.tasks import EvalPrompt, Task

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FENCE = re.compile(r"```[\w+-]*\n(.*?)```", re.DOTALL)
_CODE_TIMEOUT_S = 10
_CODE_MEMORY_BYTES = 2**31


def accuracy(task: Task, answers: Sequence[Answer], *, run_code: bool) -> float | None:
    """Share of right first turns; None where the task is not marked.

    Args:
        run_code: programs of the model may run (see `passes_tests`); without it code is not marked.
    """
    mark = _marker(task.check, run_code)
    prompts = {prompt.id: prompt for prompt in task.prompts}
    first = [answer for answer in answers if answer.turn == 0]
    if mark is None or not first:
        return None
    return sum(mark(prompts[answer.prompt_id], answer.text) for answer in first) / len(first)


def _marker(check: str | None, run_code: bool) -> Callable[[EvalPrompt, str], bool] | None:
    if check == "number":
        return lambda prompt, text: is_same_number(text, prompt.answer or "")
    if check == "math":
        return lambda prompt, text: is_same_expression(text, prompt.answer or "")
    return passes_tests if check == "code" and run_code else None


def is_same_number(text: str, answer: str) -> bool:
    """Whether the boxed number of a text, else its last one, is the answer's."""
    boxed = last_boxed(text)
    found = _NUMBER.findall(boxed) if boxed is not None else []
    found = found or _NUMBER.findall(text)
    wanted = _NUMBER.findall(answer)
    return bool(found and wanted) and _value(found[-1]) == _value(wanted[-1])


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))


def is_same_expression(text: str, answer: str) -> bool:
    """Whether the last boxed expression of a text is written like the answer, or is its number."""
    boxed = last_boxed(text)
    if boxed is None:
        return False
    ours, theirs = plain_latex(boxed), plain_latex(answer)
    if ours == theirs:
        return True
    numbers = [_as_number(each) for each in (ours, theirs)]
    return numbers[0] is not None and numbers[0] == numbers[1]


def last_boxed(text: str) -> str | None:
    r"""What the last complete \boxed{..} of a text holds; braces may nest."""
    found = None
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth = 1
        for end in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                found = text[match.end() : end]
                break
    return found


def plain_latex(text: str) -> str:
    """LaTeX without what changes only its looks: spacing, sizes, units of degrees, dollar signs."""
    for old, new in (("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\%", ""), ("\\$", "")):
        text = text.replace(old, new)
    text = re.sub(r"\\(?:left|right|[,;:! ]|quad\b|qquad\b)", "", text)
    text = re.sub(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", "", text)
    text = re.sub(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.sub(r"[\s$]", "", text).rstrip(".")


def _as_number(text: str) -> Fraction | None:
    fraction = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}", text)
    try:
        if fraction:
            sign = -1 if fraction[1] else 1
            return sign * Fraction(int(fraction[2]), int(fraction[3]))
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def passes_tests(prompt: EvalPrompt, text: str) -> bool:
    """Whether the program in an answer passes the set's tests, in a process of its own.

    The process has a folder, seconds and memory of its own, but is no sandbox: it can read files
    and reach the network as the user can.
    """
    program, passed = code_of(text, prompt), secrets.token_hex(16)
    # A program may end the process itself, with 0 and before its tests: the last line must run.
    say = f"__import__('os').write(1, b'{passed}')"
    tests = f"{prompt.extra['test']}\n\ncheck({prompt.extra['entry_point']})\n{say}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(f"{_LIMITS}{program}\n\n{tests}\n", encoding="utf-8", errors="replace")
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(path)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CODE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and passed.encode() in done.stdout


_LIMITS = f"""\
import resource
resource.setrlimit(resource.RLIMIT_AS, ({_CODE_MEMORY_BYTES}, {_CODE_MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_CPU, ({_CODE_TIMEOUT_S}, {_CODE_TIMEOUT_S}))
del resource
"""


def code_of(text: str, prompt: EvalPrompt) -> str:
    """The first program of an answer; behind the beginning that the prompt gave, if it goes on."""
    blocks = _FENCE.findall(text) or [text]
    start = f"def {prompt.extra['entry_point']}"
    program: str = next((block for block in blocks if start in block), blocks[0])
    if start in program:
        return program
    given = _FENCE.findall(prompt.turns[0])
    return f"{given[0] if given else ''}{program}"
