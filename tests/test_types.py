"""What type checkers say of the public API: nothing of right uses, and something of each wrong one.

mypy and basedpyright read the examples (the tutorials are made of them), the code of the README
and of the pages, and a file of wrong uses, in one run each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WRONG = ROOT / "tests" / "support" / "wrong_types.py"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorial").glob("*.md"))]
LEFT_OUT = {"graphs_nats_feed.py"}  # of a library that is not installed here
WAIT_S = 280

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is checked, in one directory."""
    made = tmp_path_factory.mktemp("typed")
    for path in (ROOT / "examples").glob("*.py"):
        if path.name not in LEFT_OUT:
            (made / path.name).write_text(path.read_text())
    for page in PAGES:
        blocks = [code for code in BLOCK.findall(page.read_text()) if "--8<--" not in code]
        for number, code in enumerate(blocks):
            name = f"{page.stem.replace('-', '_').lower()}_block_{number}.py"
            (made / name).write_text(code)
    (made / WRONG.name).write_text(WRONG.read_text())
    assert (made / "readme_block_0.py").exists()
    return made


def expected() -> set[int]:
    lines = WRONG.read_text().splitlines()
    found = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(found) > 30
    return found


def judge(found: list[tuple[str, int, str]]) -> None:
    elsewhere = [one for one in found if one[0] != WRONG.name]
    assert not elsewhere, "\n".join(f"{file}:{line}: {said}" for file, line, said in elsewhere)
    told = {line: said for _, line, said in found}
    lines = WRONG.read_text().splitlines()
    missed = [f"{line}: {lines[line - 1]}" for line in sorted(expected() - told.keys())]
    assert not missed, "\n".join(["nothing was said of", *missed])
    too_much = [f"{line}: {told[line]}" for line in sorted(told.keys() - expected())]
    assert not too_much, "\n".join(too_much)


def test_mypy_finds_each_wrong_use_and_nothing_else(folder: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty"]
    command += ["--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context"]
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"  # what `make check` has read is not read again
    ended = subprocess.run(
        [*command, cache, *sorted(path.name for path in folder.glob("*.py"))],
        cwd=folder,
        env={"MYPYPATH": f"{folder}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    lines = re.findall(r"^([^:\n]+):(\d+): error: (.*)$", ended.stdout, re.M)
    judge([(Path(file).name, int(line), said) for file, line, said in lines])


def test_basedpyright_finds_each_wrong_use_and_nothing_else(folder: Path) -> None:
    config = {
        "include": ["."],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "reportDeprecated": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--project", str(folder), "--outputjson"),
            *("--pythonpath", sys.executable),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    found = json.loads(ended.stdout)["generalDiagnostics"]
    judge(
        [
            (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
            for one in found
            if one["severity"] == "error"
        ]
    )
