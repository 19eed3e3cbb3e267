"""A durable inbox: every message that it acknowledged survives kill -9.

    python first_log.py                            the whole story, in a directory of its own
    python first_log.py write DIR                  take in messages until killed
    python first_log.py check DIR < acknowledged   compare the log with what was acknowledged

The tutorial `docs/tutorial/first-log.md` builds this file step by step.
"""

# --8<-- [start:imports]
import asyncio
import sys
from collections.abc import AsyncIterator, Iterable

from fairway import Entry, Log, wal_at

# --8<-- [end:imports]

# --8<-- [start:write]
SENDERS = 3


async def write(directory: str) -> None:
    async with Log(wal_at(directory)) as log, asyncio.TaskGroup() as senders:
        for sender in range(SENDERS):
            senders.create_task(take_in(log, sender))


async def take_in(log: Log, sender: int) -> None:
    """Take in the messages of one sender, and acknowledge each once it is on disk."""
    while True:
        key = await log.append(sender, f"a message of sender {sender}".encode())
        print(sender, key, flush=True)  # this is the acknowledgement


# --8<-- [end:write]


# --8<-- [start:read]
async def entries(log: Log, partition: int) -> AsyncIterator[Entry]:
    """Every entry of a partition, a thousand at a time."""
    first = 1
    while page := await log.read(partition, first=first, limit=1000):
        for entry in page:
            yield entry
        first = page[-1].key + 1


# --8<-- [end:read]


# --8<-- [start:check]
async def check(directory: str, acknowledged: Iterable[str]) -> None:
    promised = {tuple(map(int, line.split())) for line in acknowledged}
    async with Log(wal_at(directory)) as log:
        found = {
            (sender, entry.key)
            for sender in log.partitions()
            async for entry in entries(log, sender)
        }
    lost = promised - found
    print(f"{len(promised):,} acknowledged, {len(lost)} of them lost")
    print(f"{len(found - promised)} more were written when the end came, but not yet acknowledged")
    if lost:
        raise SystemExit(1)


# --8<-- [end:check]


def whole_story() -> None:
    """What the tutorial does by hand: write, kill -9, check."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "write", directory]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline() for _ in range(500)]
        writer.kill()  # SIGKILL: it cannot say goodbye
        rest = writer.stdout.readlines()
        acknowledged += [line for line in rest if line.endswith("\n")]
        writer.stdout.close()
        writer.wait()
        asyncio.run(check(directory, acknowledged))


# --8<-- [start:main]
if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", directory]:
            asyncio.run(write(directory))
        case ["check", directory]:
            asyncio.run(check(directory, sys.stdin))
        # --8<-- [end:main]
        case _:
            whole_story()
