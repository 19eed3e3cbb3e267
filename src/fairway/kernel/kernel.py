"""The kernel: what all parts of one app share, on one log.

It owns what is nobody's feature: the catalog of names, the pressure governor, whether the store
takes writes, the telemetry of the process, and the knobs of the log. A part is given the kernel
and sees its partitions through a port (`Partitions`), so it cannot tell where they are kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairway.errors import InvalidConfig, WriteFailed
from fairway.kernel.catalog import Catalog
from fairway.kernel.reserve_keeper import ReserveKeeper
from fairway.kernel.writability import Writability
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.lifecycle import Lifecycle
from fairway.runtime.pressure import PressureSampler
from fairway.runtime.telemetry import Telemetry

if TYPE_CHECKING:
    from fairway.core.pressure import Ladder
    from fairway.kernel.effects import Destination
    from fairway.storage.log import Log
    from fairway.storage.partitions import Partitions
    from fairway.storage.reserve import DiskReserve

logger = logging.getLogger("fairway.kernel")


class Kernel(Lifecycle):
    """Entered, its catalog is loaded and nothing was changed yet; `release` begins the rest."""

    name = "kernel"

    def __init__(
        self,
        log: Log,
        *,
        telemetry: Telemetry | None = None,
        governor: PressureSampler | None = None,
        reserve: DiskReserve | None = None,
        first_epoch: int = 1,
    ) -> None:
        """`first_epoch` is where a new log begins to number the incarnations of its names."""
        self.partitions: Partitions = log
        self.turn = log.turn
        """How much each part does in one turn of the loop."""
        self.telemetry = telemetry if telemetry is not None else Telemetry()
        self.governor = governor or PressureSampler()
        self.catalog = Catalog(log, first=first_epoch)
        self.writability: Writability
        self.destinations: dict[str, Destination] = {}
        """Which parts take effects of others, by kind: see `offer`."""
        self.expedite = log.expedite
        """Between two parts of a long turn of the loop: see `Log.expedite`."""
        self._log = log
        self._reserve = reserve
        self._refused_before = 0

    async def open(self) -> None:
        self._pool = BlockingPool(1, name="kernel")
        keeper = ReserveKeeper(self._log, self._pool, self._reserve)
        self.writability = Writability(self._log, keeper)
        await self.catalog.load()
        gauge = self.telemetry.gauge
        gauge("fairway_pressure", "Smoothed pressure, 0 to 1", lambda: self.governor.pressure)
        self.governor.add_signal("pool_busy", lambda: self._log.busy_ratio)
        self.governor.add_signal("writer_fill", self._log.fill)
        self.governor.add_ingest("log", self._ingest_full)
        self.governor.listen(self._obey)

    async def release(self) -> None:
        """All that is kept was read and makes sense: from here on the files may change.

        On a full disk the log is recovered in the room of the reserve.
        """
        try:
            await self._log.release()
        except WriteFailed as error:
            if self._reserve is None or self._reserve.given_up:
                raise
            logger.warning("the reserve is given up, to recover the log: %s", error)
            await self._pool.run(self._reserve.release)
            await self._log.release()
        await self.catalog.drop_unowned()
        self.spawn(self.governor.run(), "kernel-governor")
        self.spawn(self.writability.run(), "kernel-writability")

    async def aclose(self) -> None:
        await self._pool.aclose()

    def offer(self, kind: str, destination: Destination) -> None:
        """Take effects of a kind from other parts, for as long as this kernel is there."""
        if kind in self.destinations:
            raise InvalidConfig(f"effects of kind {kind!r} have a destination already")
        self.destinations[kind] = destination

    def acknowledge_in_turns(self) -> None:
        """Notify `turn.acks_per_turn` callers in one turn of the loop that their write is done, not
        all of a group: for a server, where each of them has an answer to send."""
        self._log.acks_per_turn = self.turn.acks_per_turn

    @property
    def ladder(self) -> Ladder:
        """What to do under the pressure of now."""
        return self.governor.ladder

    def _obey(self, ladder: Ladder) -> None:
        if self._log.linger_ns != ladder.commit_window_ns:
            self._log.linger_ns = ladder.commit_window_ns

    def _ingest_full(self) -> bool:
        refused = self._log.refused
        full = refused > self._refused_before or self._log.fill() >= 1.0
        self._refused_before = refused
        return full
