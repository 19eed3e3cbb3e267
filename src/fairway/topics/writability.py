"""Whether the store takes writes: read-only after a failure, writable again by itself.

A write that fails makes the engine read-only: writes are refused at once, reads go on, deletes are
let through (they make room, from a reserve if the disk is full). Every half second the store is
asked with a small synced write whether it works again.

On a full disk, writing resumes only beside a reserve: beside all of it, if the disk has room for
that and some more; else beside half of it, if deletes left room inside the store's own files and it
is confined to that. So the files never grow into what the reserve stands for, and the next time the
disk is full there is as much to give up.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
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
SPARE_BYTES: Final = 4 * 1024 * 1024
"""Room beyond the reserve, on the disk or else in the files, with which writing resumes: with less
it would stop again at once."""
LEAVE_BYTES: Final = 1024 * 1024
"""Room inside confined files that appends leave to deletes."""
NO_ROOM: Final = "the disk is full: there is no room for the reserve"
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
        self._confined = False
        if reserve is not None and reserve.given_up:  # the log could not be opened beside it
            self._stop(NO_ROOM)

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
            self._stop(str(error))

    def _stop(self, trouble: str) -> None:
        self.trouble = trouble
        logger.error("read-only: %s", trouble)
        self._failed.set()

    async def run(self) -> None:
        if not self._failed.is_set() and not await self._hold():
            self._stop(NO_ROOM)
        while True:
            await self._wait_failed()
            await self._give_way()
            while not await self._works():
                await sleep_ns(PROBE_NS)
            self._failed.clear()
            self.trouble = None
            logger.warning("the store works again: writable")

    async def _wait_failed(self) -> None:
        """Until a write fails. While the store is confined, look whether it need not be."""
        while self._confined and not self._failed.is_set():
            if await self._hold(spare=SPARE_BYTES):
                await self._confine(0)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_NS / 1e9):
                        await self._failed.wait()
        await self._failed.wait()

    async def _works(self) -> bool:
        if not await self._has_room():
            return False  # the little there is belongs to deletes
        try:
            for partition in (CATALOG, *self._partitions):
                await self._probe(partition)
        except FairwayError as error:
            self.trouble = str(error)
            await self._give_way()
            return False
        self._partitions.clear()
        return True

    async def _has_room(self) -> bool:
        """Take the reserve again, or as much of it as will do."""
        if await self._hold(spare=SPARE_BYTES):
            return True
        assert self._reserve is not None
        # The files are asked first: to make the reserve and give it up again is much to write.
        if not await self._confine(SPARE_BYTES):
            return False
        if await self._hold(self._reserve.size // 2):
            return await self._confine(LEAVE_BYTES)
        await self._give_way()
        return False

    async def _give_way(self) -> None:
        """What makes room may use all there is."""
        if self._reserve is not None:
            await self._pool.run(self._reserve.release)
        await self._confine(0)

    async def _hold(self, share: int | None = None, *, spare: int = 0) -> bool:
        if self._reserve is None:
            return True
        return await self._pool.run(partial(self._reserve.hold, share, spare=spare))

    async def _confine(self, leave: int) -> bool:
        if not leave and not self._confined:
            return True
        try:
            done = await self._log.confine(leave)
        except FairwayError:  # the next write tells what is the matter
            done = False
        self._confined = done and leave > 0
        return done

    async def _probe(self, partition: int) -> None:
        try:
            await asyncio.shield(self._log.submit(partition, PROBE))
            await asyncio.shield(self._log.submit(partition, UNPROBE))
        except InvalidOperation:
            pass  # deleted meanwhile
