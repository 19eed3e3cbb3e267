"""The heartbeat of a worker on PostgreSQL: a connection of its own that may block its thread."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import namedtuple_row

from fairway.errors import FairwayError
from fairway.jobs.job import LeaseRenewal
from fairway.jobs.stores.postgres.connections import answering

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 10_000


class PostgresLeaseRenewer:
    """See `LeaseRenewer`."""

    def __init__(self, dsn: str, sql: Mapping[str, str], *, gave_back: Callable[[], None]) -> None:
        self._dsn = dsn
        self._sql = sql
        self._gave_back = gave_back
        self._connection: psycopg.Connection[Any] | None = None

    def renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        try:
            with answering(sent=False):
                return self._renew(worker, held, ttl_ns, grace_ns)
        except FairwayError:
            self.close()
            raise

    def _renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        known = dict(held)  # before we look: what is claimed meanwhile is not missing
        if self._connection is None:
            self._connection = psycopg.connect(
                self._dsn,
                connect_timeout=CONNECT_TIMEOUT_S,
                prepare_threshold=None,  # a pooler may give each transaction another session
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=STATEMENT_TIMEOUT_MS,
                application_name="fairway heartbeat",
                options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c synchronous_commit=off",
            )
        with (
            self._connection.transaction(),
            psycopg.RawCursor(self._connection, row_factory=namedtuple_row) as cursor,
        ):

            def ask(name: str, *args: Any) -> list[Any]:
                rows: list[Any] = cursor.execute(self._sql[name].encode(), args).fetchall()
                return rows

            if not ask("renew", worker, ttl_ns // 1000):
                return LeaseRenewal(alive=False)
            rows = ask("leases", worker, grace_ns // 1000)
            unknown = [row for row in rows if row.old and held.get(row.id) != row.token]
            if unknown:
                given = ask(
                    "give_back",
                    worker,
                    [row.id for row in unknown],
                    [row.token for row in unknown],
                )
                if keyed := {row.id: row.pkey for row in given if row.pkey is not None}:
                    keys = sorted(set(keyed.values()))
                    cursor.execute(self._sql["free_keys"].encode(), (keys, list(keyed)))
                    ask("unblock", keys)
                self._gave_back()
            gone = {row.id for row in unknown}
            cancelled = ask("cancelled", worker)
            cancel = {row.id: row.reason for row in cancelled if row.id not in gone}
            have = {(row.id, row.token) for row in rows}
            lost = {id: token for id, token in known.items() if (id, token) not in have}
            return LeaseRenewal(alive=True, cancel=cancel, released=len(unknown), lost=lost)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it may be gone already
                connection.close()
