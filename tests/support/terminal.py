"""A command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_S = 60


def on_terminal(url: str, *words: str) -> str:
    """What a command prints on a terminal, colours left out."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "fairway", *words],
        cwd=ROOT,
        env={**os.environ, "FAIRWAY_URL": url, "TERM": "xterm", "COLUMNS": "160"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    printed = b""
    try:
        while piece := os.read(ours, 4096):
            printed += piece
    except OSError:  # how Linux says that the other side is gone
        pass
    finally:
        os.close(ours)
    assert child.wait(WAIT_S) == 0, printed
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode()).replace("\r", "")
