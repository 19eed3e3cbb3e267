"""What the outside world does to the files of a RocksDB log: copies them, cuts them, flips bits."""

from __future__ import annotations

import os
import shutil
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from fairway.storage.wals.rocksdb import RocksdbWal
from fairway.storage.wals.rocksdb_rows import (
    FORMAT_KEY,
    PARTITION,
    PartitionRow,
    partition_body,
    seal,
    system_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK_BYTES = 32 * 1024  # RocksDB's log format, which its manifest has too
RECORD_HEAD = struct.Struct("<LHB")  # checksum, length, type


class FewFlushes(RocksdbWal):
    """Keeps many memtables before it flushes them, so that several log files live at a time."""

    def _options(self) -> Any:
        options = super()._options()
        options.set_max_write_buffer_number(64)
        options.set_min_write_buffer_number_to_merge(32)
        return options


class Resting(RocksdbWal):
    """Never compacts table files. RocksDB does when it closes, and waits a second if they are
    damaged."""

    def _options(self) -> Any:
        options = super()._options()
        options.set_disable_auto_compactions(True)
        return options


class Record(NamedTuple):
    """A piece of a log record: where its head is, and how long its body."""

    offset: int
    length: int
    kind: int


def records(path: Path) -> Iterator[Record]:
    """The records of a log file or a manifest."""
    data = path.read_bytes()
    offset = 0
    while offset + RECORD_HEAD.size <= len(data):
        if BLOCK_BYTES - offset % BLOCK_BYTES < RECORD_HEAD.size:
            offset += BLOCK_BYTES - offset % BLOCK_BYTES
            continue
        _, length, kind = RECORD_HEAD.unpack_from(data, offset)
        yield Record(offset, length, kind)
        offset += RECORD_HEAD.size + length


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "rocksdb-log").glob("*.log"))


def copy_live(source: Path, target: Path) -> None:
    """Copy the directory of an open log as it is at one moment: what kill -9 now would leave.

    RocksDB flushes and deletes in its own threads, so copy again until nothing moved meanwhile.
    """
    while True:
        before = _signature(source)
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
        except (shutil.Error, FileNotFoundError):
            continue  # a file was deleted under our hands
        if before is not None and _signature(source) == before:
            return


def _signature(directory: Path) -> dict[str, tuple[int, int]] | None:
    try:
        return {
            str(path): ((status := path.stat()).st_size, status.st_mtime_ns)
            for path in directory.rglob("*")
            if path.is_file() and not path.name.startswith("LOG")
        }
    except FileNotFoundError:
        return None


def flip(path: Path, offset: int, bit: int) -> None:
    """Flip one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def files(directory: Path) -> list[Path]:
    """Every file below the directory that has a bit to flip."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and os.stat(path).st_size)


@contextmanager
def raw(directory: Path) -> Iterator[Any]:
    """The rows of a closed log, to be tampered with."""
    rows = RocksdbWal(directory)._connect(create=False)
    try:
        yield rows
    finally:
        rows.close()


def space_of(rows: Any, partition: int) -> int:
    """Where the rows of a partition live, by what is stored of it."""
    return PartitionRow(
        *partition_body.unpack(rows[system_key.pack(PARTITION, partition)][4:])
    ).space


def spoil_format(directory: Path) -> None:
    """Let a closed log say that it was written by a version nobody knows."""
    with raw(directory) as rows:
        rows[FORMAT_KEY] = seal(FORMAT_KEY, b"fairway log, rocksdb, 999")
