"""An event that ends the process whenever its graph fires: what that costs, and what not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from fairway.graphs.crash_loop import CRASHES_MAX, STARTS_MAX
from tests.support.poisoned_graph import EVENTS, POISON, UNWANTED

ROOT = Path(__file__).parents[2]
TRIES = 20


def run_until_it_lives(place: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """How often the process ended before its time, and what came of it."""
    command = [sys.executable, "-m", "tests.support.poisoned_graph", str(place), *options]
    for crashes in range(TRIES):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return crashes, msgspec.json.decode(done.stdout)
        assert done.returncode == 13, done.stderr
    raise AssertionError(f"it ended {TRIES} times")


def test_an_event_that_ends_the_process_is_kept_aside_after_a_few_starts(tmp_path: Path) -> None:
    crashes, outcome = run_until_it_lives(tmp_path, "inline", "dead_letter")
    assert crashes <= POISON + STARTS_MAX + CRASHES_MAX, "each start gets on, or counts"
    assert outcome["kept"] == [n for n in range(1, EVENTS + 1) if n != POISON]
    [reason] = outcome["dead"]
    assert f"the process ended {CRASHES_MAX} times" in reason
    assert outcome["halted"] is None


def test_an_event_that_ends_the_process_when_a_predicate_sees_it_is_kept_aside(
    tmp_path: Path,
) -> None:
    crashes, outcome = run_until_it_lives(tmp_path, "where", "dead_letter")
    assert crashes <= POISON + STARTS_MAX + CRASHES_MAX
    assert outcome["kept"] == [n for n in range(1, EVENTS + 1) if n not in (UNWANTED, POISON)]
    [reason] = outcome["dead"]
    assert f"the process ended {CRASHES_MAX} times" in reason


def test_an_event_that_ends_the_process_halts_a_graph_that_is_to_halt(tmp_path: Path) -> None:
    _, outcome = run_until_it_lives(tmp_path, "waits", "halt")
    assert outcome["kept"] == list(range(1, POISON))
    assert f"the process ended {CRASHES_MAX} times" in outcome["halted"]
    assert not outcome["dead"]
    again, outcome = run_until_it_lives(tmp_path, "waits", "halt")
    assert again == 0, "it is not tried again until somebody resumes it"
    assert outcome["kept"] == list(range(1, POISON))
