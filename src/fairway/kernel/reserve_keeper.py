"""Keeps a reserve of disk space beside the store, and decides whether its files may grow.

On a full disk, writing resumes only beside a reserve: beside all of it, if the disk has room for
that and some more; else beside half of it, if deletes left free space inside the store's own files
and these are forbidden to grow. So the files never grow into what the reserve stands for, and the
next time the disk is full there is as much to give up.

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

KEEP_BYTES: Final = 1024 * 1024
"""Free space inside files that may not grow, which appends keep for deletes."""
NO_GROWTH_SPARE_BYTES: Final = 2 * KEEP_BYTES
"""Room on the disk beside half of the reserve: a store in several files still grows by so much at
most while growth is forbidden, and a write passes through a file of its own on its way."""
PACE: Final = BackoffConfig(base_ns=500_000_000, cap_ns=16_000_000_000, jitter=0)
"""How long after it was given up the reserve is made again. Without a pause a client that repeats
what does not fit would have it written many times a second."""


class ReserveKeeper:
    """Holds the reserve or gives it up, and forbids or allows that the store's files grow."""

    def __init__(self, log: Log, pool: BlockingPool, reserve: DiskReserve | None) -> None:
        self._log = log
        self._pool = pool
        self._reserve = reserve
        # With room for less than one group, writing would stop again at once.
        self._spare = log.group_bytes_max + KEEP_BYTES
        self._clock = clock_of()
        self._pace = Backoff(PACE, Random(0))  # without jitter, chance decides nothing
        self._again_ns = 0
        self.growth_forbidden = False
        """Whether growth may be forbidden: it is, or the store did not answer that it is not."""

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

    async def hold(self) -> bool:
        """Hold the reserve while the store works; False if there is a `lack` of it already."""
        return self._reserve is None or await self._pool.run(self._reserve.hold)

    async def may_fit(self) -> bool:
        """Whether `take` is worth a try. Writes nothing."""
        if self._reserve is None:
            return True
        return self._clock.now_ns() >= self._again_ns and await self._share(self._reserve) > 0

    async def take(self) -> bool:
        """Hold as much of the reserve as there is room for; beside half of it, forbid growth.
        False if there is not enough even for that: then nothing is held."""
        if self._reserve is None:
            return True
        share = await self._share(self._reserve)
        keep_bytes = KEEP_BYTES if share < self._reserve.size else 0
        if share and await self._hold(share) and await self._forbid_growth(keep_bytes):
            self._pace.recovered(self._clock.now_ns())
            return True
        await self.give_up()
        return False

    async def widen(self) -> bool:
        """Once the disk has room again, hold all of the reserve and let the files grow."""
        assert self._reserve is not None, "growth is not forbidden without a reserve"
        size = self._reserve.size
        if self._clock.now_ns() < self._again_ns or not await self._fits(size, self._spare):
            return False
        if await self._hold(size) and await self._forbid_growth(0):
            return True
        self._put_off()
        return False

    async def give_up(self) -> None:
        """What makes room may use all there is."""
        if self._reserve is not None:
            await self._pool.run(self._reserve.release)
            self._put_off()
        await self._forbid_growth(0)

    def _put_off(self) -> None:
        now_ns = self._clock.now_ns()
        self._again_ns = now_ns + (self._pace.failed(now_ns) or 0)

    async def _share(self, reserve: DiskReserve) -> int:
        """How much of the reserve can be held with room to write beside it; 0 if too little."""
        if await self._fits(reserve.size, self._spare):
            return reserve.size
        if not await self._fits(reserve.half, NO_GROWTH_SPARE_BYTES):
            return 0
        try:
            free_bytes = await self._log.free_inside_bytes()
            return reserve.half if free_bytes >= self._spare else 0
        except FairwayError:  # the next write reports what is wrong
            return 0

    async def _fits(self, share: int, spare: int) -> bool:
        assert self._reserve is not None
        return await self._pool.run(partial(self._reserve.fits, share, spare=spare))

    async def _hold(self, share: int) -> bool:
        assert self._reserve is not None
        return await self._pool.run(self._reserve.hold, share)

    async def _forbid_growth(self, keep_bytes: int) -> bool:
        if not keep_bytes and not self.growth_forbidden:
            return True
        # Before the store answers: if it never does, growth has to be allowed again all the same.
        self.growth_forbidden = True
        try:
            await self._log.forbid_growth(keep_bytes)
        except FairwayError:
            return False
        self.growth_forbidden = keep_bytes > 0
        return True
