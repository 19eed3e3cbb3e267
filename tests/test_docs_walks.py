"""The three walks of the architecture page are what the code does.

Each list of the page must be found, in its order, among the calls that are seen on the way. A
function that was renamed, moved or is not called any more is told with its line on the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/explanation/architecture.md"
WALKS = {
    "append": "### Append to watcher",
    "enqueue": "### Enqueue to commit",
    "event": "### Event to effect",
}


class Step(NamedTuple):
    """A function on the page, and the line where it stands."""

    line: int
    number: int
    name: str


def steps_of(page: str, heading: str) -> list[Step]:
    lines = page.splitlines()
    begin = lines.index(heading)
    found = []
    for at, line in enumerate(lines[begin + 1 :], start=begin + 2):
        if line.startswith("#"):
            break
        if step := re.match(r"(\d+)\. `([\w.]+)`", line):
            found.append(Step(at, int(step[1]), step[2]))
    return found


def missed(steps: list[Step], calls: list[str]) -> list[Step]:
    """Those of the steps that are not called after the ones before them."""
    at = 0
    out = []
    for step in steps:
        try:
            at = calls.index(step.name, at) + 1
        except ValueError:
            out.append(step)
    return out


def complaint(step: Step, calls: list[str]) -> str:
    """What is wrong with a step, and what it may be called now."""
    last = step.name.rpartition(".")[2]
    if step.name in calls:
        hint = "it is called, but not after the step before it"
    elif alike := sorted({call for call in calls if call.rpartition(".")[2] == last}):
        hint = f"called was {', '.join(alike)}"
    else:
        hint = f"nothing called {last} was called"
    return f"{PAGE}:{step.line}: step {step.number}, `{step.name}`: {hint}"


def tries_of(walk: str) -> list[list[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.walks", walk],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tries: list[list[str]] = json.loads(done.stdout)
    return tries


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_of_the_page_is_what_is_called(walk: str) -> None:
    steps = steps_of((ROOT / PAGE).read_text(encoding="utf-8"), WALKS[walk])
    assert [step.number for step in steps] == list(range(1, len(steps) + 1)), (
        f"{PAGE}: the steps under {WALKS[walk]!r} are numbered from 1 on, and there are some"
    )
    assert steps
    tries = tries_of(walk)
    best = min(tries, key=lambda calls: len(missed(steps, calls)))
    complaints = [complaint(step, best) for step in missed(steps, best)]
    assert not complaints, "edit the page, or see why these are not called:\n" + "\n".join(
        complaints
    )


def test_a_step_that_is_not_called_in_its_place_is_told_with_its_line() -> None:
    page = "# Page\n\n### Way\n\n1. `a.f`: first\n2. `b.C.g`\n\n*Later:*\n\n3. `c.h`\n\n## End\n"
    page += "\n1. `d.i`\n"
    steps = steps_of(page, "### Way")
    assert steps == [Step(5, 1, "a.f"), Step(6, 2, "b.C.g"), Step(10, 3, "c.h")]
    assert missed(steps, ["a.f", "x", "b.C.g", "a.f", "c.h"]) == []
    (moved,) = missed(steps, ["a.f", "e.C.g", "c.h"])
    assert complaint(moved, ["a.f", "e.C.g", "c.h"]) == (
        f"{PAGE}:6: step 2, `b.C.g`: called was e.C.g"
    )
    (early,) = missed(steps, ["b.C.g", "a.f", "c.h"])
    assert complaint(early, ["b.C.g", "a.f", "c.h"]).endswith("not after the step before it")
