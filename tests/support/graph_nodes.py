"""Nodes that another process imports."""

from __future__ import annotations

import os
import threading


def doubled(number: int) -> tuple[int, int]:
    """Twice the number, and the process that said so."""
    return number * 2, os.getpid()


def dying(number: int) -> int:
    os._exit(7)


def hanging(number: int) -> int:
    threading.Event().wait()
    return number


def blocking(number: int) -> int:
    threading.Event().wait(1.0)  # as long as a slow call might take
    return number
