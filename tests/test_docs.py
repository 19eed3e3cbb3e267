"""What the documentation shows runs: every example, and the README's snippets as pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```(?:python|py)\b.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[str]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def run(script: Path, cwd: Path) -> None:
    """Run `script` as a reader would, in an empty directory and with warnings as errors."""
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run(example, tmp_path)


def test_readme_snippets_run_as_pasted(tmp_path: Path) -> None:
    pasted = snippets(ROOT / "README.md")
    assert pasted, "the README opens with an example that runs"
    for number, snippet in enumerate(pasted):
        script = tmp_path / f"snippet_{number}.py"
        script.write_text(snippet, encoding="utf-8")
        run(script, tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_python_in_a_page_is_included_from_examples(page: Path) -> None:
    for snippet in snippets(page):
        assert re.fullmatch(r'\s*--8<-- "examples/[\w/.:-]+"\s*', snippet), (
            f"{page.relative_to(ROOT)} holds Python that no test runs:\n{snippet}"
        )
