"""Directories of SQLite logs in known states, copied, damaged by one bit, and looked at again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fairway.errors import Corrupt, FairwayError
from fairway.storage.wal import DELETE, Entry, HardState, Operation, Tail
from fairway.storage.wals.sqlite import SqliteWal
from tests.support.history import NOTHING, Contents, contents

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.support.log_vfs import HookedVFS

PARTITIONS = 12
NEVER = 1 << 40  # a -wal bound that is not reached: checkpoints happen when the test says so

Snapshot = tuple[dict[int, Tail], dict[int, Contents]]
Outcome = Literal["intact", "refused_at_open", "refused_at_read", "CHANGED"]


@dataclass(frozen=True)
class State:
    """A directory as a process may leave it, and what a log may say that opens it."""

    directory: Path
    allowed: list[Snapshot]
    frames_bytes: int
    """How much of the -wal counts. What follows is left over from before it started over."""


class Furnisher:
    """Writes groups of every kind of operation, the same for the same seed."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.rng = rng
        self.wal = SqliteWal(directory, wal_bytes_max=NEVER)
        self.wal.open()
        self.number = 0
        self.partitions = list(range(PARTITIONS))

    def write(self, groups: int, *, sync: bool = True, largest: int = 9000) -> None:
        for _ in range(groups):
            self.number += 1
            chosen = self.rng.sample(self.partitions, 4)
            group = {partition: self._operations(partition, largest) for partition in chosen}
            assert self.wal.write(group, sync=sync) == {}

    def _operations(self, partition: int, largest: int) -> list[Operation]:
        tail = self.wal.tail(partition)
        last = tail.last_key
        sizes = [self.rng.choice((0, 20, 200, largest)) for _ in range(3)]
        keys = range(last + 1, last + 1 + len(sizes))
        entries = [
            Entry(key, self.rng.randbytes(size), self.number)
            for key, size in zip(keys, sizes, strict=True)
        ]
        operations = [Operation(entries, {f"name/{self.number % 5}": b"%d" % self.number})]
        lot = self.rng.random()
        if lot < 0.1:
            operations.append(Operation(hard_state=HardState(self.number, f"node-{partition}")))
        elif lot < 0.2:
            operations.append(Operation(compact_before=max(tail.floor, last - 6)))
        elif lot < 0.3:
            operations.append(Operation(truncate_after=last + 1))
        return operations

    def delete(self, partition: int) -> None:
        """Its rows stay: nothing sweeps here."""
        self.partitions.remove(partition)
        assert self.wal.write({partition: [DELETE]}, sync=True) == {}

    def move_pages(self) -> None:
        """A checkpoint, complete, after which the -wal starts over."""
        for shard in self.wal.shards:
            shard.checkpoint(wait=True)

    def frames_bytes(self) -> int:
        (shard,) = self.wal.shards
        return 32 + shard.statistics().wal_bytes

    def snapshot(self) -> Snapshot:
        return snapshot(self.wal)

    def copy(self, place: Path) -> Path:
        shutil.copytree(self.directory, place)
        return place


def snapshot(wal: SqliteWal) -> Snapshot:
    found = {partition: contents(wal, partition) for partition in range(PARTITIONS)}
    return {n: found[n].tail for n in found if found[n] != NOTHING}, found


def states(scratch: Path, rng: random.Random, vfs: HookedVFS) -> dict[str, State]:
    """A log after a clean close, and as kill -9 leaves it at different moments."""
    made = Furnisher(scratch / "made", rng)
    result = {}

    def keep(name: str, *allowed: Snapshot) -> None:
        made.copy(scratch / name)
        result[name] = State(scratch / name, list(allowed), made.frames_bytes())

    made.write(10)
    made.delete(3)
    made.move_pages()
    made.write(8)
    keep("live", made.snapshot())

    made.write(4, sync=False)
    made.write(1)
    ends = [made.snapshot()]
    for _ in range(4):
        made.write(1, sync=False)
        ends.append(made.snapshot())
    keep("unsynced", *ends)

    made.move_pages()
    made.write(2, largest=20)  # small ones: no page is added, which SQLite would notice
    end = made.snapshot()
    photograph(made, vfs, scratch / "half-moved", rng)
    result["half-moved"] = State(scratch / "half-moved", [end], made.frames_bytes())
    keep("moved", end)

    made.write(1)
    ends = [made.snapshot()]
    for _ in range(3):
        made.write(1, sync=False, largest=500)
        ends.append(made.snapshot())
    photograph(made, vfs, scratch / "half-moved-unsynced", rng)
    # What a checkpoint moves it has synced before.
    place = scratch / "half-moved-unsynced"
    result["half-moved-unsynced"] = State(place, ends[-1:], made.frames_bytes())

    end = made.snapshot()
    made.wal.close()
    result["closed"] = State(made.copy(scratch / "closed"), [end], 0)
    return result


def photograph(made: Furnisher, vfs: HookedVFS, place: Path, rng: random.Random) -> None:
    """Copy the directory in the middle of a checkpoint, between two pages that it moves."""
    moved = 0

    def count(step: str, path: str) -> None:
        nonlocal moved
        moved += step == "write" and path.endswith(".db")

    vfs.hook = count
    rehearsal = SqliteWal(made.copy(place.with_name("rehearsal")), wal_bytes_max=NEVER)
    rehearsal.open()  # moves the same pages
    rehearsal.close()
    shutil.rmtree(place.with_name("rehearsal"))
    chosen = rng.randrange(moved // 2, moved)
    moved = 0

    def shoot(step: str, path: str) -> None:
        count(step, path)
        if moved == chosen + 1 and not place.exists():
            made.copy(place)

    vfs.hook = shoot
    for shard in made.wal.shards:
        shard.checkpoint()
    assert place.exists(), f"{moved} pages were moved, not more than {chosen}"
    vfs.hook = lambda step, path: None


def flip_bit(path: Path, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def random_bit(path: Path, state: State, rng: random.Random) -> int:
    """Anywhere in the file, or near its beginning where the headers are, or where it counts."""
    size = path.stat().st_size
    zones = [size, min(size, 128)]
    if path.name.endswith("-wal"):
        zones.append(min(size, state.frames_bytes))
    return rng.randrange(8 * rng.choice(zones))


def look(directory: Path, allowed: list[Snapshot]) -> tuple[Outcome, FairwayError | None]:
    """Open a log and read all of it. Anything raised but a `FairwayError` is the caller's."""
    wal = SqliteWal(directory)
    try:
        tails = wal.open()
    except FairwayError as refusal:
        return "refused_at_open", refusal
    try:
        found = snapshot(wal)
    except Corrupt as refusal:
        return "refused_at_read", refusal
    finally:
        wal.close()
    return ("intact" if found in allowed and tails == found[0] else "CHANGED"), None
