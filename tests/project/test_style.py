"""Limits of size, and words that do not belong here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 50


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, folders
    return found


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in python_files("src", "tests", "benchmarks")
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    }
    assert not long


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function less its docstring: a documented signature is not long code."""
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = first.end_lineno if is_docstring else node.lineno - 1
    assert node.end_lineno is not None
    assert start is not None
    return node.end_lineno - start


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.name}": lines
        for path in python_files("src")
        for node in functions(path)
        if (lines := body_lines(node)) > MAX_FUNCTION_LINES
    }
    assert not long


def test_public_functions_and_classes_say_what_they_do() -> None:
    silent = []
    for path in python_files("src"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_class = isinstance(node, ast.ClassDef)
            if is_class and not node.name.startswith("_") and not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}:{node.name}")
        if not ast.get_docstring(ast.parse(path.read_text())) and path.name != "__init__.py":
            silent.append(str(path.relative_to(ROOT)))
    assert not silent


def test_nothing_is_left_for_others() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" * 3)
    left = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in python_files("src", "tests", "benchmarks")
        for word in words
        if word in path.read_text()
    ]
    assert not left
