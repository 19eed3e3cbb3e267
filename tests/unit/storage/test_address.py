"""Which addresses of a database are taken: those that everybody reads in the same way."""

from __future__ import annotations

import pytest

from fairway.errors import InvalidConfig
from fairway.jobs.part import store_at
from fairway.jobs.stores.postgres import PostgresStore
from fairway.storage.address import check_address
from fairway.storage.wals import wal_at
from fairway.storage.wals.postgres import PostgresWal

PLAIN = [
    "postgresql://",
    "postgresql:///db",
    "postgres://u@host/db",
    "postgresql://u:p%2F%40%3F%23@host:5432/db",
    "postgresql://u:p:q@host/db",
    "postgresql://u:p@/db?host=/tmp/sockets",
    "postgresql://u:p@one:5432,two:5433,three/db?target_session_attrs=read-write",
    "postgresql://u@[::1]:5432/db",
    "postgresql://%2Ftmp%2Fsockets/db",
    "postgresql://host/db?user=me@there&password=x",
    "postgresql://u@host/db?options=-c%20geqo%3Doff",
]
UNCLEAR = [
    "postgresql://u:ab/PART@host:5432/db",
    "postgresql://u:1/PART@host/db",
    "postgresql://u:ab@PART@host/db",
    "postgresql://u:ab?PART@host:5432/db",
    "postgresql://u:1?PART@host/db",
    "postgresql://u:1?x=PART@host/db",
    "postgresql://u:ab#PART@host:5432/db",
    "postgresql://u:ab%PART@host/db",
    "postgresql://u:PART x@host/db",
    "postgresql://u:PART/db",
    "postgresql://u:ab@host:PART/db",
    "postgresql://u:ab@[::1:PART/db",
    "postgresql://u:ab@host/db#PART",
]


@pytest.mark.parametrize("address", PLAIN)
def test_an_address_that_is_clear_is_taken(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("address", UNCLEAR)
def test_an_address_that_may_hold_a_password_in_pieces_is_refused(address: str) -> None:
    for take in (check_address, wal_at, store_at, PostgresWal, PostgresStore):
        with pytest.raises(InvalidConfig, match="percent-encode") as refused:
            take(address)
        assert "PART" not in str(refused.value)


@pytest.mark.parametrize(
    "place", ["host=h password=PART", "user = u password=a:PART", "password='PART' dbname=d"]
)
def test_a_connection_string_is_not_taken_for_a_directory(place: str) -> None:
    for take in (wal_at, store_at):
        with pytest.raises(InvalidConfig, match="postgresql://") as refused:
            take(place)
        assert "PART" not in str(refused.value)
