"""Programs that use a RocksDB log in a process of their own, because they are killed or may die.

write DIRECTORY SYNC    append to it for ever and say after each group that it is acknowledged
fill DIRECTORY BYTES    append until no file may grow beyond BYTES, and say how that went
look                    for each directory named on stdin, say what its log holds
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

from fairway.errors import FairwayError
from fairway.storage.wal import DELETE, Entry, HardState, Operation, Wal
from fairway.storage.wals.rocksdb import RocksdbWal
from tests.support.fingerprint import fingerprint
from tests.support.history import contents
from tests.support.rocksdb_files import Resting

PARTITIONS = 4
HANGS_AFTER_S = 60
MEMTABLE_BYTES = 64 * 1024  # small, so that log files come and go


def operation(number: int, partition: int) -> Operation:
    """What group `number` does to a partition."""
    payload = hashlib.sha256(f"{number}/{partition}".encode()).digest() * (1 + number % 9)
    entries = [Entry(2 * number, payload, number), Entry(2 * number + 1, payload[1:], number)]
    return Operation(
        entries,
        meta={"last": str(number).encode()},
        compact_before=max(1, 2 * number - 2 * KEPT) if number % 7 == 0 else None,
    )


KEPT = 50
"""Groups whose entries no compaction has reached yet."""


def write(directory: Path, sync: bool) -> None:
    wal = RocksdbWal(directory, memtable_bytes=MEMTABLE_BYTES)
    wal.open()
    number = wal.tail(0).last_key // 2
    while True:
        number += 1
        group = {partition: [operation(number, partition)] for partition in range(PARTITIONS)}
        if failures := wal.write(group, sync=sync):
            raise next(iter(failures.values()))
        os.write(1, f"{number}\n".encode())


def fill(directory: Path, file_bytes_max: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    wal = RocksdbWal(directory)
    wal.open()
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, resource.RLIM_INFINITY))
    number = 0
    failures = {}
    while not failures:
        number += 1
        failures = wal.write({1: [operation(number, 1)], 2: [operation(number, 2)]}, sync=True)
    later = wal.write({3: [operation(1, 3)]}, sync=True)
    report = {
        "acknowledged": number - 1,
        "failures": {p: f"{type(error).__name__}: {error}" for p, error in failures.items()},
        "later": {p: f"{type(error).__name__}: {error}" for p, error in later.items()},
        "readable": len(wal.read(1)),
    }
    wal.close()
    print(json.dumps(report))


def build(wal: Wal, groups: int) -> None:
    """Write a bit of everything, all of it synced."""
    noise = random.Random(groups)
    meta = {f"name-{number}": noise.randbytes(100) for number in range(100)}
    assert not wal.write({p: [Operation(meta=meta)] for p in range(PARTITIONS)}, sync=True)
    for number in range(1, groups + 1):
        group = {partition: [operation(number, partition)] for partition in range(PARTITIONS)}
        group[1].append(Operation(hard_state=HardState(number, f"node-{number % 3}")))
        if number % 10 == 0:
            tail = wal.tail(2)
            group[2] = [Operation(truncate_after=tail.last_key - 1), *group[2]]
        if number % 25 == 0:
            group[3] = [DELETE, *group[3]]
        assert not wal.write(group, sync=True)


def digest(wal: Wal, tails: object) -> str:
    """All that a log says, in short."""
    lines = [repr(tails), *(repr(contents(wal, partition)) for partition in range(PARTITIONS))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def look() -> None:
    for line in sys.stdin:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        print(json.dumps(outcome(Path(line.strip()))), flush=True)


def outcome(directory: Path) -> tuple[str, str]:
    """What opening and reading a store comes to: its digest, or how it was refused; a start that is
    refused must have left every file as it was."""
    wal = Resting(directory)
    before = fingerprint(directory)
    try:
        try:
            tails = wal.open()
        except FairwayError as error:
            after = fingerprint(directory)
            changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            if changed:
                return "changed", f"{sorted(changed)} by a refused start: {error}"
            raise
        return "read", digest(wal, tails)
    except FairwayError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {error}"
    finally:
        wal.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", directory, sync]:
            write(Path(directory), sync == "True")
        case ["fill", directory, limit]:
            fill(Path(directory), int(limit))
        case ["look"]:
            look()
