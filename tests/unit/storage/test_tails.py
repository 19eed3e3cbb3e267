"""Where partitions end: what is accepted, what is written, and who takes nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.errors import InvalidOperation, WriteFailed
from fairway.storage.tails import Tails
from fairway.storage.wal import INT_MAX, Tail


def tails(**ends: int) -> Tails:
    return Tails({int(name[1:]): Tail(last_key, 0, 0) for name, last_key in ends.items()})


def test_a_failure_goes_back_to_what_is_written() -> None:
    tail = tails(p1=5).of(1)
    tail.last_key, tail.floor = 9, 3
    tail.wrote(7, 2)
    tail.last_key = 12
    tail.failed()
    assert (tail.last_key, tail.floor) == (7, 2)


def test_what_the_store_says_after_a_doubt_is_where_a_failure_goes_back_to() -> None:
    tail = tails(p1=5).of(1)
    tail.last_key = 9
    tail.found(Tail(8, 0, 4))
    tail.failed()
    assert (tail.last_key, tail.floor) == (8, 4)


def test_a_partition_is_there_once_something_is_written() -> None:
    book = tails(p3=1)
    book.of(2).last_key = 1
    assert book.existing() == [3]
    book.of(2).wrote(1, 0)
    assert book.existing() == [2, 3]


def test_a_delete_that_fails_is_taken_back_and_a_doubt_is_not() -> None:
    book = tails(p1=5, p2=5)
    book.refuse(1)
    assert book.existing() == [2]
    book.of(1).failed()
    assert (book.existing(), book.of(1).refusal) == ([1, 2], None)
    book.doubt(2, "in doubt")
    book.of(2).failed()
    assert isinstance(book.of(2).refusal, WriteFailed)
    assert book.doubtful() == [2]


@pytest.mark.parametrize("found", [5, 7])
def test_a_doubt_is_cleared_by_where_the_store_says_it_ends(found: int) -> None:
    book = tails(p2=5)
    book.of(2).last_key = 9  # of what was queued
    book.doubt(2, "in doubt")
    book.of(2).failed()
    book.cleared(2, Tail(found, 0, 0))
    assert (book.of(2).last_key, book.of(2).refusal, book.doubtful()) == (found, None, [])
    assert book.existing() == [2]


def test_a_partition_that_a_doubtful_write_may_have_made_exists_if_it_did() -> None:
    book = tails()
    for partition, found in ((1, Tail()), (2, Tail(3, 0, 0))):
        book.doubt(partition, "in doubt")
        book.cleared(partition, found)
    assert book.existing() == [2]


def test_a_deleted_partition_is_refused_until_it_is_swept() -> None:
    book = tails(p1=5)
    book.refuse(1)
    book.deleted(1)
    book.of(1).wrote(5, 0)
    assert (book.existing(), book.to_sweep()) == ([], {1})
    assert book.of(1).refusal is not None
    book.swept(1)
    assert (book.to_sweep(), book.of(1).refusal, book.of(1).last_key) == (set(), None, 0)


@pytest.mark.parametrize("partition", [True, 1.0, "1", -1, INT_MAX + 1, None])
def test_what_is_no_partition_is_refused(partition: Any) -> None:
    with pytest.raises(InvalidOperation):
        tails(p1=5).of(partition)
