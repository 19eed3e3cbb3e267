"""Test code that waits, blocks and writes, in no time and from one seed.

Run it with `python examples/virtual_time.py`; it takes milliseconds, although an hour passes in it.
"""

# pyright: basic
# (apsw has types for a part of it)
import asyncio
from collections.abc import Callable

import apsw

from fairway.runtime.blocking import BlockingPool
from fairway.testing import Deadlock, SimulatedDisk, SimulatedVFS, VirtualLoop, run


# --8<-- [start:time]
async def poll_until_ready(is_ready: Callable[[], bool]) -> int:
    """The code under test: asks once a minute."""
    asked = 1
    while not is_ready():
        await asyncio.sleep(60)
        asked += 1
    return asked


def test_polls_for_an_hour() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert await poll_until_ready(lambda: loop.time() >= 3600) == 61
        assert loop.time() == 3600.0  # to the nanosecond

    run(scenario)


# --8<-- [end:time]


# --8<-- [start:deadlock]
def test_waiting_for_ever_is_an_error() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    complaint = ""
    try:
        run(scenario)
    except Deadlock as error:
        complaint = str(error)
    assert "scenario" in complaint  # it names each task and the line it waits at


# --8<-- [end:deadlock]


# --8<-- [start:seeds]
def test_both_orders_of_a_race_occur() -> None:
    async def race() -> str:
        finished: list[str] = []
        async with BlockingPool(2) as pool, asyncio.TaskGroup() as group:
            group.create_task(pool.run(finished.append, "a"))
            group.create_task(pool.run(finished.append, "b"))
        return "".join(finished)

    orders = {run(race, seed=seed, quiet=True) for seed in range(20)}
    assert orders == {"ab", "ba"}
    assert run(race, seed=3, quiet=True) == run(race, seed=3, quiet=True)


# --8<-- [end:seeds]


# --8<-- [start:disk]
def test_survives_a_power_loss_at_every_write() -> None:
    survived = 0
    for crash_at in range(100):
        disk = SimulatedDisk(seed=crash_at)
        disk.crash_at(crash_at)
        committed: list[int] = []
        with disk.life():  # ends quietly when the power goes
            db = connect(disk)
            db.execute("CREATE TABLE entry (id INTEGER)")
            for number in range(5):
                db.execute("INSERT INTO entry VALUES (?)", (number,))
                committed.append(number)  # this is what we acknowledged
            db.close()
        if disk.powered:
            break  # the program has fewer operations than that
        disk.restart()  # unsynced writes are now kept, lost or torn
        db = connect(disk)
        found = [number for (number,) in db.execute("SELECT id FROM entry")] if committed else []
        assert found[: len(committed)] == committed, f"lost at operation {crash_at}"
        survived += 1
        db.close()
    assert survived > 20


def connect(disk: SimulatedDisk) -> apsw.Connection:
    db = apsw.Connection("entries.db", vfs=SimulatedVFS(disk).name)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL: the disk has no shared memory
    assert db.execute("PRAGMA journal_mode = WAL").get == "wal"
    db.execute("PRAGMA synchronous = FULL")  # try OFF
    return db


# --8<-- [end:disk]


# --8<-- [start:slow]
def test_a_slow_sync_does_not_stop_the_loop() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        disk = SimulatedDisk(on_delay=loop.spend_ns)
        disk.delay(50_000_000)  # every sync takes 50 ms longer
        file = disk.open("data")
        ticks = 0
        async with BlockingPool(1) as pool, asyncio.TaskGroup() as group:
            sync = group.create_task(pool.run(file.sync))
            while not sync.done():
                await asyncio.sleep(0.01)
                ticks += 1
        assert ticks >= 5

    run(scenario)


# --8<-- [end:slow]


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name}: passed")
