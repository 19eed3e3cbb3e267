"""What the memory backend offers beyond the contract: a disk that tests can break."""

from __future__ import annotations

import errno
import random
import threading
from typing import TYPE_CHECKING

import pytest

from fairway.errors import Closing, FairwayError, InvalidOperation, OutcomeUnknown, WriteFailed
from fairway.storage.wal import DELETE, INT_MAX, Entry, HardState, Operation, Tail
from fairway.storage.wals.memory import MemoryWal

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.storage.wal import Failures


def opened(wal: MemoryWal) -> MemoryWal:
    wal.open()
    return wal


def append(key: int) -> Operation:
    return Operation(entries=[Entry(key, b"payload")])


def keys(wal: MemoryWal, partition: int = 0) -> list[int]:
    return [entry.key for entry in wal.read(partition)]


def kinds(failures: Failures) -> dict[int, type[FairwayError]]:
    return {partition: type(failure) for partition, failure in failures.items()}


class Disk:
    """Hooks that fail when told to."""

    def __init__(self) -> None:
        self.fault: OSError | None = None
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault


# --- crashes


def test_a_crash_keeps_what_was_synced_and_nothing_more() -> None:
    wal = opened(MemoryWal())
    for key in range(1, 7):
        wal.write({0: [append(key)]}, sync=key == 3)
    survivor = wal.crash()
    assert survivor.open() == {0: Tail(3, 0, 1)}
    assert keys(survivor) == [1, 2, 3]


@pytest.mark.parametrize(("keep", "left"), [(0, 3), (1, 4), (2, 5), (3, 6), (99, 6)])
def test_a_crash_may_keep_a_beginning_of_the_rest(keep: int, left: int) -> None:
    wal = opened(MemoryWal())
    for key in range(1, 7):
        wal.write({0: [append(key)]}, sync=key == 3)
    assert keys(opened(wal.crash(keep=keep))) == list(range(1, left + 1))


def test_a_crash_cuts_each_shard_at_a_point_of_its_own() -> None:
    seen = set()
    for seed in range(40):
        wal = opened(MemoryWal(shards=2))
        for key in range(1, 5):
            wal.write({0: [append(key)], 1: [append(key)]}, sync=key == 2)
        survivor = opened(wal.crash(random.Random(seed)))
        assert keys(survivor, 0) in ([1, 2], [1, 2, 3], [1, 2, 3, 4])
        assert keys(survivor, 1) in ([1, 2], [1, 2, 3], [1, 2, 3, 4])
        seen.add((len(keys(survivor, 0)), len(keys(survivor, 1))))
    assert seen == {(a, b) for a in (2, 3, 4) for b in (2, 3, 4)}


def test_a_kill_keeps_everything_written() -> None:
    wal = opened(MemoryWal())
    wal.write({0: [append(1)], 1: [Operation(meta={"a": b"1"})]}, sync=False)
    survivor = wal.kill()
    assert survivor.open() == {0: Tail(1, 0, 1), 1: Tail()}
    assert survivor.meta(1, "a") == b"1"


def test_what_survived_is_safe_from_the_next_crash() -> None:
    wal = opened(MemoryWal())
    wal.write({0: [append(1)]}, sync=False)
    assert keys(opened(opened(wal.kill()).crash())) == [1]


def test_the_dead_log_is_dead() -> None:
    wal = opened(MemoryWal())
    survivor = opened(wal.crash())
    with pytest.raises(Closing):
        wal.write({0: [append(1)]}, sync=True)
    survivor.write({0: [append(1)]}, sync=True)
    assert keys(survivor) == [1]


def test_survivors_share_nothing_with_the_dead() -> None:
    wal = opened(MemoryWal())
    wal.write({0: [append(1), Operation(meta={"a": b"1"})]}, sync=True)
    first, second = opened(wal.crash()), opened(wal.crash())
    first.write({0: [append(2), Operation(meta={"a": None})]}, sync=True)
    assert keys(second) == [1]
    assert second.meta(0, "a") == b"1"
    assert keys(opened(first.crash())) == [1, 2]


def test_hard_state_is_synced_and_with_it_what_came_before() -> None:
    wal = opened(MemoryWal(shards=2))
    wal.write({0: [append(1)], 1: [append(1)]}, sync=False)
    assert wal.syncs == 0
    wal.write({0: [Operation(hard_state=HardState(1, "a"))], 1: [append(2)]}, sync=False)
    assert wal.syncs == 1
    survivor = opened(wal.crash())
    assert survivor.hard_state(0) == HardState(1, "a")
    assert keys(survivor, 0) == [1]
    assert keys(survivor, 1) == []


def test_maintenance_and_a_clean_close_sync_what_is_left() -> None:
    wal = opened(MemoryWal())
    wal.write({0: [append(1)]}, sync=False)
    wal.maintain()
    wal.maintain()
    assert wal.syncs == 1
    wal.write({0: [append(2)]}, sync=False)
    wal.close()
    assert keys(opened(wal.crash())) == [1, 2]


def test_a_swept_number_stays_usable_after_a_crash() -> None:
    """The sweep is replayed in its place, or the crash would find old and new rows in one."""
    wal = opened(MemoryWal())
    wal.write({0: [append(1), append(2)]}, sync=True)
    wal.write({0: [DELETE]}, sync=False)
    while wal.sweep(limit=1):
        pass
    wal.write({0: [append(7)]}, sync=True)
    survivor = opened(wal.crash())
    assert survivor.deleting() == set()
    assert keys(survivor) == [7]
    assert survivor.write({0: [append(8)]}, sync=True) == {}


# --- failing disks


def test_a_full_disk_refuses_one_group() -> None:
    disk = Disk()
    wal = opened(MemoryWal(before_write=disk))
    wal.write({0: [append(1)]}, sync=True)
    disk.fault = OSError(errno.ENOSPC, "full")
    failures = wal.write({0: [append(2)], 1: [append(1)]}, sync=True)
    assert kinds(failures) == {0: WriteFailed, 1: WriteFailed}
    assert failures[0] is not failures[1], "each caller gets an exception of its own"
    assert failures[0].__cause__ is disk.fault
    assert keys(wal) == [1]
    disk.fault = None
    assert wal.write({0: [append(2)]}, sync=True) == {}
    assert keys(opened(wal.crash())) == [1, 2]


def test_a_failed_sync_leaves_doubt_and_stops_the_log_until_it_is_reopened() -> None:
    disk = Disk()
    wal = opened(MemoryWal(sync=disk))
    wal.write({0: [append(1)]}, sync=True)
    disk.fault = OSError(errno.EIO, "bad sector")
    assert kinds(wal.write({0: [append(2)]}, sync=True)) == {0: OutcomeUnknown}
    disk.fault = None
    for sync in (True, False):
        assert kinds(wal.write({0: [append(2)]}, sync=sync)) == {0: WriteFailed}
    assert keys(wal) == [1], "what is in doubt is not shown"
    wal.maintain()
    reopened = opened(wal.reopened())
    assert keys(reopened) == [1, 2], "the system still has it in memory"
    assert reopened.write({0: [append(3)]}, sync=True) == {}
    assert keys(opened(reopened.crash())) == [1, 2, 3]


@pytest.mark.parametrize(("keep", "left"), [(0, [1]), (1, [1, 2])])
def test_what_was_in_doubt_may_or_may_not_survive(keep: int, left: list[int]) -> None:
    disk = Disk()
    wal = opened(MemoryWal(sync=disk))
    wal.write({0: [append(1)]}, sync=True)
    disk.fault = OSError(errno.EIO, "bad sector")
    wal.write({0: [append(2)]}, sync=True)
    disk.fault = None
    assert keys(opened(wal.crash(keep=keep))) == left


def test_one_failing_shard_fails_its_own_partitions() -> None:
    wal = opened(MemoryWal(shards=3))
    assert wal.parallelism == 3
    wal.fail_shard(1, write=OSError(errno.ENOSPC, "full"))
    group = {number: [append(1)] for number in range(6)}
    assert kinds(wal.write(group, sync=True)) == {1: WriteFailed, 4: WriteFailed}
    wal.fail_shard(1)
    assert wal.write({1: [append(1)], 4: [append(1)]}, sync=True) == {}
    wal.fail_shard(2, sync=OSError(errno.EIO, "bad sector"))
    group = {number: [append(2)] for number in range(6)}
    assert kinds(wal.write(group, sync=True)) == {2: OutcomeUnknown, 5: OutcomeUnknown}
    wal.fail_shard(2)
    assert kinds(wal.write({2: [append(3)], 3: [append(3)]}, sync=True)) == {2: WriteFailed}
    assert [keys(wal, number) for number in range(6)] == [
        *([1, 2], [1, 2], [1]),
        *([1, 2, 3], [1, 2], [1]),
    ]


def test_a_failed_shard_is_swept_after_it_was_reopened() -> None:
    wal = opened(MemoryWal())
    wal.write({0: [append(1), append(2)]}, sync=True)
    wal.write({0: [DELETE]}, sync=True)
    wal.fail_shard(0, sync=OSError(errno.EIO, "bad sector"))
    wal.write({1: [append(1)]}, sync=True)
    assert not wal.sweep(), "or whoever sweeps to the end would never come to one"
    assert wal.deleting() == {0}
    reopened = opened(wal.reopened())
    assert reopened.deleting() == {0}
    assert not reopened.sweep()
    assert reopened.deleting() == set()


def test_syncs_are_counted_per_shard() -> None:
    disk = Disk()
    wal = opened(MemoryWal(shards=2, sync=disk))
    wal.write({0: [append(1)], 1: [append(1)]}, sync=True)
    wal.write({0: [append(2)]}, sync=True)
    wal.write({0: [append(3)], 1: [append(2)]}, sync=False)
    assert wal.syncs == disk.calls == 3


def test_a_rule_broken_by_the_caller_changes_nothing() -> None:
    wal = opened(MemoryWal())
    wal.write({0: [append(1)]}, sync=True)
    with pytest.raises(InvalidOperation):
        wal.write({1: [append(1)], 0: [append(2), append(2)]}, sync=True)
    assert keys(wal, 0) == [1]
    assert keys(wal, 1) == []
    assert keys(opened(wal.kill()), 0) == [1]


# --- a slow sync, as threads see it


class SlowSync:
    """A sync that lasts until the test lets it go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.finish = threading.Event()

    def __call__(self) -> None:
        self.started.set()
        assert self.finish.wait(60)


def during_a_sync(wal: MemoryWal, sync: SlowSync, look: Callable[[], None]) -> Failures:
    """Write to partition 0, synced, and look around in the midst of it."""
    answers: list[Failures] = []
    writer = threading.Thread(target=lambda: answers.append(wal.write({0: [append(1)]}, sync=True)))
    writer.start()
    try:
        assert sync.started.wait(60)
        look()
    finally:
        sync.finish.set()
        writer.join()
    return answers[0]


def test_nothing_is_visible_before_it_is_durable_and_readers_do_not_wait() -> None:
    sync = SlowSync()
    wal = opened(MemoryWal(sync=sync))
    seen: list[list[int]] = []
    assert during_a_sync(wal, sync, lambda: seen.append(keys(wal))) == {}
    assert seen == [[]]
    assert keys(wal) == [1]


def test_shards_sync_beside_each_other() -> None:
    sync = SlowSync()
    wal = opened(MemoryWal(shards=2, sync=sync))

    def write_to_the_other_shard() -> None:
        assert wal.write({1: [append(1)]}, sync=False) == {}
        assert keys(wal, 1) == [1]

    assert during_a_sync(wal, sync, write_to_the_other_shard) == {}


def test_a_write_cut_off_in_its_sync_is_not_acknowledged() -> None:
    sync = SlowSync()
    wal = opened(MemoryWal(sync=sync))
    survivors: list[MemoryWal] = []
    answer = during_a_sync(wal, sync, lambda: survivors.append(wal.crash()))
    assert kinds(answer) == {0: OutcomeUnknown}
    assert keys(opened(survivors[0])) == []


def test_compacted_entries_are_let_go() -> None:
    """Also by the synced copy: memory follows what is kept, not what was ever written."""
    wal = opened(MemoryWal())
    for key in range(1, 201):
        change = Operation(entries=[Entry(key, b"x")], compact_before=max(1, key - 4))
        wal.write({0: [change]}, sync=key % 10 == 0)
    shard = wal._shards[0]
    assert len(shard.live.partitions[0].entries) == 5
    assert len(shard.synced.partitions[0].entries) == 5
    assert shard.unsynced == []


def test_numbers_map_to_shards_by_remainder() -> None:
    wal = opened(MemoryWal(shards=4))
    wal.fail_shard(INT_MAX % 4, write=OSError(errno.EIO, "gone"))
    assert kinds(wal.write({INT_MAX: [append(1)]}, sync=False)) == {INT_MAX: WriteFailed}
