"""How an app comes to its log: at once, after standing by, or on a full disk from the reserve.

A place has one owner. Whoever stands by looks again and again whether it may take over; on a full
disk the log is opened in the room of the reserve, which is given up for it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairway.errors import AlreadyOwned, WriteFailed
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import sleep_ns
from fairway.storage.log import Log
from fairway.storage.reserve import DiskReserve
from fairway.storage.wals import directory_of, no_place, wal_at
from fairway.storage.wals.stores import holds_a_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from fairway.runtime.telemetry import Telemetry
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.wal import Wal
    from fairway.storage.writer import WriterConfig

logger = logging.getLogger("fairway")

STANDBY_NS: Final = 500_000_000
"""How often a process that stands by looks whether it may take over."""
START_BYTES: Final = 1024 * 1024
"""Room that everything besides the log needs to start; with less, the reserve is given up."""


class Opening:
    """Opens the log of one place, as often as its app is entered."""

    def __init__(self, place: str | Path | Wal | Callable[[], Wal], *, standby: bool) -> None:
        self.place = place
        self.standby = standby
        self.stands_by = False
        """Whether another process has the log, and this one waits for it."""
        self.stood_by = False
        """Whether it was seen that another process has the log; so its place is one that works."""
        self.when_standing_by: list[Callable[[AlreadyOwned], None]] = []
        """Called each time it begins to wait for another process."""
        self.reserve: DiskReserve | None = None

    @property
    def repeats(self) -> bool:
        """Whether it can be opened once more after another process took the log over: it was asked
        to stand by, and its place can be opened anew (a `Wal` object is used up by then)."""
        return self.standby and (isinstance(self.place, str | Path) or callable(self.place))

    @property
    def creates(self) -> bool:
        """Whether opening it makes a log in a directory of this machine that has none."""
        directory = directory_of(self.place) if isinstance(self.place, str | Path) else None
        if directory is None:
            return False
        return not (os.path.isdir(directory) and holds_a_log(directory))

    async def open(
        self,
        stack: AsyncExitStack,
        writer: WriterConfig,
        telemetry: Telemetry | None,
        turn: TurnBudget,
    ) -> Log:
        """The log, entered on `stack`, as soon as it is ours."""
        # Left last, when the log is closed and its files are as small as they get.
        stack.push_async_callback(self._hold_reserve)
        announced = False
        while True:
            try:
                self.reserve = self.reserve or _reserve_of(self.place)
                log = await stack.enter_async_context(
                    Log(self._wal(), writer=writer, telemetry=telemetry, turn=turn, held=True)
                )
            except WriteFailed as error:
                if self.reserve is None or self.reserve.given_up:
                    raise
                logger.warning("the reserve is given up, to open the log: %s", error)
                self.reserve.release()
                continue
            except AlreadyOwned as error:
                if not self.standby:
                    raise
                self.stands_by = self.stood_by = True
                if not announced:
                    logger.info("standing by: %s", error)
                    for notify in list(self.when_standing_by):
                        notify(error)
                announced = True
            except OSError as error:
                if (refusal := no_place(error)) is None:
                    raise
                raise refusal from None
            else:
                self.stands_by = False
                self.reserve = self.reserve or _reserve_of(self.place)  # in a directory just made
                if self.reserve is not None:
                    self.reserve.make_way(START_BYTES)
                return log
            await sleep_ns(STANDBY_NS)

    def _wal(self) -> Wal:
        place = self.place
        if isinstance(place, str | Path):
            return wal_at(place)
        return place() if callable(place) else place

    async def _hold_reserve(self) -> None:
        """Leave the next start something to give up, if this one had to give it up."""
        reserve, self.reserve = self.reserve, None
        if reserve is not None and reserve.given_up:
            async with BlockingPool(1, name="reserve") as pool:
                await pool.run(reserve.hold_some)


def _reserve_of(place: object) -> DiskReserve | None:
    """Room kept back beside the data, where that is a directory of this machine."""
    path = directory_of(place) if isinstance(place, str | Path) else None
    return DiskReserve(path / "reserve") if path is not None and path.is_dir() else None
