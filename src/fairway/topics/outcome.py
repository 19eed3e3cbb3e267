"""What became of an append, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What an append was given. `deduped`: it had been made before, nothing was written."""

    first_seq: int
    last_seq: int
    deduped: bool = False


class Told(Protocol):
    """Who is told what became of an append: a future, or whatever else has its methods."""

    def done(self) -> bool: ...

    def set_result(self, appended: Appended, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


def fail(reply: Told | asyncio.Future[Any], error: BaseException) -> None:
    if not reply.done():
        reply.set_exception(error)
        if isinstance(reply, asyncio.Future):
            reply.exception()  # whoever waited may be gone: that is no reason for a warning
