"""Waiting for what goes on whether or not it is waited for."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def shielded(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """As `asyncio.shield`. A failure that comes after the waiting task was cancelled is nobody's:
    it was reported where it happened, so asyncio does not report it as never retrieved."""
    future.add_done_callback(_retrieve)
    return asyncio.shield(future)


def _retrieve(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()
