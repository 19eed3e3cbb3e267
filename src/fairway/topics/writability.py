"""Whether the store takes writes: read-only after a failure, writable again by itself.

A write that fails makes the engine read-only: writes are refused at once, reads go on, deletes are
let through (they make room, from a reserve if the disk is full). Every half second the store is
asked with a small synced write whether it works again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError, InvalidOperation, OutcomeUnknown, ReadOnly, WriteFailed
from fairway.runtime.clock import sleep_ns
from fairway.storage.catalog import CATALOG
from fairway.storage.wal import Operation

if TYPE_CHECKING:
    from fairway.runtime.blocking import BlockingPool
    from fairway.storage.log import Log
    from fairway.storage.reserve import DiskReserve

logger = logging.getLogger("fairway.topics")

PROBE_NS: Final = 500_000_000
PROBE: Final = Operation(meta={"probe": bytes(16 * 1024)})
UNPROBE: Final = Operation(meta={"probe": None})
PROBED_MAX: Final = 16
"""Failed topics that are asked again; a store in several files may work for one and not another."""


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
        self._partitions: set[int] = set()
        self._made_room = False

    def check(self) -> None:
        """Raises `ReadOnly` while the store does not work."""
        if self.trouble is not None:
            raise ReadOnly(f"read-only until the store works again: {self.trouble}")

    def note(self, error: BaseException, partition: int) -> None:
        """A write failed."""
        if not isinstance(error, WriteFailed | OutcomeUnknown):
            return
        if len(self._partitions) < PROBED_MAX:
            self._partitions.add(partition)
        if self.trouble is None:
            self.trouble = str(error)
            self._made_room = False
            logger.error("read-only: %s", error)
            self._failed.set()

    def note_deleted(self) -> None:
        """Records were deleted: the store may have room in its files, though the disk has none."""
        self._made_room = True

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
        held = self._reserve is None or await self._pool.run(self._reserve.hold)
        if not held and not self._made_room:
            return False  # the little there is belongs to deletes
        try:
            for partition in (CATALOG, *self._partitions):
                await self._probe(partition)
        except FairwayError as error:
            self.trouble = str(error)
            if self._reserve is not None:
                await self._pool.run(self._reserve.release)
            return False
        self._partitions.clear()
        return True

    async def _probe(self, partition: int) -> None:
        try:
            await asyncio.shield(self._log.submit(partition, PROBE))
            await asyncio.shield(self._log.submit(partition, UNPROBE))
        except InvalidOperation:
            pass  # deleted meanwhile
