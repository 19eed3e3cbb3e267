"""A signal that comes while `fairway serve` or `fairway worker` starts: a stop like any other.

The moments are those at which a process can be seen from outside to have come so far: by the signal
it waits for, by a library that it has loaded, by a file that it has open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
WAIT_S = 60
APP = """
from fairway import Fairway

app = Fairway("data")

@app.job
async def send(id: int) -> int:
    return id
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def caught(process: Path) -> bool:
    """It has said what a SIGTERM does."""
    for line in (process / "status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def loaded(library: str) -> Callable[[Path], bool]:
    return lambda process: library in (process / "maps").read_text()


def opened(name: str) -> Callable[[Path], bool]:
    def look(process: Path) -> bool:
        for each in (process / "fd").iterdir():
            try:
                if os.readlink(each).endswith(name):
                    return True
            except FileNotFoundError:
                continue
        return False

    return look


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "signals are seen to": caught,
    "msgspec is loaded": loaded("msgspec"),
    "uvloop is loaded": loaded("uvloop"),
    "apsw is loaded": loaded("apsw"),
    "the log has an owner": opened("/owner.lock"),
    "the log is open": opened("/shard-0-of-1.db"),
    "the jobs are open": opened("/jobs.db"),
}
COMMANDS = {"serve": ("serve", "early:app", "--port", "0"), "worker": ("worker", "early:app")}
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_during_the_start_is_a_stop(command: str, number: str, tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(APP)
    for moment, come_so_far in MOMENTS.items():
        if command == "worker" and "the log" in moment:
            continue
        process = subprocess.Popen(
            [sys.executable, "-m", "fairway", *COMMANDS[command]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            end_s = time.monotonic() + WAIT_S
            while process.poll() is None and not come_so_far(Path(f"/proc/{process.pid}")):
                assert time.monotonic() < end_s, f"never seen: {moment}"
            process.send_signal(SIGNALS[number])
            _, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
            process.communicate()
        assert (process.returncode, errors) == (0, ""), moment
