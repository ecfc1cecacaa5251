"""What the documentation says is so: links, names, keys, defaults, commands, examples."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from blockdraft.cli.app import app, main
from blockdraft.cli.generate import as_dict
from blockdraft.engine.llm import LLM
from blockdraft.engine.outputs import Output, Speculation, Usage
from blockdraft.interop.new_drafter import NewDrafter, write_new_drafter
from blockdraft.types import SamplingParams
from tests.cli.tiny_target import write_target

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text("utf-8"), re.DOTALL)


def table_rows(text: str, heading: str) -> dict[str, str]:
    """First to second column of the first table under a heading; names without backticks."""
    part = text.split(f"\n{heading}\n", 1)[1]
    lines = re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", part.split("\n#", 1)[0], re.MULTILINE)
    return {name: second.strip() for name, second in lines}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for link in LINK.findall(without_code(path.read_text("utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(path: Path) -> None:
    """`decoding/step.py` means a file of the package; other paths start at the root."""
    places = (ROOT, ROOT / "src" / "blockdraft")
    names = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|c|h|json))`", path.read_text("utf-8"))
    assert not [n for n in names if not any((place / n).exists() for place in places)]


def test_every_method_has_its_page() -> None:
    from blockdraft.registry import drafter_names

    pages = {path.stem for path in (ROOT / "docs" / "concepts").glob("*.md")}
    built_in = {"plain" if name == "none" else name for name in drafter_names()}
    assert built_in <= pages


def test_the_command_line_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def commands(path: Path) -> Iterator[list[str]]:
    """Arguments of every `blockdraft` line in a page's shell blocks."""
    for block in code_blocks(path, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["blockdraft"]:
                end = next((i for i, word in enumerate(words) if word in "<>|"), len(words))
                yield words[1:end]


def test_every_command_that_is_shown_is_accepted() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = [words for path in PAGES for words in commands(path)]
    assert len(shown) >= 10
    for name, *arguments in shown:
        known[name].make_context(name, list(arguments))  # raises what a user would see


# --- examples and keys, against a tiny random target ---


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("docs") / "tiny")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["README.md", "docs/guides/python_api.md"])
def test_the_examples_run(name: str, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = code_blocks(ROOT / name, "python")
    assert blocks
    given: dict[str, Any] = {}
    for block in blocks:
        tiny = block.replace('LLM(\n    "smollm2-135m",', f'LLM(\n    "{target}", dtype="float32",')
        tiny = tiny.replace('LLM("smollm2-135m")', f'LLM("{target}", dtype="float32")')
        tiny = re.sub(r'("ngram"),  #', r"drafter=\1,  #", tiny)
        exec(compile(tiny, name, "exec"), given)
    assert capsys.readouterr().out


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of a JSON object's leaves."""
    if not isinstance(value, dict):
        yield prefix
        return
    for key, inner in value.items():
        yield from paths(inner, f"{prefix}.{key}" if prefix else key)


def test_the_json_page_has_every_key(target: Path, tmp_path: Path) -> None:
    documented = set(re.findall(r"^\| `([\w.]+)` \|", page("reference/generate_json.md"), re.M))
    found: set[str] = set()
    checkpoint = tmp_path / "drafter"
    write_new_drafter(
        str(target), NewDrafter(num_layers=1, num_taps=2), checkpoint, log=lambda _: None
    )
    for drafter in ("none", "ngram", str(checkpoint)):
        llm = LLM(str(target), drafter, dtype="float32")
        [output] = llm.generate("hello", SamplingParams(max_tokens=4))
        found |= set(paths(json.loads(json.dumps(as_dict(llm, output)))))
    assert found == documented


def test_the_tables_of_arguments_have_every_name_and_default() -> None:
    guide = page("guides/python_api.md")
    engine = inspect.signature(LLM.__init__).parameters
    defaults = {name: each.default for name, each in engine.items() if name != "self"}
    assert _literals(table_rows(guide, "## The engine")) == defaults
    params = {field.name: getattr(SamplingParams(), field.name) for field in _fields()}
    assert _literals(table_rows(guide, "## Sampling")) == params


def _fields() -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(SamplingParams)


def _literals(rows: dict[str, str]) -> dict[str, Any]:
    return {name: eval(value.strip("`"), {}) for name, value in rows.items()}


def test_the_table_of_outputs_has_every_field() -> None:
    rows = table_rows(page("guides/python_api.md"), "## Outputs")
    assert set(rows) == {field.name for field in dataclasses.fields(Output)}
    for name, kind in (("usage", Usage), ("speculation", Speculation)):
        public = {field.name for field in dataclasses.fields(kind)}
        public |= {n for n, v in vars(kind).items() if isinstance(v, property)}
        assert set(re.findall(r"`(\w+)`", rows[name])) == public


def test_the_table_of_errors_has_every_kind() -> None:
    from blockdraft import errors

    kinds = {n for n, v in vars(errors).items() if isinstance(v, type) and n != "UserError"}
    assert set(table_rows(page("guides/python_api.md"), "## Errors")) == kinds


def test_the_fingerprint_is_what_the_guide_computes(tmp_path: Path) -> None:
    """The shell lines of the guide, run on one file and on shards."""
    from blockdraft.targets.sources.fingerprint import fingerprint

    one, several = re.findall(
        r"^(sha256sum .*?)  +#", (ROOT / "docs/guides/own_target.md").read_text("utf-8"), re.M
    )
    for names, line in (
        (["model.safetensors"], one),
        ([f"model-0000{i}-of-00002.safetensors" for i in (1, 2)], several),
    ):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(name.encode())
        done = subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True)
        expected = fingerprint([folder / name for name in names])
        assert done.stdout.split()[0] == expected


def test_the_exit_codes_of_the_page_are_those_of_main() -> None:
    codes = re.findall(r"^\| (\d+) \|", page("reference/cli.md"), re.MULTILINE)
    assert codes == ["0", "1", "2", "130"]
    said = inspect.getdoc(main) or ""
    assert all(code in said for code in codes)
