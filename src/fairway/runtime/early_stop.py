"""A stop that is asked for before anything has begun: the process ends at once, with status 0.

It imports next to nothing, to be the first thing that a command does: most of what a start takes is
imports, and a supervisor may change its mind during them.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def end_on_signals() -> None:
    """End the process at SIGINT and SIGTERM from here on, until `stop_on_signals` sees to them.

    Only while nothing has been opened or begun: nothing is closed and nobody is notified.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    # Not by an exception: it would be raised in the middle of an import, by whose code it may be
    # caught, and leave a traceback.
    os._exit(0)
