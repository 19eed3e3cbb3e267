"""Whether the store takes writes: read-only after a failure, writable again by itself.

A write that fails makes the engine read-only: writes are refused at once, reads go on, deletes are
let through (they make room, from a reserve if the disk is full). Every half second the store is
asked with a small synced write whether it works again; what room that takes is decided in
`reserve_keeper`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError, InvalidOperation, OutcomeUnknown, ReadOnly, WriteFailed
from fairway.kernel.catalog import CATALOG
from fairway.runtime.clock import sleep_ns
from fairway.runtime.shielded import shielded
from fairway.storage.wal import Operation

if TYPE_CHECKING:
    from fairway.kernel.reserve_keeper import ReserveKeeper
    from fairway.storage.partitions import Partitions

logger = logging.getLogger("fairway.kernel")

PROBE_NS: Final = 500_000_000
PROBE: Final = Operation(meta={"probe": bytes(16 * 1024)})
UNPROBE: Final = Operation(meta={"probe": None})
PROBED_MAX: Final = 16
"""Failed topics that are asked again; a store in several files may work for one and not another."""


class Writability:
    """Knows why nothing can be written, and finds out when it can."""

    name = "writability"

    def __init__(self, log: Partitions, reserve: ReserveKeeper) -> None:
        self.trouble: str | None = None
        """Why the store takes no writes; None while it does."""
        self._log = log
        self._reserve = reserve
        self._failed = asyncio.Event()
        self._partitions: set[int] = set()
        if reserve.given_up:  # the log could not be opened beside it
            self._stop(reserve.lack)

    def check(self) -> None:
        """Raises `ReadOnly` while the store does not work."""
        if self.trouble is not None:
            raise ReadOnly(f"read-only until the store works again: {self.trouble}")

    def check_room(self) -> None:
        """Raises `ReadOnly` while the reserve is given up: what is left of the disk is for deletes.
        For what is kept on the same disk and not in this store."""
        if self.trouble is not None and self._reserve.given_up:
            raise ReadOnly(f"read-only until there is room: {self.trouble}")

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
        if not self._failed.is_set() and not await self._reserve.hold():
            self._stop(self._reserve.lack)
        while True:
            await self._wait_failed()
            await self._reserve.give_up()
            while not await self._works():
                await sleep_ns(PROBE_NS)
            self._failed.clear()
            self.trouble = None
            logger.warning("the store works again: writable")

    async def _wait_failed(self) -> None:
        """Until a write fails. While the files may not grow, ask whether they may."""
        while self._reserve.growth_forbidden and not self._failed.is_set():
            if not await self._reserve.widen():
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_NS / 1e9):
                        await self._failed.wait()
        await self._failed.wait()

    async def _works(self) -> bool:
        if not await self._reserve.may_fit():
            return False  # the little there is belongs to deletes
        try:
            for partition in (CATALOG, *self._partitions):
                await self._probe(partition)
        except FairwayError as error:
            self.trouble = str(error)
            return False
        # Taken last: what does not work for another reason would have it made and given up again.
        if not await self._reserve.take():
            return False
        self._partitions.clear()
        return True

    async def _probe(self, partition: int) -> None:
        try:
            await shielded(self._log.submit(partition, PROBE))
            await shielded(self._log.submit(partition, UNPROBE))
        except InvalidOperation:
            pass  # deleted meanwhile
