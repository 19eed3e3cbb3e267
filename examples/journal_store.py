"""A store of your own: a journal in one text file, behind the `Wal` contract.

Each group is one line, so a group is there as a whole or not at all. What it comes to is kept in a
`MemoryWal`, which answers the reads. That is the simplest store that keeps the promises; it is not
one for much data, since everything lives in memory and nothing is ever removed from the file.

Run it with `python examples/journal_store.py`.
"""

import asyncio
import json
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from fairway import Entry, HardState, Log, Operation
from fairway.errors import (
    Closing,
    Corrupt,
    FairwayError,
    OutcomeUnknown,
    UnknownFormat,
    WriteFailed,
)
from fairway.storage.owner import DirectoryLock
from fairway.storage.wal import Failures, Group, Tail
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.watermark import Watermark

FORMAT = "fairway example journal 1"


class JournalWal:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "journal"
        self._owner = DirectoryLock(directory)
        self._mark = Watermark(directory / "journal.mark")
        self._writing = threading.Lock()
        self._fd: int | None = None
        self._lines = 0
        self._failed: str | None = None
        self._memory = MemoryWal()

    @property
    def parallelism(self) -> int:
        return 1  # one file, one write at a time

    # --8<-- [start:open]
    def open(self) -> dict[int, Tail]:
        self._owner.acquire()
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # The mark is made last: without one, the journal was never finished or acknowledged.
            created = (self._directory / "journal.mark").exists()
            if created:
                self._mark.open()
                self._replay()
            else:
                os.ftruncate(self._fd, 0)
                self._append_line(FORMAT)
                os.fsync(self._fd)
                self._mark.create()  # syncs the directory, too
                self._mark.advance(self._lines)
            if self._lines < self._mark.value:
                raise Corrupt(
                    f"ends at line {self._lines}, but {self._mark.value} were synced",
                    place=str(self._path),
                )
            os.fsync(self._fd)  # what was recovered is durable before anybody builds on it
            self._memory = self._memory.reopened()
            return self._memory.open()
        except BaseException:
            self.close()
            raise

    def _replay(self) -> None:
        assert self._fd is not None
        memory = self._memory
        memory.open()
        end = 0
        for raw in self._path.read_bytes().splitlines(keepends=True):
            check, _, body = raw.partition(b" ")
            if not raw.endswith(b"\n") or check != b"%08x" % crc32(body):
                break  # the end of a write that was cut off, or damage: the mark tells which
            if self._lines == 0 and body != FORMAT.encode() + b"\n":
                raise UnknownFormat(f"{self._path} says {body!r}")
            if self._lines:
                line = json.loads(body)
                if "sweep" in line:
                    memory.sweep(limit=line["sweep"])
                else:
                    memory.write(group_from(line), sync=True)
            self._lines += 1
            end += len(raw)
        os.ftruncate(self._fd, end)

    # --8<-- [end:open]

    # --8<-- [start:write]
    def write(self, group: Group, *, sync: bool) -> Failures:
        with self._writing:
            if self._fd is None:
                raise Closing(f"{self._directory} is not open")
            if self._failed is not None:
                return dict.fromkeys(group, WriteFailed(self._failed))
            end = os.fstat(self._fd).st_size
            try:
                self._append_line(json.dumps(json_from(group)))
            except OSError as error:
                return dict.fromkeys(group, self._take_back(end, error))
            if sync or any(each.hard_state for run in group.values() for each in run):
                try:
                    os.fsync(self._fd)
                    self._mark.advance(self._lines)
                except OSError as error:
                    # The system may have dropped what it could not write, and will call the next
                    # sync a success. So nothing is acknowledged until the journal was reopened.
                    self._failed = f"{self._path}: {error}; reopen it"
                    return dict.fromkeys(group, OutcomeUnknown(self._failed))
            return self._memory.write(group, sync=True)  # visible only now that it is durable

    def _append_line(self, text: str) -> None:
        assert self._fd is not None
        body = text.encode() + b"\n"
        raw = b"%08x " % crc32(body) + body
        os.lseek(self._fd, 0, os.SEEK_END)
        while raw:
            raw = raw[os.write(self._fd, raw) :]
        self._lines += 1

    def _take_back(self, end: int, error: OSError) -> FairwayError:
        """Half a line may be there. Remove it, or refuse to go on behind it."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, end)
        except OSError as second:
            self._failed = f"{self._path}: {error}, then {second}; reopen it"
            return OutcomeUnknown(self._failed)
        return WriteFailed(f"{self._path}: {error}; nothing was written")

    # --8<-- [end:write]

    # --8<-- [start:read]
    def read(self, partition: int, **bounds: Any) -> list[Entry]:
        return self._memory.read(partition, **bounds)

    def tail(self, partition: int) -> Tail:
        return self._memory.tail(partition)

    def term_at(self, partition: int, key: int) -> int | None:
        return self._memory.term_at(partition, key)

    def meta(self, partition: int, name: str) -> bytes | None:
        return self._memory.meta(partition, name)

    def meta_scan(self, partition: int, **bounds: Any) -> list[tuple[str, bytes]]:
        return self._memory.meta_scan(partition, **bounds)

    def hard_state(self, partition: int) -> HardState | None:
        return self._memory.hard_state(partition)

    # --8<-- [end:read]

    # --8<-- [start:upkeep]
    def sweep(self, *, limit: int = 1000) -> bool:
        # Written down, since a number that is free again must stay so after a restart.
        with self._writing:
            if self._memory.deleting() and self._failed is None:
                assert self._fd is not None
                end = os.fstat(self._fd).st_size
                try:
                    self._append_line(json.dumps({"sweep": limit}))
                except OSError as error:
                    self._take_back(end, error)  # nobody waits for this; the next write tells
                    return False
            return self._memory.sweep(limit=limit)

    def deleting(self) -> set[int]:
        return self._memory.deleting()

    def maintain(self) -> None:
        self._memory.maintain()

    def free_inside_bytes(self) -> int:
        return 0  # a journal only grows

    def forbid_growth(self, keep_bytes: int) -> None:
        pass

    def close(self) -> None:
        with self._writing:
            self._memory.close()
            if self._fd is not None:
                if self._failed is None:
                    with suppress(OSError):  # nobody waits for this sync
                        os.fsync(self._fd)
                os.close(self._fd)
                self._fd = None
            self._mark.close()
            self._owner.release()

    # --8<-- [end:upkeep]


def json_from(group: Group) -> dict[str, list[dict[str, object]]]:
    def plain(operation: Operation) -> dict[str, object]:
        made = operation._asdict()
        made["entries"] = [[e.key, e.payload.hex(), e.term] for e in operation.entries]
        made["meta"] = {n: v if v is None else v.hex() for n, v in operation.meta.items()}
        return made

    return {str(partition): [plain(each) for each in run] for partition, run in group.items()}


def group_from(plain: dict[str, list[dict[str, Any]]]) -> Group:
    def operation(made: dict[str, Any]) -> Operation:
        hard_state = made.pop("hard_state")
        return Operation(
            entries=tuple(Entry(k, bytes.fromhex(p), t) for k, p, t in made.pop("entries")),
            meta={n: v if v is None else bytes.fromhex(v) for n, v in made.pop("meta").items()},
            hard_state=HardState(*hard_state) if hard_state else None,
            **made,
        )

    return {int(partition): [operation(each) for each in run] for partition, run in plain.items()}


async def main(directory: Path) -> None:
    for _ in range(2):
        async with Log(JournalWal(directory)) as log:
            print(f"opened with {len(await log.read(7))} entries")
            await log.append(7, b"hello")
            await log.submit(7, Operation(meta={"seen": b"1"}))
    print((directory / "journal").read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
