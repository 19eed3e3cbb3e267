"""The log in PostgreSQL: a database that several servers share and one of them owns.

Decides how the contract maps onto tables and statements; who the owner is, and what became of a
commit, is decided in `postgres_owner`. A group is one transaction of two round trips.
"""

from __future__ import annotations

import os
import platform
import uuid
from typing import TYPE_CHECKING, Any

from fairway.core.lease import Tenure
from fairway.errors import (
    Closing,
    Corrupt,
    FairwayError,
    InvalidConfig,
    InvalidOperation,
    WriteFailed,
)
from fairway.runtime.clock import boottime_ns
from fairway.storage.ownership import Ownership
from fairway.storage.wal import INT_MAX, Entry, Failures, Group, HardState, Tail, checksum
from fairway.storage.wals.postgres_rows import PartitionChange, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARGIN_NS_MAX = 1_000_000_000
"""How much earlier than its lease an owner stops to answer: this, or a tenth of a short lease."""

# Of a value, a constraint or a size limit: the fault lies in what one partition wanted to write.
DATA_ERRORS = ("22", "23", "54")


class PostgresWal:
    """A `Wal` in one schema of a PostgreSQL database (14 or later).

    A synced group is on the server's disk (and on that of its synchronous standbys) when `write`
    returns. An unsynced one is committed with `synchronous_commit = off`: it survives kill -9 of
    this process, but not a crash of the database server within a fraction of a second. If that
    happens this log refuses to go on (`Fenced`), since what its callers remember is gone.

    Ownership is a lease by the database's clock. Each write renews it, and `maintain` or `renew`
    must be called more often than `lease_ttl_ns` while nothing is written; otherwise another
    opener may take over, after which every write here fails with `Fenced` and writes nothing. The
    new owner ends the connection of the old one, so all of them use the same database role.

    When another may take over is for the database's clock alone to say. Until when *we* may answer
    is `ownership`: until `lease_ttl_ns`, less a margin, after the last renewal that succeeded was
    sent, on a clock that runs while the machine is suspended. `Log` and the server check it; the
    calls here do not, so a server that stands by reads without `open`.

    A connection lost before the commit was sent is `WriteFailed`. Lost in the commit, the server
    is asked whether it took place, so `OutcomeUnknown` means that it could not be reached. Nothing
    is latched by it: the next call of any kind, a read too, first settles the doubt, and what it
    then reads from the database is final. Nothing of the store is cached in this process.

    Connect to the server itself, or through a pooler in session mode: connections carry settings.
    A metadata name may be 2,600 bytes long.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "fairway",
        owner: str | None = None,
        lease_ttl_ns: int = 15_000_000_000,
        takeover: bool = False,
        readers: int = 4,
        connect_tries: int = 4,
        connect_pause_ns: int = 100_000_000,
        before_statement: Callable[[str], None] | None = None,
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        """`owner` is who holds the lease, for people to read: host, pid and a unique part by
        default. `takeover` ends another's lease without waiting for it. `readers` is how many
        reads run at once. A lost server is tried `connect_tries` times, with a pause that starts
        at `connect_pause_ns` and doubles. `before_statement` is a seam for tests and tracing: it
        is called with the name of each statement about to be sent on the owner's connection;
        `now_ns`, the clock of `ownership`, is another.
        """
        if lease_ttl_ns < 1_000_000 or readers < 1 or connect_tries < 1 or connect_pause_ns < 0:
            raise InvalidConfig("a lease lasts 1 ms at least; readers and tries are 1 at least")
        try:
            from fairway.storage.wals.postgres_connections import Dialler, ReadConnections
            from fairway.storage.wals.postgres_owner import OwnerSession
        except ImportError as missing:
            raise InvalidConfig(
                f"PostgreSQL needs psycopg, try `pip install fairway[postgres]` ({missing})"
            ) from missing
        dialler = Dialler(dsn, schema=schema)
        self._place = dialler.place
        self._read_connections = ReadConnections(dialler, size=readers)
        margin_ns = min(MARGIN_NS_MAX, lease_ttl_ns // 10)
        tenure = Tenure(ttl_ns=lease_ttl_ns, margin_ns=margin_ns)
        self.ownership = Ownership(tenure, now_ns, self._place)
        self._session = OwnerSession(
            dialler,
            holder=owner or f"{platform.node()}/{os.getpid()}/{uuid.uuid4().hex}",
            lease_ttl_ns=lease_ttl_ns,
            takeover=takeover,
            tries=connect_tries,
            pause_ns=connect_pause_ns,
            before_statement=before_statement,
            tenure=tenure,
            now_ns=now_ns,
        )

    @property
    def parallelism(self) -> int:
        return 1

    @property
    def epoch(self) -> int:
        """Which ownership this is: higher than every former one. 0 before `open`."""
        return self._session.epoch

    # -- the life of the log ----------------------------------------------------------------------

    def open(self) -> dict[int, Tail]:
        """See `Wal.open`. Also raises `TryLater` if the server does not answer."""
        tails = {}
        for partition, last_key, last_term, floor, expected, found in self._session.open():
            if expected != found:
                self._session.close()
                raise Corrupt(
                    f"acknowledged data is gone: the highest entry is {found}, not {expected}",
                    place=self._place,
                    partition=partition,
                )
            tails[partition] = Tail(last_key, last_term, floor)
        return tails

    def close(self) -> None:
        """Give up ownership; everything written is synced by it, if the server can be reached."""
        self._session.close()
        self._read_connections.close()

    def renew(self) -> None:
        """Extend the lease. Raises `Fenced` if it was lost, `TryLater` if nobody can be asked."""
        self._session.renew()

    def free_inside_bytes(self) -> int:
        return 0  # the disk is the server's

    def forbid_growth(self, keep_bytes: int) -> None:
        pass

    def maintain(self) -> None:
        """Extend the lease, see `renew`. The server keeps its files small by itself."""
        self._session.renew()

    # -- writing ----------------------------------------------------------------------------------

    def write(self, group: Group, *, sync: bool) -> Failures:
        failures: dict[int, FairwayError] = {}
        changes: list[PartitionChange] = []
        for partition, operations in group.items():
            try:
                changes.append(PartitionChange.of(partition, operations))
            except UnicodeEncodeError as error:
                failures[partition] = InvalidOperation(f"not a name that can be stored: {error}")
        if changes:
            sync = sync or any(change.hard_state is not None for change in changes)
            failures.update(self._write(changes, sync=sync))
        return failures

    def _write(self, changes: Sequence[PartitionChange], *, sync: bool) -> Failures:
        try:
            self._session.transact(list(statements(changes)), sync=sync)
        except WriteFailed as error:
            sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
            if len(changes) == 1 or not sqlstate.startswith(DATA_ERRORS):
                return {change.partition: error for change in changes}
        except Closing:
            raise  # not an outcome: there is nobody to write any more
        except FairwayError as error:
            return {change.partition: error for change in changes}
        else:
            return {}
        # One partition's data is at fault, and the transaction was everybody's: each on its own.
        failures: dict[int, FairwayError] = {}
        for change in changes:
            failures.update(self._write([change], sync=sync))
        return failures

    def sweep(self, *, limit: int = 1000) -> bool:
        """See `Wal.sweep`. Raises what a write would have returned."""
        ended = self._ask("ended")
        if ended:
            rows = {"life": ended[0][0], "limit": limit}
            self._session.transact([("sweep", rows), ("forget_life", rows)], sync=False)
            ended = self._ask("ended")
        return bool(ended)

    def deleting(self) -> set[int]:
        """None: a deleted partition that is used again begins a new life, before the sweep too."""
        self._session.check_open()
        return set()

    # -- reading ----------------------------------------------------------------------------------

    def read(
        self,
        partition: int,
        *,
        first: int = 1,
        last: int = INT_MAX,
        limit: int = 1000,
        max_bytes: int = INT_MAX,
        backwards: bool = False,
    ) -> list[Entry]:
        if first > INT_MAX:
            return []
        entries = []
        for key, term, check, payload in self._ask(
            "read_backwards" if backwards else "read",
            partition=partition,
            first=max(first, 0),
            last=max(min(last, INT_MAX), 0),
            limit=max(limit, 0),
            max_bytes=min(max_bytes, INT_MAX),
        ):
            if checksum(partition, key, term, payload) != check:
                raise Corrupt(
                    f"entry {key} fails its checksum", place=self._place, partition=partition
                )
            entries.append(Entry(key, payload, term))
        return entries

    def tail(self, partition: int) -> Tail:
        found = self._ask("tail", partition=partition)
        return Tail(*found[0]) if found else Tail()

    def term_at(self, partition: int, key: int) -> int | None:
        found = self.read(partition, first=key, last=key)
        return found[0].term if found else None

    def meta(self, partition: int, name: str) -> bytes | None:
        found = self._ask("meta", partition=partition, name=name.encode())
        return found[0][0] if found else None

    def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        start = prefix.encode()
        found = self._ask(
            "meta_scan",
            partition=partition,
            after=after.encode(),
            prefix=start,
            # UTF-8 has no byte 255, so the last byte of a prefix can be raised and nothing of it
            # lies above that.
            before=start[:-1] + bytes([start[-1] + 1]) if start else b"\xff",
            limit=limit,
        )
        return [(name.decode(), value) for name, value in found]

    def hard_state(self, partition: int) -> HardState | None:
        found = self._ask("hard_state", partition=partition)
        return HardState(found[0][0], found[0][1].decode()) if found else None

    def _ask(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        # A commit in doubt could still take place after this read, and belie it.
        self._session.settle()
        return self._read_connections.ask(statement, parameters)
