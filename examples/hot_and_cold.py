"""What a flooded partition does to a quiet one, counted in groups, on virtual time.

Run it with `python examples/hot_and_cold.py`. Every write takes 2 ms of virtual time.
"""

import asyncio

from fairway import Log
from fairway.errors import Backpressure
from fairway.storage.wal import Failures, Group
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import VirtualLoop, run

HOT, COLD = 0, 1
SYNC_NS = 2_000_000


class WatchedWal(MemoryWal):
    """Remembers how many entries of each partition were in each group."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(sync=lambda: loop.spend_ns(SYNC_NS))
        self.groups: list[dict[int, int]] = []
        self.begun = asyncio.Event()

    def write(self, group: Group, *, sync: bool) -> Failures:
        self.begun.set()  # no thread exists on the virtual loop, so this is safe
        self.groups.append(
            {partition: sum(len(one.entries) for one in group[partition]) for partition in group}
        )
        return super().write(group, sync=sync)


# --8<-- [start:scenario]
async def scenario() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    wal = WatchedWal(loop)
    async with Log(wal) as log:
        fill(log)
        await wal.begun.wait()  # the first group is being written, and 3,840 operations wait

        await log.append(COLD, b"hello")

        under_way, next_group = wal.groups
        assert under_way == {HOT: 256}
        assert next_group == {HOT: 256, COLD: 1}, "the hot one has its share and no more"


def fill(log: Log) -> None:
    """Append to the hot partition until its lane is full."""
    try:
        while True:
            log.append(HOT, b"flood")
    except Backpressure:
        pass


# --8<-- [end:scenario]

if __name__ == "__main__":
    for seed in range(5):
        run(scenario, seed=seed, quiet=True)
    print("the cold append was in the group after the one under way, whatever the order of events")
