"""Waiting for what a child process says."""

from __future__ import annotations

import selectors
from typing import IO, Any


def readable(stream: IO[Any], timeout_s: float) -> bool:
    """Whether it has something to read by then; unlike `select.select`, whatever its number is."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))
