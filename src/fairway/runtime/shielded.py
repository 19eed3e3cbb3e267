"""Waiting for what goes on whether or not it is waited for."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def shielded(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """As `asyncio.shield`, and a failure that comes after who waited was cancelled is nobody's:
    it was told where it happened, and not as an exception that was never retrieved."""
    future.add_done_callback(_retrieve)
    return asyncio.shield(future)


def _retrieve(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()
