"""Room to write in: a reserve beside the store, and whether its files may grow.

On a full disk, writing resumes only beside a reserve: beside all of it, if the disk has room for
that and some more; else beside half of it, if deletes left room inside the store's own files and it
is confined to that. So the files never grow into what the reserve stands for, and the next time the
disk is full there is as much to give up.

To make the reserve is much to write. So the disk and the files are asked first, and a reserve that
had to be given up soon is made again later and later.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.errors import FairwayError
from fairway.runtime.clock import clock_of

if TYPE_CHECKING:
    from fairway.runtime.blocking import BlockingPool
    from fairway.storage.log import Log
    from fairway.storage.reserve import DiskReserve

LEAVE_BYTES: Final = 1024 * 1024
"""Room inside confined files that appends leave to deletes."""
CONFINED_SPARE_BYTES: Final = 2 * LEAVE_BYTES
"""Room on the disk beside half of the reserve: a confined store does not grow by more than this if
it is in several files, and a write passes through a file of its own on its way."""
PACE: Final = BackoffConfig(base_ns=500_000_000, cap_ns=16_000_000_000, jitter=0)
"""How long after it was given up the reserve is made again. Without a pause a client that repeats
what does not fit would have it written many times a second."""


class Room:
    """Has the reserve held or given up, and the store confined or not."""

    def __init__(self, log: Log, pool: BlockingPool, reserve: DiskReserve | None) -> None:
        self._log = log
        self._pool = pool
        self._reserve = reserve
        # With room for less than one group, writing would stop again at once.
        self._spare = log.group_bytes_max + LEAVE_BYTES
        self._clock = clock_of()
        self._pace = Backoff(PACE, Random(0))  # without jitter, chance decides nothing
        self._again_ns = 0
        self.confined = False
        """Whether the store may be confined: it is, or did not say that it is not."""

    @property
    def given_up(self) -> bool:
        """Whether the reserve was given up and is not back."""
        return self._reserve is not None and self._reserve.given_up

    @property
    def lack(self) -> str:
        """Why the reserve is not held."""
        if self._reserve is not None and self._reserve.obstacle is not None:
            return f"the reserve cannot be kept: {self._reserve.obstacle}"
        return "the disk is full: there is no room for the reserve"

    async def keep(self) -> bool:
        """Hold the reserve while the store works; False if there is a `lack` of it already."""
        return self._reserve is None or await self._pool.run(self._reserve.hold)

    async def is_there(self) -> bool:
        """Whether `take` is worth a try. Writes nothing."""
        if self._reserve is None:
            return True
        return self._clock.now_ns() >= self._again_ns and await self._share(self._reserve) > 0

    async def take(self) -> bool:
        """Hold as much of the reserve as there is room for; beside half of it, confine the store.
        False if there is not enough even for that: then nothing is held."""
        if self._reserve is None:
            return True
        share = await self._share(self._reserve)
        leave = LEAVE_BYTES if share < self._reserve.size else 0
        if share and await self._hold(share) and await self._confine(leave):
            self._pace.recovered(self._clock.now_ns())
            return True
        await self.give_up()
        return False

    async def widen(self) -> bool:
        """Once the disk has room again, hold all of the reserve and confine the store no longer."""
        assert self._reserve is not None, "nothing is confined without a reserve"
        size = self._reserve.size
        if self._clock.now_ns() < self._again_ns or not await self._fits(size, self._spare):
            return False
        if await self._hold(size) and await self._confine(0):
            return True
        self._put_off()
        return False

    async def give_up(self) -> None:
        """What makes room may use all there is."""
        if self._reserve is not None:
            await self._pool.run(self._reserve.release)
            self._put_off()
        await self._confine(0)

    def _put_off(self) -> None:
        now_ns = self._clock.now_ns()
        self._again_ns = now_ns + (self._pace.failed(now_ns) or 0)

    async def _share(self, reserve: DiskReserve) -> int:
        """How much of the reserve can be held with room to write beside it; 0 if too little."""
        if await self._fits(reserve.size, self._spare):
            return reserve.size
        if not await self._fits(reserve.half, CONFINED_SPARE_BYTES):
            return 0
        try:
            return reserve.half if await self._log.room() >= self._spare else 0
        except FairwayError:  # the next write tells what is the matter
            return 0

    async def _fits(self, share: int, spare: int) -> bool:
        assert self._reserve is not None
        return await self._pool.run(partial(self._reserve.fits, share, spare=spare))

    async def _hold(self, share: int) -> bool:
        assert self._reserve is not None
        return await self._pool.run(self._reserve.hold, share)

    async def _confine(self, leave: int) -> bool:
        if not leave and not self.confined:
            return True
        # Before the store answers: if it never does, it has to be told again that it is free.
        self.confined = True
        try:
            await self._log.confine(leave)
        except FairwayError:
            return False
        self.confined = leave > 0
        return True
