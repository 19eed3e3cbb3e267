"""The `Wal` contract, sentence by sentence, over every backend."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fairway.errors import AlreadyOwned, FairwayError, UnknownFormat, WriteFailed
from fairway.storage.wal import DELETE, INT_MAX, Entry, HardState, Operation, Tail
from tests.conformance.backends import BACKENDS
from tests.support.history import NOTHING, contents
from tests.support.postgres import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from fairway.storage.wal import Wal
    from tests.conformance.backends import Backend

MIB = 1024 * 1024


def entry(key: int, term: int = 0) -> Entry:
    return Entry(key, f"payload of {key}".encode(), term)


def append(*keys: int, term: int = 0) -> Operation:
    return Operation(entries=[entry(key, term) for key in keys])


def put(wal: Wal, partition: int, *operations: Operation, sync: bool = True) -> None:
    assert wal.write({partition: operations}, sync=sync) == {}


def keys(found: Iterable[Entry]) -> list[int]:
    return [one.key for one in found]


def swept(wal: Wal, *, limit: int = 1000, calls: int = 1000) -> int:
    """Sweep until nothing remains; how many calls said that more did."""
    for count in range(calls):
        if not wal.sweep(limit=limit):
            return count
    raise AssertionError(f"not swept after {calls} calls")


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_ran(name: str, tmp_path: Path) -> None:
    """A skipped backend proves nothing: where the suite counts, all of them are installed."""
    try:
        BACKENDS[name](tmp_path).close()
    except Unavailable as reason:
        pytest.fail(f"the conformance suite did not run over {name}: {reason}")


# --- an empty store


def test_a_new_store_is_empty(wal: Wal) -> None:
    assert contents(wal, 0) == NOTHING
    assert wal.read(7, backwards=True) == []
    assert wal.term_at(7, 1) is None
    assert wal.meta(7, "name") is None
    assert not wal.sweep()
    assert wal.deleting() == set()
    wal.maintain()
    assert wal.parallelism >= 1


def test_a_group_of_nothing_changes_nothing(backend: Backend, wal: Wal) -> None:
    assert wal.write({}, sync=True) == {}
    assert wal.write({}, sync=False) == {}
    assert backend.reopen(wal).open() == {}


# --- appending and reading


def test_entries_come_back_as_written(wal: Wal) -> None:
    written = [Entry(1, b"one", 3), Entry(2, b"", 3), Entry(3, bytes(range(256)), 4)]
    put(wal, 5, Operation(entries=written))
    assert wal.read(5) == written
    assert all(type(one) is Entry and type(one.payload) is bytes for one in wal.read(5))
    assert wal.tail(5) == Tail(3, 4, 1)


def test_what_was_written_is_there_after_a_clean_restart(backend: Backend, wal: Wal) -> None:
    put(wal, 5, append(1, 2, term=1), Operation(meta={"a": b"1"}))
    put(wal, 6, Operation(hard_state=HardState(4, "n1")))
    before = contents(wal, 5), contents(wal, 6)
    wal = backend.reopen(wal)
    assert wal.open() == {5: Tail(2, 1, 1), 6: Tail()}
    assert (contents(wal, 5), contents(wal, 6)) == before


def test_unsynced_writes_survive_a_clean_restart(backend: Backend, wal: Wal) -> None:
    for key in range(1, 20):
        put(wal, 1, append(key), sync=False)
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(19, 0, 1)}
    assert keys(wal.read(1)) == list(range(1, 20))


def test_unsynced_writes_survive_the_death_of_the_process(backend: Backend, wal: Wal) -> None:
    for key in range(1, 20):
        put(wal, 1, append(key), Operation(meta={"last": b"%d" % key}), sync=False)
    wal = backend.kill(wal)
    assert wal.open() == {1: Tail(19, 0, 1)}
    assert keys(wal.read(1)) == list(range(1, 20))
    assert wal.meta(1, "last") == b"19"


def test_reading_both_ways_with_gaps(wal: Wal) -> None:
    put(wal, 1, append(2, 3, 7, 8, 20))
    assert keys(wal.read(1)) == [2, 3, 7, 8, 20]
    assert keys(wal.read(1, backwards=True)) == [20, 8, 7, 3, 2]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, INT_MAX, [2, 3, 7, 8, 20]),
        (2, 20, [2, 3, 7, 8, 20]),
        (3, 8, [3, 7, 8]),
        (4, 6, []),
        (4, 7, [7]),
        (9, 19, []),
        (7, 7, [7]),
        (5, 5, []),
        (0, 2, [2]),
        (20, INT_MAX, [20]),
        (21, INT_MAX, []),
        (8, 3, []),
    ],
)
def test_ranges_are_inclusive_at_both_ends(
    wal: Wal, first: int, last: int, expected: list[int]
) -> None:
    put(wal, 1, append(2, 3, 7, 8, 20))
    put(wal, 0, append(4, 5))  # neighbours must not show through
    put(wal, 2, append(4, 5))
    assert keys(wal.read(1, first=first, last=last)) == expected
    assert keys(wal.read(1, first=first, last=last, backwards=True)) == expected[::-1]


def test_limits_cut_from_the_side_that_is_read_first(wal: Wal) -> None:
    put(wal, 1, append(*range(1, 11)))
    assert keys(wal.read(1, limit=3)) == [1, 2, 3]
    assert keys(wal.read(1, limit=3, backwards=True)) == [10, 9, 8]
    assert keys(wal.read(1, first=4, last=8, limit=2)) == [4, 5]
    assert keys(wal.read(1, first=4, last=8, limit=2, backwards=True)) == [8, 7]
    assert keys(wal.read(1, limit=1)) == [1]


def test_a_read_returns_a_thousand_entries_unless_told(wal: Wal) -> None:
    put(wal, 1, append(*range(1, 1502)))
    assert keys(wal.read(1)) == list(range(1, 1001))
    assert keys(wal.read(1, first=1001)) == list(range(1001, 1502))
    assert keys(wal.read(1, limit=5000)) == list(range(1, 1502))


def test_reads_are_bounded_in_bytes_but_return_at_least_one(wal: Wal) -> None:
    sizes = {1: 10, 2: 30, 3: 5, 4: 0, 5: 100}
    put(wal, 1, Operation(entries=[Entry(key, bytes(size)) for key, size in sizes.items()]))
    assert keys(wal.read(1, max_bytes=45)) == [1, 2, 3, 4]
    assert keys(wal.read(1, max_bytes=44)) == [1, 2]
    assert keys(wal.read(1, max_bytes=40)) == [1, 2]
    assert keys(wal.read(1, max_bytes=39)) == [1]
    assert keys(wal.read(1, max_bytes=1)) == [1]
    assert keys(wal.read(1, max_bytes=0)) == [1]
    assert keys(wal.read(1, max_bytes=50, backwards=True)) == [5]
    assert keys(wal.read(1, first=2, max_bytes=35)) == [2, 3, 4]
    assert keys(wal.read(1, max_bytes=45, limit=3)) == [1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, MIB, 5 * MIB])
def test_payloads_of_any_size(backend: Backend, wal: Wal, size: int) -> None:
    payload = os.urandom(size)
    put(wal, 1, Operation(entries=[Entry(1, payload)], meta={"copy": payload}))
    wal = backend.reopen(wal)
    wal.open()
    assert wal.read(1)[0].payload == payload
    assert wal.meta(1, "copy") == payload


def test_numbers_at_both_ends_of_their_range(backend: Backend, wal: Wal) -> None:
    group = {
        0: [append(1), append(INT_MAX, term=INT_MAX)],
        INT_MAX: [append(INT_MAX - 1, INT_MAX, term=1), Operation(meta={"m": b"v"})],
        INT_MAX - 1: [Operation(hard_state=HardState(INT_MAX, "v"))],
    }
    assert wal.write(group, sync=True) == {}
    wal = backend.reopen(wal)
    assert wal.open() == {
        0: Tail(INT_MAX, INT_MAX, 1),
        INT_MAX: Tail(INT_MAX, 1, 1),
        INT_MAX - 1: Tail(),
    }
    assert wal.read(0) == [entry(1), entry(INT_MAX, INT_MAX)]
    assert keys(wal.read(INT_MAX, first=INT_MAX)) == [INT_MAX]
    assert keys(wal.read(INT_MAX, last=INT_MAX - 1)) == [INT_MAX - 1]
    assert wal.term_at(0, INT_MAX) == INT_MAX
    assert wal.meta(INT_MAX, "m") == b"v"
    assert wal.hard_state(INT_MAX - 1) == HardState(INT_MAX, "v")
    put(wal, INT_MAX, Operation(compact_before=INT_MAX), Operation(truncate_after=INT_MAX))
    assert contents(wal, INT_MAX)[:2] == (Tail(INT_MAX, 1, INT_MAX), (entry(INT_MAX, 1),))
    put(wal, INT_MAX, DELETE)
    swept(wal)
    assert contents(wal, INT_MAX) == NOTHING
    assert keys(wal.read(0)) == [1, INT_MAX]


def test_many_partitions_in_one_group(backend: Backend, wal: Wal) -> None:
    group = {
        number: [append(number + 1, term=number % 3), Operation(meta={"n": b"%d" % number})]
        for number in range(300)
    }
    assert wal.write(group, sync=True) == {}
    expected = {number: Tail(number + 1, number % 3, 1) for number in range(300)}
    assert {number: wal.tail(number) for number in range(300)} == expected
    wal = backend.reopen(wal)
    assert wal.open() == expected
    for number in range(300):
        assert wal.read(number) == [entry(number + 1, number % 3)]
        assert wal.meta(number, "n") == b"%d" % number


def test_a_partition_may_be_read_before_its_neighbours_exist(wal: Wal) -> None:
    put(wal, 2**40, append(1))
    assert contents(wal, 2**40 - 1) == contents(wal, 2**40 + 1) == NOTHING


# --- terms, tails


def test_the_term_at_a_key(wal: Wal) -> None:
    put(wal, 1, append(1, 2, term=1), append(5, term=4))
    assert [wal.term_at(1, key) for key in range(7)] == [None, 1, 1, None, None, 4, None]
    assert wal.term_at(2, 1) is None
    put(wal, 1, Operation(compact_before=2))
    assert [wal.term_at(1, key) for key in (1, 2)] == [None, 1]


def test_open_and_tail_agree(backend: Backend, wal: Wal) -> None:
    put(wal, 1, append(1, 2, term=1))
    put(wal, 2, append(3, 9, term=2), Operation(compact_before=4))
    put(wal, 3, append(3, 9, term=2), Operation(compact_before=10))
    put(wal, 4, append(3, 9, term=2), Operation(truncate_after=3))
    put(wal, 5, Operation(meta={"only": b"metadata"}))
    put(wal, 6, Operation(hard_state=HardState(1)))
    put(wal, 7, append(1), DELETE)
    before = {number: wal.tail(number) for number in range(8)}
    wal = backend.reopen(wal)
    tails = wal.open()
    assert tails == {
        1: Tail(2, 1, 1),
        2: Tail(9, 2, 4),
        3: Tail(9, 0, 10),
        4: Tail(3, 2, 1),
        5: Tail(),
        6: Tail(),
    }
    assert {number: wal.tail(number) for number in range(8)} == before
    assert {number: tails.get(number, Tail()) for number in range(8)} == before


# --- one operation, several operations


def test_operations_of_a_partition_apply_in_order(backend: Backend, wal: Wal) -> None:
    put(
        wal,
        1,
        Operation(entries=[Entry(1, b"a", 1), Entry(2, b"a", 1), Entry(3, b"a", 1)]),
        Operation(meta={"x": b"1", "y": b"1"}, hard_state=HardState(1, "a")),
        Operation(truncate_after=1),
        Operation(entries=[Entry(2, b"b", 2), Entry(3, b"b", 2), Entry(4, b"b", 2)]),
        Operation(meta={"x": b"2", "y": None}, hard_state=HardState(2, "b")),
        Operation(compact_before=3),
        Operation(meta={"y": b"3"}),
        Operation(truncate_after=3, entries=[Entry(9, b"c", 3)]),
    )
    expected = (
        Tail(9, 3, 3),
        (Entry(3, b"b", 2), Entry(9, b"c", 3)),
        (("x", b"2"), ("y", b"3")),
        HardState(2, "b"),
    )
    assert contents(wal, 1) == expected
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(9, 3, 3)}
    assert contents(wal, 1) == expected


def test_the_parts_of_one_operation_apply_in_order(wal: Wal) -> None:
    put(wal, 1, append(1, 2, 3, term=1), Operation(meta={"gone": b"", "kept": b"1"}))
    put(
        wal,
        1,
        Operation(
            truncate_after=2,
            entries=[Entry(3, b"new", 2), Entry(4, b"new", 2)],
            compact_before=4,
            meta={"gone": None, "added": b"2"},
            hard_state=HardState(2, "me"),
        ),
    )
    assert contents(wal, 1) == (
        Tail(4, 2, 4),
        (Entry(4, b"new", 2),),
        (("added", b"2"), ("kept", b"1")),
        HardState(2, "me"),
    )


def test_an_operation_may_truncate_and_compact_all_it_appends(wal: Wal) -> None:
    put(wal, 1, append(1, 2, 3, term=1))
    put(wal, 1, Operation(truncate_after=0, entries=[entry(1, 7)], compact_before=2))
    assert contents(wal, 1)[:2] == (Tail(1, 0, 2), ())


def test_operations_of_different_partitions_do_not_touch(wal: Wal) -> None:
    put(wal, 1, append(1, 2), Operation(meta={"m": b"1"}, hard_state=HardState(1, "a")))
    untouched = contents(wal, 1)
    group = {
        2: [append(1, 2), Operation(truncate_after=1), Operation(meta={"m": b"2"})],
        3: [append(1), Operation(compact_before=2), Operation(meta={"m": None})],
        4: [append(1), DELETE],
        5: [Operation(hard_state=HardState(9, "z"))],
    }
    assert wal.write(group, sync=True) == {}
    swept(wal)
    assert contents(wal, 1) == untouched


# --- truncation


@pytest.mark.parametrize(
    ("after", "left", "tail"),
    [
        (9, [1, 2, 5, 9], Tail(9, 4, 1)),
        (100, [1, 2, 5, 9], Tail(9, 4, 1)),
        (5, [1, 2, 5], Tail(5, 3, 1)),
        (2, [1, 2], Tail(2, 2, 1)),
        (1, [1], Tail(1, 1, 1)),
        (0, [], Tail(0, 0, 1)),
    ],
)
def test_truncation_removes_higher_keys(
    backend: Backend, wal: Wal, after: int, left: list[int], tail: Tail
) -> None:
    put(wal, 1, append(1, term=1), append(2, term=2), append(5, term=3), append(9, term=4))
    put(wal, 1, Operation(truncate_after=after))
    assert keys(wal.read(1)) == left
    assert wal.tail(1) == tail
    wal = backend.reopen(wal)
    assert wal.open().get(1, Tail()) == tail  # an empty partition need not be remembered
    assert keys(wal.read(1)) == left


def test_keys_can_be_used_again_after_a_truncation(wal: Wal) -> None:
    put(wal, 1, append(1, 2, 3, term=1))
    put(wal, 1, Operation(truncate_after=1))
    put(wal, 1, Operation(entries=[Entry(2, b"again", 5)]))
    assert wal.read(1) == [entry(1, 1), Entry(2, b"again", 5)]
    assert wal.term_at(1, 2) == 5
    assert wal.term_at(1, 3) is None
    assert wal.tail(1) == Tail(2, 5, 1)


def test_truncation_back_to_the_floor(backend: Backend, wal: Wal) -> None:
    put(wal, 1, append(1, 2, term=1), append(3, term=2), append(4, 6, term=5))
    put(wal, 1, Operation(compact_before=4))
    put(wal, 1, Operation(truncate_after=3))
    assert contents(wal, 1)[:2] == (Tail(3, 0, 4), ())
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(3, 0, 4)}
    put(wal, 1, append(4, term=6))
    assert wal.tail(1) == Tail(4, 6, 4)
    put(wal, 1, Operation(truncate_after=3))
    assert wal.tail(1) == Tail(3, 0, 4)


def test_a_truncation_that_removes_nothing_changes_nothing(wal: Wal) -> None:
    put(wal, 1, append(1, 2, term=3), Operation(compact_before=3))
    for after in (2, 3, INT_MAX):
        put(wal, 1, Operation(truncate_after=after))
        assert contents(wal, 1)[:2] == (Tail(2, 0, 3), ())


def test_truncation_into_a_gap_ends_where_it_says(backend: Backend, wal: Wal) -> None:
    """As `Operation.after` has it, or the writer and the store would disagree on the next key."""
    put(wal, 1, append(1, term=1), append(10, term=2))
    put(wal, 1, Operation(truncate_after=4))
    assert wal.tail(1) == Tail(4, 1, 1)
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(4, 1, 1)}
    put(wal, 1, append(5, term=2))
    assert keys(wal.read(1)) == [1, 5]
    assert wal.tail(1) == Tail(5, 2, 1)


# --- compaction


@pytest.mark.parametrize(
    ("before", "left", "floor"),
    [
        (1, [2, 3, 7], 1),
        (2, [2, 3, 7], 2),
        (3, [3, 7], 3),
        (5, [7], 5),
        (7, [7], 7),
        (8, [], 8),
    ],
)
def test_compaction_removes_lower_keys_and_keeps_the_tail(
    backend: Backend, wal: Wal, before: int, left: list[int], floor: int
) -> None:
    put(wal, 1, append(2, 3, 7, term=6))
    put(wal, 1, Operation(compact_before=before))
    term = 6 if left else 0
    assert keys(wal.read(1)) == left
    assert wal.tail(1) == Tail(7, term, floor)
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(7, term, floor)}
    assert keys(wal.read(1)) == left
    put(wal, 1, append(8, term=7))
    assert keys(wal.read(1)) == [*left, 8]
    assert wal.tail(1) == Tail(8, 7, floor)


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ([(3, 3)], [2, 7, 9]),
        ([(1, 2)], [3, 7, 9]),
        ([(4, 6)], [2, 3, 7, 9]),
        ([(3, 3), (5, 7)], [2, 9]),
        ([(5, 8), (2, 4)], [9]),
        ([(8, 9)], [2, 3, 7]),
        ([(3, 9)], [2]),
        ([(1, 9)], []),
    ],
)
def test_a_removal_takes_ranges_of_keys_and_keeps_the_tail(
    backend: Backend, wal: Wal, ranges: list[tuple[int, int]], left: list[int]
) -> None:
    put(wal, 1, append(2, 3, 7, term=6), append(9, term=7))
    put(wal, 1, Operation(remove=ranges))
    tail = Tail(9, (7 if left[-1] == 9 else 6) if left else 0, 1)
    for _ in range(2):
        assert keys(wal.read(1)) == left
        assert keys(wal.read(1, backwards=True)) == left[::-1]
        assert [keys(wal.read(1, first=key, limit=1)) for key in left] == [[key] for key in left]
        assert wal.tail(1) == tail
        wal = backend.reopen(wal)
        assert wal.open() == {1: tail}
    put(wal, 1, append(10, term=8))
    assert keys(wal.read(1)) == [*left, 10]
    assert wal.tail(1) == Tail(10, 8, 1)


def test_the_floor_never_falls(wal: Wal) -> None:
    put(wal, 1, append(1, 2, 3), Operation(compact_before=3), Operation(compact_before=2))
    assert wal.tail(1) == Tail(3, 0, 3)
    assert keys(wal.read(1)) == [3]


def test_a_compacted_partition_stays_compacted_over_two_restarts(
    backend: Backend, wal: Wal
) -> None:
    put(wal, 1, append(1, 2, 3, term=2), Operation(compact_before=4))
    for _ in range(2):
        wal = backend.reopen(wal)
        assert wal.open() == {1: Tail(3, 0, 4)}
        assert wal.read(1) == []
        assert wal.read(1, backwards=True) == []
        assert wal.term_at(1, 3) is None


# --- metadata


def test_metadata_is_set_replaced_and_deleted(backend: Backend, wal: Wal) -> None:
    put(wal, 1, Operation(meta={"a": b"1", "b": b"", "c": b"3"}))
    put(wal, 1, Operation(meta={"a": b"one", "c": None, "never": None}))
    for _ in range(2):
        assert wal.meta(1, "a") == b"one"
        assert wal.meta(1, "b") == b""
        assert wal.meta(1, "c") is None
        assert wal.meta(1, "never") is None
        assert wal.meta(2, "a") is None
        assert wal.meta_scan(1) == [("a", b"one"), ("b", b"")]
        assert wal.meta_scan(2) == []
        wal = backend.reopen(wal)
        wal.open()


NAMES = [
    *("\x00", "\x00\x00", "\x01", " ", "!", "%", "*", "0", "10", "9", "A", "B", "Z", "[", "_", "a"),
    *("a\x00", "a%", "a_", "aa", "ab", "b", "cursor/", "cursor/a", "cursor/a/b", "cursor0", "z"),
    *("~", "\x7f", "\x80", "ä", "ö", "ÿ", "Ā", "߿", "ࠀ", "中", "\ud7ff", "\ue000", "\uffff"),
    *("\U00010000", "😀", "\U0010ffff", "\U0010ffff\U0010ffff"),
]


def test_metadata_is_scanned_in_order_of_utf8_bytes(wal: Wal) -> None:
    """Not of any language, nor of UTF-16 units, where U+10000 would come before U+E000."""
    put(wal, 1, Operation(meta={name: name.encode() for name in reversed(NAMES)}))
    expected = sorted(NAMES, key=str.encode)
    assert [name for name, _ in wal.meta_scan(1)] == expected
    assert all(value == name.encode() for name, value in wal.meta_scan(1))
    for name in NAMES:
        assert wal.meta(1, name) == name.encode(), repr(name)


def test_metadata_is_scanned_by_prefix_after_and_limit(wal: Wal) -> None:
    put(wal, 1, Operation(meta=dict.fromkeys(NAMES, b"")))
    put(wal, 0, Operation(meta={"cursor/other": b""}))
    ordered = sorted(NAMES, key=str.encode)
    for prefix in ("", "a", "cursor/", "%", "_", "a_", "nothing", "\U0010ffff", "\x00", "中"):
        matching = [name for name in ordered if name.startswith(prefix)]
        for after in ("", "!", "a", "cursor/a", "m", "ÿ", "\uffff", "\U0010ffff"):
            expected = [name for name in matching if name > after]
            found = [name for name, _ in wal.meta_scan(1, prefix=prefix, after=after)]
            assert found == expected, (prefix, after)
            limited = wal.meta_scan(1, prefix=prefix, after=after, limit=2)
            assert [name for name, _ in limited] == expected[:2], (prefix, after)


def test_a_scan_is_paged_through_with_after(wal: Wal) -> None:
    names = [f"k/{number:05}" for number in range(2500)]
    put(wal, 1, Operation(meta={"j": b"", **dict.fromkeys(names, b"v"), "l": b""}))
    found: list[str] = []
    while page := wal.meta_scan(1, prefix="k/", after=found[-1] if found else ""):
        assert len(page) <= 1000
        found += [name for name, _ in page]
    assert found == names


def test_metadata_survives_truncation_and_compaction(wal: Wal) -> None:
    put(wal, 1, append(1, 2, 3), Operation(meta={"m": b"1"}))
    put(wal, 1, Operation(truncate_after=2), Operation(compact_before=3))
    assert wal.meta(1, "m") == b"1"


# --- hard state


def test_hard_state_is_replaced_whole(backend: Backend, wal: Wal) -> None:
    assert wal.hard_state(1) is None
    put(wal, 1, Operation(hard_state=HardState(3, "node-1")))
    put(wal, 2, Operation(hard_state=HardState(1, "Knoten ä 😀")), sync=False)
    assert wal.hard_state(1) == HardState(3, "node-1")
    put(wal, 1, Operation(hard_state=HardState(4)))
    put(wal, 1, append(1, term=4))
    assert wal.hard_state(1) == HardState(4, "")
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(1, 4, 1), 2: Tail()}
    assert wal.hard_state(1) == HardState(4, "")
    assert wal.hard_state(2) == HardState(1, "Knoten ä 😀")
    assert type(wal.hard_state(1)) is HardState
    assert wal.hard_state(3) is None


# --- deletion


def populate(wal: Wal, partition: int, *, entries: int = 25, names: int = 8) -> None:
    put(
        wal,
        partition,
        append(*range(1, entries + 1), term=2),
        Operation(meta={f"name-{number}": b"v" for number in range(names)}),
        Operation(hard_state=HardState(2, "me")),
    )


def test_a_deleted_partition_is_gone_at_once(backend: Backend, wal: Wal) -> None:
    for partition in (1, 2, 3):
        populate(wal, partition)
    neighbour = contents(wal, 1)
    put(wal, 2, DELETE)
    for _ in range(2):
        assert contents(wal, 2) == NOTHING
        assert wal.read(2, backwards=True) == []
        assert wal.term_at(2, 1) is None
        assert wal.meta(2, "name-1") is None
        assert contents(wal, 1) == contents(wal, 3) == neighbour
        wal = backend.reopen(wal)
        assert wal.open() == {1: Tail(25, 2, 1), 3: Tail(25, 2, 1)}


def test_sweeping_goes_in_chunks_and_touches_nobody_else(backend: Backend, wal: Wal) -> None:
    for partition in (1, 2, 3):
        populate(wal, partition)
    neighbour = contents(wal, 1)
    assert wal.write({2: [DELETE]}, sync=True) == {}
    more = swept(wal, limit=5, calls=20)
    assert more >= 5, "33 rows cannot go in fewer than 7 chunks of 5"
    assert not wal.sweep()
    assert contents(wal, 2) == NOTHING
    assert contents(wal, 1) == contents(wal, 3) == neighbour
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(25, 2, 1), 3: Tail(25, 2, 1)}
    assert not wal.sweep()
    assert contents(wal, 1) == contents(wal, 3) == neighbour


def test_sweeping_resumes_after_a_restart(backend: Backend, wal: Wal) -> None:
    populate(wal, 1)
    populate(wal, 2)
    put(wal, 1, DELETE)
    assert wal.sweep(limit=5)
    for _ in range(2):
        wal = backend.reopen(wal)
        assert wal.open() == {2: Tail(25, 2, 1)}
        assert contents(wal, 1) == NOTHING
        assert wal.sweep(limit=5)
    swept(wal, limit=5, calls=20)
    assert contents(wal, 1) == NOTHING
    assert contents(wal, 2).tail == Tail(25, 2, 1)


def test_a_number_is_free_once_it_is_no_longer_being_deleted(backend: Backend, wal: Wal) -> None:
    """Whoever waits for `deleting` may write again: old rows stay unseen, new ones unswept."""
    for partition in (1, 2, 3, 4):
        populate(wal, partition)
    assert wal.write({1: [DELETE], 2: [DELETE], 3: [DELETE]}, sync=True) == {}
    assert wal.deleting() <= {1, 2, 3}
    waiting = {1, 2, 3}
    for calls in range(60):
        for partition in waiting - wal.deleting():
            assert contents(wal, partition) == NOTHING
            put(wal, partition, append(1, term=9))
            waiting.discard(partition)
        assert all(contents(wal, partition) == NOTHING for partition in waiting)
        if calls % 5 == 0:
            left = wal.deleting()
            wal = backend.reopen(wal)
            wal.open()
            assert wal.deleting() == left
        if not wal.sweep(limit=5) and not waiting:
            break
    assert wal.deleting() == waiting == set()
    for partition in (1, 2, 3):
        assert contents(wal, partition) == (Tail(1, 9, 1), (entry(1, 9),), (), None)
    assert contents(wal, 4).tail == Tail(25, 2, 1)


def test_several_deleted_partitions_are_swept_together(wal: Wal) -> None:
    for partition in range(20):
        populate(wal, partition, entries=3, names=2)
    assert wal.write({partition: [DELETE] for partition in range(1, 20)}, sync=True) == {}
    swept(wal, limit=7, calls=60)
    assert all(contents(wal, partition) == NOTHING for partition in range(1, 20))
    assert contents(wal, 0).tail == Tail(3, 2, 1)


def test_the_number_of_a_swept_partition_can_be_used_again(backend: Backend, wal: Wal) -> None:
    populate(wal, 1)
    put(wal, 1, DELETE)
    swept(wal)
    put(wal, 1, append(1, term=9), Operation(meta={"name-1": b"new"}))
    expected = (Tail(1, 9, 1), (entry(1, 9),), (("name-1", b"new"),), None)
    assert contents(wal, 1) == expected
    assert not wal.sweep()
    wal = backend.reopen(wal)
    assert wal.open() == {1: Tail(1, 9, 1)}
    assert not wal.sweep()
    assert contents(wal, 1) == expected
    put(wal, 1, DELETE)  # and be deleted a second time
    swept(wal)
    assert contents(wal, 1) == NOTHING


def test_deleting_what_does_not_exist_is_fine(backend: Backend, wal: Wal) -> None:
    put(wal, 1, DELETE)
    swept(wal)
    assert contents(wal, 1) == NOTHING
    assert backend.reopen(wal).open() == {}


def test_a_delete_travels_with_other_partitions(wal: Wal) -> None:
    populate(wal, 1)
    group = {1: [DELETE], 2: [append(1)], 3: [append(1), DELETE]}
    assert wal.write(group, sync=False) == {}
    assert contents(wal, 1) == contents(wal, 3) == NOTHING
    assert keys(wal.read(2)) == [1]


def test_maintenance_changes_nothing_that_can_be_seen(backend: Backend, wal: Wal) -> None:
    populate(wal, 1)
    put(wal, 1, append(26), sync=False)
    before = contents(wal, 1)
    wal.maintain()
    wal.maintain()
    assert contents(wal, 1) == before
    wal = backend.reopen(wal)
    wal.open()
    wal.maintain()
    assert contents(wal, 1) == before


def test_a_store_that_must_not_grow_writes_into_free_space_and_no_further(
    backend: Backend, wal: Wal
) -> None:
    large, keep_bytes = bytes(50_000), 200_000
    for key in range(1, 41):
        put(wal, 1, Operation.appending(key, large, 0))
    before = wal.free_inside_bytes()
    put(wal, 1, Operation(compact_before=31))
    wal.forbid_growth(keep_bytes)
    if not wal.free_inside_bytes():
        put(wal, 1, Operation.appending(41, large, 0))  # one that cannot tell may grow
        return
    assert wal.free_inside_bytes() >= before + 30 * len(large), "what was freed is room"
    key, failures = 41, {}
    while not failures and key < 200:
        failures = wal.write({1: [Operation.appending(key, large, 0)]}, sync=True)
        key += not failures
    assert type(failures[1]) is WriteFailed
    assert 50 < key < 71, "what was freed was written over, but for what is left to deletes"
    put(wal, 1, Operation(compact_before=key - 1))
    put(wal, 1, Operation.appending(key, large, 0))
    wal.forbid_growth(0)
    for more in range(1, 41):
        put(wal, 1, Operation.appending(key + more, large, 0))
    wal = backend.reopen(wal)
    assert wal.open()[1].last_key == key + 40


# --- threads


def together(*works: Callable[[], None]) -> None:
    """Run each in a thread of its own, started at one moment, and raise the first failure."""
    start = threading.Barrier(len(works))
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two instructions, or races would hide for hours
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


def test_readers_see_operations_whole(backend: Backend, wal: Wal) -> None:
    """Each operation replaces 60 entries and counts up in the metadata, all or nothing."""
    put(wal, 1, append(1))
    written = 0
    looks = 0
    looked = threading.Condition()
    over = threading.Event()

    def write() -> None:
        nonlocal written
        try:
            while written < backend.watched_writes and not over.is_set():
                write_one(written + 1)
                written += 1
                with looked:  # keep pace with the readers, who are always in the midst of a look
                    looked.wait_for(kept_pace)
        finally:
            over.set()

    def kept_pace() -> bool:
        return looks >= written or over.is_set()

    def write_one(number: int) -> None:
        payload = b"%d" % number
        change = Operation(
            truncate_after=1,
            entries=[Entry(key, payload, number) for key in range(2, 62)],
            meta={"number": payload, f"odd-{number % 2}": b"", f"odd-{1 - number % 2}": None},
        )
        put(wal, 1, change, sync=number % 10 == 0)

    def read(*, backwards: bool) -> None:
        nonlocal looks
        try:
            while not over.is_set():
                look(backwards=backwards)
                with looked:
                    looks += 1
                    looked.notify()
        finally:
            over.set()
            with looked:
                looked.notify()

    def look(*, backwards: bool) -> None:
        acknowledged = written
        before = int(wal.meta(1, "number") or b"0")
        found = wal.read(1, first=2, backwards=backwards)
        tail = wal.tail(1)
        scanned = dict(wal.meta_scan(1))
        numbers = {one.payload for one in found}
        assert len(found) in (0, 60), keys(found)
        assert len(numbers) <= 1, numbers
        seen = int(numbers.pop()) if numbers else 0
        # Each look is at least as new as the one before it, whichever part it looked at.
        newest = int(scanned.get("number", b"0"))
        assert acknowledged <= before <= seen <= tail.last_term <= newest
        odd = {f"odd-{newest % 2}"} if newest else set()
        assert scanned.keys() - {"number"} == odd

    together(write, *(partial(read, backwards=way) for way in (True, False, True)))
    assert looks >= written == backend.watched_writes


def test_writers_of_different_partitions_do_not_disturb_each_other(
    backend: Backend, wal: Wal
) -> None:
    def write(partition: int) -> None:
        for key in range(1, 31):
            change = Operation(entries=[entry(key, partition)], meta={"last": b"%d" % key})
            put(wal, partition, change, sync=key % 3 == 0)
            assert wal.tail(partition) == Tail(key, partition, 1)

    together(*(partial(write, number) for number in range(8)))
    wal = backend.reopen(wal)
    assert wal.open() == {number: Tail(30, number, 1) for number in range(8)}
    for number in range(8):
        assert keys(wal.read(number)) == list(range(1, 31))
        assert wal.meta(number, "last") == b"30"


def test_a_read_after_a_write_sees_it_from_any_thread(wal: Wal) -> None:
    def read_last(found: list[int]) -> None:
        found += keys(wal.read(1, backwards=True, limit=1))

    for key in range(1, 20):
        put(wal, 1, append(key), sync=False)
        found: list[int] = []
        together(partial(read_last, found))
        assert found == [key]


def test_sweeping_beside_writers_and_readers(wal: Wal) -> None:
    populate(wal, 1, entries=300)
    put(wal, 1, DELETE)

    def write() -> None:
        for key in range(1, 31):
            put(wal, 2, append(key), sync=False)
            assert keys(wal.read(2)) == list(range(1, key + 1))
            assert contents(wal, 1) == NOTHING

    def sweep() -> None:
        assert swept(wal, limit=10) > 20

    together(write, sweep)
    assert keys(wal.read(2)) == list(range(1, 31))
    assert not wal.sweep()


# --- ownership, format, closing


def test_a_store_has_one_owner(backend: Backend, wal: Wal) -> None:
    if not backend.one_owner:
        pytest.skip("memory is nobody else's")
    put(wal, 1, append(1))
    rival = backend.rival(wal)
    with pytest.raises(AlreadyOwned) as refused:
        rival.open()
    assert refused.value.pid == os.getpid()
    assert str(backend.place(wal)) in str(refused.value)
    rival.close()  # must not take the lock of the owner with it
    with pytest.raises(AlreadyOwned):
        backend.rival(wal).open()
    put(wal, 1, append(2))
    heir = backend.reopen(wal)
    assert heir.open() == {1: Tail(2, 0, 1)}


def test_an_unknown_format_is_refused(backend: Backend, wal: Wal) -> None:
    put(wal, 1, append(1))
    wal.close()
    try:
        backend.spoil_format(wal)
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    for _ in range(2):  # the refusal lets go of the store, or the second would be AlreadyOwned
        with pytest.raises(UnknownFormat):
            backend.rival(wal).open()
    refused = backend.rival(wal)
    with pytest.raises(UnknownFormat):
        refused.open()
    refused.close()
    refused.close()


USES: dict[str, Callable[[Wal], object]] = {
    "write": lambda wal: wal.write({1: [append(3)]}, sync=True),
    "read": lambda wal: wal.read(1),
    "tail": lambda wal: wal.tail(1),
    "term_at": lambda wal: wal.term_at(1, 1),
    "meta": lambda wal: wal.meta(1, "name"),
    "meta_scan": lambda wal: wal.meta_scan(1),
    "hard_state": lambda wal: wal.hard_state(1),
    "sweep": lambda wal: wal.sweep(),
    "deleting": lambda wal: wal.deleting(),
    "maintain": lambda wal: wal.maintain(),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_log_says_so(backend: Backend, wal: Wal, use: str) -> None:
    put(wal, 1, append(1))
    wal.close()
    with pytest.raises(FairwayError):
        USES[use](wal)
    wal.close()
    heir = backend.reopen(wal)
    assert heir.open() == {1: Tail(1, 0, 1)}


def test_closing_what_was_never_opened_is_fine(backend: Backend) -> None:
    wal = backend.fresh()
    wal.close()
    wal.close()
