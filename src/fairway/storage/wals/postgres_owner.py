"""The one connection that owns the PostgreSQL log and writes to it.

Decides whether we are still the owner and what became of a commit whose answer was lost; what is
written is the caller's business. Lease time is the database's clock, never ours.

Each transaction updates the owner row under our epoch and holds it until the commit. A new owner
raises the epoch in the same row, so the two are ordered by its lock: either we committed first and
the new owner sees it, or our update finds the epoch gone and nothing is written.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import sql

from fairway.errors import (
    AlreadyOwned,
    Closing,
    Corrupt,
    FairwayError,
    Fenced,
    OutcomeUnknown,
    TryLater,
    UnknownFormat,
    WriteFailed,
)
from fairway.storage.wals.postgres_connections import SQL, is_alive, message_of, trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairway.core.lease import Tenure
    from fairway.storage.wals.postgres_connections import Backend, Connection, Cursor, Dialler

FORMAT = 1

Statement: TypeAlias = "tuple[str, Mapping[str, object]]"
"""The name of a statement in `postgres.sql`, and its parameters."""


class OwnerSession:
    """The right to write: taken in `open`, proved by every transaction, lost to a higher epoch.

    A lost connection is replaced by the next call. Before that call does anything else it learns
    from the owner row whether we are still the owner and whether a commit in doubt took place.
    """

    def __init__(
        self,
        dialler: Dialler,
        *,
        holder: str,
        lease_ttl_ns: int,
        takeover: bool,
        tries: int,
        pause_ns: int,
        before_statement: Callable[[str], None] | None,
        tenure: Tenure,
        now_ns: Callable[[], int],
    ) -> None:
        self._dialler = dialler
        self._tenure = tenure
        self._now_ns = now_ns
        self._place = dialler.place
        self._holder = holder
        self._takeover = takeover
        self._tries = tries
        self._pause_s = pause_ns / 1e9
        self._before_statement = before_statement
        self._lock = threading.Lock()
        self._opened = False
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._backend: Backend | None = None
        self._lease = {"epoch": 0, "ttl_us": lease_ttl_ns // 1000}
        self._groups = 0  # known to be committed, by us or inherited
        self._synced = 0  # those of them that no crash of the server can lose
        self._in_doubt = False  # one more than `_groups` may be committed
        self._refusal: FairwayError | None = None  # why nothing may be written any more

    @property
    def epoch(self) -> int:
        """Which ownership this is: higher than every former one."""
        return self._lease["epoch"]

    def open(self) -> list[tuple[int, ...]]:
        """Take ownership and return the rows of `tails`, all in one transaction."""
        with self._lock:
            assert self._connection is None, "opened twice"
            try:
                self._connection, self._backend = self._dialler.dial("owner")
                self._run("begin")
                self._find_or_create()
                sent_ns = self._now_ns()
                self._claim()
                tails = self._run("tails").fetchall()
                self._run("commit")
                self._tenure.renewed(sent_ns)
                if not self._tenure.holds(self._now_ns()):
                    self._renewed()  # to find all the tails took longer than a lease lasts
                self._opened = True
            except psycopg.Error as error:
                self._hang_up()
                raise trouble(error, self._place) from error
            except BaseException:
                self._hang_up()  # the server undoes whatever was begun
                raise
            return tails

    def transact(self, statements: Iterable[Statement], *, sync: bool) -> None:
        """Commit the statements in one transaction under our epoch.

        Raises `Fenced` or `WriteFailed` if nothing was written, `OutcomeUnknown` if the connection
        was lost in the commit and the server cannot be asked what became of it.
        """
        with self._lock:
            connection = self._ready()
            number = self._groups + 1
            sent_ns = self._now_ns()
            try:
                # One round trip up to here and one for the commit. They stay apart so that a
                # connection lost before the commit was sent leaves no doubt.
                with connection.pipeline():
                    self._run("begin")
                    if not sync:
                        self._run("unsynced")
                    held = self._run("hold", self._lease)
                    for name, parameters in statements:
                        self._run(name, parameters)
                ours = held.fetchone() == (number,)
            except psycopg.Error as error:
                # Hanging up undoes it. A rollback would do, but psycopg believes that it prepared
                # statements which the server skipped after the one that failed.
                lost = connection.closed
                self._hang_up()
                if lost:  # perhaps a new owner ended the connection: then say so
                    with suppress(WriteFailed):
                        self._reconnect(tries=1)
                    self._refuse()
                raise WriteFailed(f"{self._place}: {message_of(error)}") from error
            except BaseException:
                self._hang_up()
                raise
            if not ours:
                self._reconnect()  # hangs up, which undoes it all, and sees what happened
                self._refuse()
                raise WriteFailed(f"{self._place}: group {number} was not ours")
            self._commit(connection, number)
            self._groups = number
            if sync:
                self._synced = number
                # Only then: a crash of the server takes back what was not synced, and with it how
                # far the lease was extended.
                self._tenure.renewed(sent_ns)

    def renew(self) -> None:
        """Extend the lease. Raises `Fenced` if it was lost, `TryLater` if nobody can be asked."""
        with self._lock:
            try:
                self._ready()
                if not self._renewed():
                    self._reconnect()  # renews, if it is still ours
            except WriteFailed as error:
                raise TryLater(f"the lease was not renewed: {error}") from error
            self._refuse()

    def settle(self) -> None:
        """Learn what became of a commit in doubt. Raises `TryLater` if nobody can be asked."""
        if not self._in_doubt:
            return
        with self._lock:
            self.check_open()
            if self._in_doubt:
                try:
                    self._reconnect()
                except WriteFailed as error:
                    raise TryLater(str(error)) from error

    def close(self) -> None:
        """End the lease if it is still ours, synced and with it every group before; hang up."""
        self._closing.set()  # whoever waits for the server gives up
        with self._lock:
            self._tenure.end()  # first: once the lease is released, another may have it at once
            if self._opened and self._refusal is None:
                with suppress(psycopg.Error, FairwayError):  # then the lease ends by itself
                    if self._connection is None or not is_alive(self._connection):
                        self._reconnect()
                    self._run("release", self._lease)
            self._opened = False
            self._hang_up()

    def check_open(self) -> None:
        """Raise `Closing` once the log was closed."""
        if self._closing.is_set():
            raise Closing(f"{self._place} is closed")

    # -- one statement, one transaction -----------------------------------------------------------

    def _run(self, name: str, parameters: Mapping[str, object] | None = None) -> Cursor:
        if self._before_statement is not None:
            self._before_statement(name)
        assert self._connection is not None
        return self._connection.execute(SQL[name], parameters)

    def _renewed(self) -> bool:
        sent_ns = self._now_ns()
        try:
            row = self._ask("renew", self._lease)
        except psycopg.Error:
            return False
        ours: bool = row == (self._groups,)
        if ours:
            self._synced = self._groups  # it is synced, and with it all before
            self._tenure.renewed(sent_ns)
        return ours

    def _commit(self, connection: Connection, number: int) -> None:
        try:
            answer = self._run("commit").statusmessage
        except psycopg.Error as error:
            if error.sqlstate is None or connection.closed:
                self._find_out(number, error)
                return
            answer = message_of(error)  # the server refused and is there to say so
        except BaseException:
            self._hang_up()
            self._in_doubt = True
            raise
        if answer != "COMMIT":
            self._hang_up()
            raise WriteFailed(f"{self._place}: {answer}")

    def _find_out(self, number: int, error: psycopg.Error) -> None:
        """The answer to a commit was lost: return if it took place, raise if not, or not known."""
        self._in_doubt = True
        try:
            groups = self._reconnect()
        except WriteFailed:
            groups = None
        if groups is None:
            raise OutcomeUnknown(
                f"{self._place}: lost in the commit of group {number}: {error}"
            ) from error
        if groups < number:
            self._refuse()
            raise WriteFailed(
                f"{self._place}: lost before the commit of group {number}: {error}"
            ) from error

    # -- connections and what they find -----------------------------------------------------------

    def _ready(self) -> Connection:
        self.check_open()
        assert self._opened, "open the log first"
        if self._refusal is None and (self._connection is None or not is_alive(self._connection)):
            self._reconnect()
        self._refuse()
        assert self._connection is not None
        return self._connection

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # or it would grow with each raise

    def _reconnect(self, tries: int | None = None) -> int | None:
        """Connect again; return how many groups there were when our epoch ended or now, if known.

        Raises `WriteFailed` if the server does not answer after several tries.
        """
        former = self._backend
        pause_s = self._pause_s
        for left in reversed(range(tries or self._tries)):
            self._hang_up()
            try:
                self._connection, self._backend = self._dialler.dial("owner")
                if former is not None:
                    self._run("evict", former)
                sent_ns = self._now_ns()
                self._run("arrive", {**self._lease, **self._backend})
                groups = self._judge(self._run("look").fetchone())
                if self._refusal is None:
                    self._tenure.renewed(sent_ns)
                else:
                    self._tenure.end()  # also for reads: what is remembered here is out of date
                return groups
            except psycopg.Error as error:
                if not left or self._closing.wait(pause_s):
                    self._hang_up()
                    self._backend = former
                    unreachable = f"{self._place} cannot be reached: {message_of(error)}"
                    raise WriteFailed(unreachable) from error
                pause_s *= 2
        raise AssertionError("no tries at all")

    def _judge(self, row: tuple[Any, ...] | None) -> int | None:
        """Compare the owner row with what we know, and note why we may not go on, if so."""
        if row is None:
            self._refusal = Corrupt("the owner row is missing", place=self._place)
            return None
        groups: int
        epoch, groups, inherited, holder = row
        in_doubt, self._in_doubt = self._in_doubt, False
        if epoch == self.epoch and self._groups <= groups <= self._groups + in_doubt:
            self._groups = self._synced = groups  # `arrive` was synced, and with it all before
        elif epoch != self.epoch:
            self._refusal = Fenced(
                f"{self._place}: epoch {self.epoch} ended; {holder} has epoch {epoch}"
            )
            # The next owner wrote down where our epoch ended; the one after it overwrote that.
            return int(inherited) if epoch == self.epoch + 1 else None
        elif groups < self._synced:
            self._refusal = Corrupt(
                f"acknowledged data is gone: {self._synced} groups were synced, {groups} are there",
                place=self._place,
            )
        else:
            # A crash of the server took groups that were not synced. What we and our callers
            # remember is no longer what is stored, so this log must be opened afresh.
            self._refusal = Fenced(
                f"{self._place}: the server crashed and lost unsynced groups ({groups} of"
                f" {self._groups} are there); open the log again"
            )
        return groups

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- opening ----------------------------------------------------------------------------------

    def _find_or_create(self) -> None:
        where = {"schema": self._dialler.schema}
        if self._ask("exists", where) == (False,):
            self._run("create_lock", where)
            if self._ask("exists", where) == (False,):
                assert self._connection is not None
                create_schema = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}")
                self._connection.execute(create_schema.format(sql.SQL(self._dialler.path)))
                self._run("create")
        versions = self._run("format").fetchall()
        if versions != [(FORMAT,)]:
            raise UnknownFormat(
                f"{self._place} has format {[row[0] for row in versions]};"
                f" this release reads {FORMAT}"
            )

    def _claim(self) -> None:
        assert self._backend is not None
        claim = {"holder": self._holder, "takeover": self._takeover, **self._lease, **self._backend}
        self._run("depose", claim)
        won = self._ask("claim", claim)
        if won is None:
            found = self._ask("holder")
            if found is None:
                raise Corrupt("the owner row is missing", place=self._place)
            holder, epoch, left_ms = found
            pid = re.fullmatch(r".*/(\d+)/\w+", holder)
            raise AlreadyOwned(
                f"{self._place} (holder {holder}, epoch {epoch}, lease for {left_ms} ms)",
                pid=int(pid[1]) if pid else None,
            )
        self._lease["epoch"], self._groups = won
        self._synced = self._groups  # our own commit, which is synced, comes after them

    def _ask(self, name: str, parameters: Mapping[str, object] | None = None) -> Any:
        return self._run(name, parameters).fetchone()
