"""Whether the store takes writes: read-only after a failure, writable again by itself.

A write that fails makes the engine read-only: writes are refused at once, reads go on, deletes are
let through (they make room, from a reserve if the disk is full). Every half second the store is
asked with a small synced write whether it works again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError, OutcomeUnknown, ReadOnly, WriteFailed
from fairway.runtime.clock import sleep_ns
from fairway.storage.catalog import CATALOG
from fairway.storage.wal import Operation

if TYPE_CHECKING:
    from fairway.runtime.blocking import BlockingPool
    from fairway.storage.log import Log
    from fairway.storage.reserve import DiskReserve

logger = logging.getLogger("fairway.topics")

PROBE_NS: Final = 500_000_000
PROBE: Final = Operation(meta={"probe": b"1"})


class Writability:
    """Knows why nothing can be written, and finds out when it can."""

    name = "writability"

    def __init__(self, log: Log, pool: BlockingPool, reserve: DiskReserve | None) -> None:
        self.trouble: str | None = None
        """Why the store takes no writes; None while it does."""
        self._log = log
        self._pool = pool
        self._reserve = reserve
        self._failed = asyncio.Event()

    def check(self) -> None:
        """Raises `ReadOnly` while the store does not work."""
        if self.trouble is not None:
            raise ReadOnly(f"read-only until the store works again: {self.trouble}")

    def note(self, error: BaseException) -> None:
        """A write failed."""
        if isinstance(error, WriteFailed | OutcomeUnknown) and self.trouble is None:
            self.trouble = str(error)
            logger.error("read-only: %s", error)
            self._failed.set()

    async def run(self) -> None:
        if self._reserve is not None:
            await self._pool.run(self._reserve.hold)
        while True:
            await self._failed.wait()
            if self._reserve is not None:
                await self._pool.run(self._reserve.release)
            while not await self._works():
                await sleep_ns(PROBE_NS)
            self._failed.clear()
            self.trouble = None
            logger.warning("the store works again: writable")

    async def _works(self) -> bool:
        if self._reserve is not None and not await self._pool.run(self._reserve.hold):
            return False
        try:
            await asyncio.shield(self._log.submit(CATALOG, PROBE))
        except FairwayError as error:
            self.trouble = str(error)
            if self._reserve is not None:
                await self._pool.run(self._reserve.release)
            return False
        return True
