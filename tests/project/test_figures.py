"""README and docs state what the committed JSON says, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_figures_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/update_figures.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_results_say_where_they_come_from() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        text = path.read_text()
        # Training speed is measured on random weights of a shape: there is no model to name.
        model = ("fingerprint", "seed") if '"target"' in text else ("num_parameters",)
        for key in ("commit", "versions", "machine", *model):
            assert f'"{key}"' in text, (path.name, key)


def test_readme_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (\w+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
