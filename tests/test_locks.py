"""What is installed for whom: serving waits for a short list, the tests for the whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def locked(name: str) -> dict[str, str]:
    """The version that a lock names for each package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def wanted(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements}


@pytest.mark.parametrize("other", ["run", "docs"])
def test_what_two_locks_name_has_one_version(other: str) -> None:
    dev, found = locked("dev"), locked(other)
    assert {name: found[name] for name in found.keys() & dev.keys()} == {
        name: dev[name] for name in found.keys() & dev.keys()
    }


def test_serving_is_given_what_it_needs_and_nothing_of_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run = locked("run")
    assert wanted(project["dependencies"]) <= run.keys()
    assert run.keys() <= locked("dev").keys(), "what serves is what was tested"
    of_others = {"fairway", *wanted(project["optional-dependencies"]["run"])}
    tools = wanted(project["optional-dependencies"]["dev"]) - of_others
    assert tools
    assert not tools & run.keys()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
class TestMake:
    def would_run(self, target: str, venv: Path) -> str:
        command = ["make", "--dry-run", target, f"VENV={venv}"]
        return subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def stamp(self, venv: Path, *names: str) -> None:
        for name in names:
            (venv / name).touch()  # in the order in which they are made: newer than the locks

    def test_a_first_run_installs_what_serving_needs(self, tmp_path: Path) -> None:
        commands = self.would_run("run", tmp_path)
        assert "requirements/run.txt" in commands
        assert "requirements/dev.txt" not in commands
        assert f"{tmp_path}/bin/fairway serve" in commands

    def test_the_tests_install_the_rest(self, tmp_path: Path) -> None:
        self.stamp(tmp_path, ".installed-run")
        commands = self.would_run("test", tmp_path)
        assert "requirements/run.txt" not in commands
        assert "requirements/dev.txt" in commands

    @pytest.mark.parametrize("target", ["run", "test", "check"])
    def test_nothing_is_installed_twice(self, tmp_path: Path, target: str) -> None:
        self.stamp(tmp_path, ".installed-run", ".installed")
        assert "-m pip" not in self.would_run(target, tmp_path)
