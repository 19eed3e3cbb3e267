"""A failing disk, and what callers are told: refused, in doubt, and after reopening, sure again.

Run it with `python examples/failures.py`. The disk is simulated, so nothing is really broken.
"""

import asyncio
import errno

from fairway import Log
from fairway.errors import Closing, Fenced, OutcomeUnknown, WriteFailed
from fairway.storage.wals.memory import MemoryWal


class Disk:
    """Two switches."""

    full = False
    sync_fails = False

    def before_write(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def sync(self) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "input/output error")


# --8<-- [start:outcome]
async def outcome_of(accepted: asyncio.Future[int]) -> str:
    """Sort the outcome of an accepted append by what there is to do next."""
    try:
        key = await accepted
    except WriteFailed:
        return "not written: send it again"
    except OutcomeUnknown:
        return "in doubt: look before you send it again"
    except Fenced:
        return "not written: somebody else owns the log now"
    return f"on disk under key {key}"


# --8<-- [end:outcome]


async def full_disk(log: Log, disk: Disk) -> None:
    """A refused write changed nothing, and the log goes on once there is room."""
    disk.full = True
    # --8<-- [start:prefix]
    first, second = log.append(1, b"first"), log.append(1, b"second")
    assert await outcome_of(first) == "not written: send it again"
    assert await outcome_of(second) == "not written: send it again"  # no hole is left before it
    # --8<-- [end:prefix]
    disk.full = False
    assert await outcome_of(log.append(1, b"again")) == "on disk under key 1"


async def failed_sync(log: Log, disk: Disk) -> None:
    """After a failed sync nobody knows, and nothing is acknowledged until the log is reopened."""
    disk.sync_fails = True
    assert await outcome_of(log.append(1, b"lost?")) == "in doubt: look before you send it again"
    disk.sync_fails = False
    assert await outcome_of(log.append(1, b"next")) == "not written: send it again"
    assert [entry.payload for entry in await log.read(1)] == [b"again"]  # reading goes on


# --8<-- [start:look]
async def append_once(log: Log, partition: int, payload: bytes) -> int:
    """Append what may already be there, from before the log was reopened."""
    for entry in await log.read(partition, backwards=True, limit=100):
        if entry.payload == payload:
            return entry.key
    return await log.append(partition, payload)


# --8<-- [end:look]


async def main() -> None:
    disk = Disk()
    wal = MemoryWal(before_write=disk.before_write, sync=disk.sync)
    async with Log(wal) as log:
        await full_disk(log, disk)
        await failed_sync(log, disk)
    async with Log(wal.kill()) as log:  # the process died; what was written came back
        assert await append_once(log, 1, b"lost?") == 2
        assert await append_once(log, 1, b"lost?") == 2
    try:
        log.append(1, b"too late")
    except Closing as closed:
        print(f"refused: {closed}")
    print("every outcome was told")


asyncio.run(main())
