"""Rows as they travel to SQLite."""

from __future__ import annotations

import pytest

from fairway.storage.wal import Operation, checksum
from fairway.storage.wals.sqlite_tables import HELD_BYTES, LET_GO_BYTES, append_rows


@pytest.mark.parametrize(
    "size",
    [0, 1, HELD_BYTES, HELD_BYTES + 1, 3 * HELD_BYTES + 7, LET_GO_BYTES, LET_GO_BYTES + 1],
)
def test_the_checksum_of_a_row_does_not_depend_on_how_it_was_gone_through(size: int) -> None:
    payload = bytes(number * 31 % 251 for number in range(size))
    rows = append_rows({7: [Operation.appending(3, payload, 2)]}, 1)
    assert rows is not None
    assert int(rows[1][57:67]) == checksum(7, 3, 2, payload)
    assert rows[1][67:] == payload
