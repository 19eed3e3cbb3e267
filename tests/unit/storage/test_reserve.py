"""The reserve: as large as asked for, or as large as it was."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import apsw
import pytest

from fairway.errors import Corrupt, WriteFailed
from fairway.storage import reserve
from fairway.storage.reserve import DiskReserve
from fairway.storage.wal import DELETE, Entry, Operation
from fairway.storage.wals import sqlite_tables
from fairway.storage.wals.sqlite import SqliteWal
from fairway.storage.wals.sqlite_tables import Bounds, FilePages, bounds_of, fits

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024


def test_it_is_held_in_part_and_in_full_and_given_up(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    kept = DiskReserve(path, 64 * KIB)
    assert kept.hold(32 * KIB)
    assert path.stat().st_size == 32 * KIB
    kept.release()
    assert (kept.given_up, path.exists()) == (True, False)
    assert kept.hold(32 * KIB)
    assert kept.given_up, "half of it is not all of it"
    assert kept.hold()
    assert (kept.given_up, path.stat().st_size) == (False, 64 * KIB)


def test_what_there_is_no_room_for_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reserve"
    kept = DiskReserve(path, 64 * KIB)
    free = SimpleNamespace(f_bavail=40, f_frsize=KIB)
    monkeypatch.setattr(reserve.os, "statvfs", lambda _: free)
    assert not kept.hold()
    assert not path.exists()
    assert kept.hold(32 * KIB)
    free.f_bavail = 31
    assert not kept.hold()
    assert path.stat().st_size == 32 * KIB
    free.f_bavail = 35
    assert kept.hold()
    kept.make_way(35 * KIB)
    assert path.exists()
    kept.make_way(36 * KIB)
    assert (path.exists(), kept.given_up) == (False, True)


def test_a_disk_that_promised_too_much_leaves_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "reserve"
    kept = DiskReserve(path, 64 * KIB)
    assert kept.hold(32 * KIB)
    monkeypatch.setattr(reserve.os, "fsync", refuse)
    assert not kept.hold()
    assert path.stat().st_size == 32 * KIB


def test_the_spare_room_is_asked_about_and_left_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reserve"
    kept = DiskReserve(path, 64 * KIB)
    free = SimpleNamespace(f_bavail=40, f_frsize=KIB)
    monkeypatch.setattr(reserve.os, "statvfs", lambda _: free)
    assert kept.fits(32 * KIB, spare=8 * KIB)
    assert not kept.fits(32 * KIB, spare=9 * KIB)
    assert not path.exists()
    assert kept.hold(32 * KIB)
    assert kept.fits(64 * KIB, spare=8 * KIB), "half of it is there already"
    assert path.stat().st_size == 32 * KIB
    monkeypatch.setattr(reserve.os, "statvfs", lambda _: os.stat(tmp_path / "gone"))
    assert not kept.fits(32 * KIB), "a disk that cannot be asked has none"


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        (FilePages(100, 20), FilePages(100, 10), True),
        (FilePages(100, 20), FilePages(100, 9), False),  # the last ten are for deletes
        (FilePages(100, 5), FilePages(100, 5), True),
        (FilePages(100, 5), FilePages(100, 4), False),
        (FilePages(100, 5), FilePages(100, 8), True),  # it makes room
        (FilePages(100, 20), FilePages(101, 20), False),  # the file grows
    ],
)
def test_what_may_be_written_into_a_file_that_must_not_grow(
    before: FilePages, after: FilePages, may: bool
) -> None:
    assert fits(before, after, Bounds(100, 10)) is may


@pytest.mark.parametrize(
    ("found", "pages"),
    [
        (FilePages(100, 40), 100),
        (FilePages(100, 20), 100),
        (FilePages(100, 19), 101),
        (FilePages(4, 0), 24),
    ],
)
def test_a_file_with_next_to_no_room_may_grow_a_little(found: FilePages, pages: int) -> None:
    assert bounds_of(found, 10) == Bounds(pages, 10)


def test_a_log_that_must_not_grow_writes_only_into_free_pages(tmp_path: Path) -> None:
    wal = SqliteWal(tmp_path)
    wal.open()
    large = bytes(400 * KIB)
    for key in (1, 2, 3):
        assert not wal.write({1: [Operation(entries=[Entry(key, large)])]}, sync=True)
    assert wal.free_inside_bytes() < 64 * KIB
    assert not wal.write({1: [Operation(compact_before=3)]}, sync=True)
    assert wal.free_inside_bytes() >= 800 * KIB
    wal.forbid_growth(64 * KIB)
    assert not wal.write({1: [Operation(entries=[Entry(4, large)])]}, sync=True)
    failures = wal.write({1: [Operation(entries=[Entry(5, large)])]}, sync=True)
    assert "full" in str(failures[1])
    assert [entry.key for entry in wal.read(1)] == [3, 4]
    assert not wal.write({1: [DELETE]}, sync=True), "a deletion fits"
    wal.forbid_growth(0)
    wal.close()


def two_shards(directory: Path) -> SqliteWal:
    """Much room in the second file, none in the first."""
    wal = SqliteWal(directory, shards=2)
    wal.open()
    for key in (1, 2, 3):
        assert not wal.write({1: [Operation.appending(key, bytes(400 * KIB), 0)]}, sync=True)
    assert not wal.write({1: [Operation(compact_before=4)]}, sync=True)
    return wal


def test_a_small_file_beside_one_with_room_may_grow_a_little_and_no_further(
    tmp_path: Path,
) -> None:
    wal = two_shards(tmp_path)
    assert wal.free_inside_bytes() >= 1200 * KIB
    wal.forbid_growth(256 * KIB)
    key, failures = 1, {}
    while not failures and key < 1000:
        failures = wal.write({2: [Operation.appending(key, bytes(8 * KIB), 0)]}, sync=True)
        key += not failures
    assert type(failures[2]) is WriteFailed
    assert 8 < key < 20, "its share of what is left, and as much again is left to deletes"
    assert not wal.write({2: [Operation(meta={"name": bytes(64 * KIB)})]}, sync=True)
    assert not wal.write({3: [Operation.appending(1, bytes(400 * KIB), 0)]}, sync=True)
    wal.close()


def test_if_growth_of_one_file_cannot_be_forbidden_all_may_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = two_shards(tmp_path)
    second = wal.shards[1]._writer
    ask = sqlite_tables.file_pages

    def file_pages(connection: apsw.Connection) -> FilePages:
        if connection is second:
            raise apsw.IOError("disk I/O error")
        return ask(connection)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_tables, "file_pages", file_pages)
        with pytest.raises(Corrupt):
            wal.forbid_growth(64 * KIB)
    for partition in (0, 1):
        large = Operation.appending(4, bytes(4 * KIB * KIB), 0)
        assert not wal.write({partition: [large]}, sync=True), "the files may grow"
    wal.close()
