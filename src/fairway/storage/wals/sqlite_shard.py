"""One SQLite file of the log: its connections, its transactions, its checkpoints, its watermark.

Decides what a failure means: known to be undone, or in doubt and therefore final. The statements
are in `sqlite_tables`.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import apsw
import apsw.sqlite_extra

from fairway.errors import (
    AlreadyOwned,
    Closing,
    Corrupt,
    FairwayError,
    OutcomeUnknown,
    UnknownFormat,
    WriteFailed,
)
from fairway.storage.reserve import free_bytes
from fairway.storage.wal import Tail
from fairway.storage.wals import sqlite_tables as tables
from fairway.storage.wals import sqlite_walfile as walfile
from fairway.storage.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairway.storage.wal import Entry, Group, HardState

PAGE_SIZE = 4096
FRAME_SIZE = PAGE_SIZE + 24  # a page in the -wal
CHECKSUM_VFS = "cksmvfs"  # verifies 8 bytes at the end of each page on every read
CHECKSUM_BYTES = 8
BUSY_MS = 10_000  # how long somebody else may hold the file before a call fails
FINISH_BUSY_MS = 5  # the same for a checkpoint that may as well be made the next time
CHECKPOINT_BUSY_MS = 250  # how long a commit that has to wait for a checkpoint waits for a reader

TIGHT_WAL_BYTES = 4 * 1024 * 1024
"""How long a -wal may get while the disk is nearly full: moving it must fit into the reserve."""
SHORT_WAL_BYTES = 256 * 1024
"""The same if nothing is free: it takes a quarter of that, but a few groups must fit."""

UNSYNCED_ERRORS = {
    apsw.SQLITE_IOERR_FSYNC,
    apsw.SQLITE_IOERR_DIR_FSYNC,
    apsw.SQLITE_IOERR_CLOSE,
}
DAMAGE_ERRORS = {
    apsw.SQLITE_IOERR_DATA,
    apsw.SQLITE_IOERR_CORRUPTFS,
    apsw.SQLITE_IOERR_SHORT_READ,
}
# Errors that come before the last frame of a commit is in the -wal. Any other (a failed sync, no
# room to grow the -shm) may come after it, and then recovery will find the transaction complete.
# The -shm does not grow below 4,063 frames, which `TIGHT_WAL_BYTES` stays well away from.
UNDONE_ERRORS = DAMAGE_ERRORS | {apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_READ}
UNDONE_KINDS = (
    apsw.FullError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ReadOnlyError,
    apsw.ConstraintError,
    apsw.TooBigError,
    apsw.CorruptError,
    apsw.SQLError,
)


@dataclass(frozen=True)
class ShardStatistics:
    """How one database file stands: what it holds, and how its -wal keeps to its bound."""

    place: str
    groups: int
    """Groups ever written."""
    groups_marked: int
    """How many of them the watermark vouches for: without these the file is refused."""
    syncs: int
    """Transactions that were synced since the start."""
    wal_bytes: int
    """What the -wal holds; its file may be longer, and is written over."""
    wal_bytes_bound: int
    """Past this a commit waits for a checkpoint; lower while the disk is nearly full."""
    wal_bytes_blocked: int
    """How much the -wal held when a reader last kept it from starting over; 0 once it has."""
    checkpoints_alone: int
    """How often commits were held up for a checkpoint since the start."""


class Shard:
    """One database file. Writes are serialised by a lock, reads have connections of their own."""

    def __init__(
        self,
        path: Path,
        *,
        vfs: str | None,
        wal_bytes_max: int,
        checkpoint_bytes: int,
        boot: bytes | None,
    ) -> None:
        self._path = path
        self._boot = boot
        self.place = str(path)
        self._vfs = vfs
        self._wal_bytes_max = wal_bytes_max
        self._checkpoint_bytes = checkpoint_bytes
        self._mark = Watermark(path.with_suffix(".mark"))
        self._lock = threading.RLock()  # held through a commit and its sync
        self._writer: apsw.Connection | None = None
        self._lending = threading.Lock()  # guards the two lists, so that reads wait for no commit
        self._readers: list[apsw.Connection] = []
        self._all_readers: list[apsw.Connection] = []
        self._checkpoint_lock = threading.Lock()
        self._wal_pages = 0
        self._stuck_pages = 0  # how long the -wal was when a reader kept it from starting over
        self._checkpoints_alone = 0
        self._groups = self._groups_seen = 0
        self._deleted: set[int] = set()
        self._full_sync = True
        self._bounds: tables.Bounds | None = None  # None: the file may grow
        self._cramped = False  # the disk had no room: what the -wal holds of it is wanted back
        self._wal_bound = wal_bytes_max
        self._failed: str | None = None
        self._held = False  # the files are as they were found
        self._found_wal = False  # a -wal was among them; else it is made by looking, and goes again
        self.syncs = 0
        self.unsynced_kept = False
        """Whether only a process died since it was last written, and so nothing was lost."""

    def inspect(self) -> dict[int, Tail]:
        """Verify the file against its watermark, and return the tails: before anything of it is
        changed, so that whoever has to look at a refused file finds it as it was.

        SQLite alone would not do so. It moves pages from the -wal when it closes, and deletes it:
        into a damaged file, where they are lost.
        """
        if self._vfs is None and not self._has_content():
            if self.created or walfile.generation(self.place) is not None:
                raise Corrupt("the file is missing or empty", place=self.place)
            return {}
        if self._journal_exists() and not self.created:
            return {}  # a creation broke off in its first transaction, which SQLite has to undo
        with self._reading_errors():
            generation = None if self._vfs else walfile.generation(self.place)
            connection = self._connect(read_only=self._vfs is None)
            try:
                tails = self._inspect(connection, generation)
            except BaseException:
                _close_as_it_is(connection)
                raise
            if self._vfs is None:
                _close_as_it_is(connection)
            else:
                self._writer = connection  # of which there can be only one
            return tails

    def _inspect(self, connection: apsw.Connection, generation: int | None) -> dict[int, Tail]:
        version = connection.pragma("user_version")
        if not self.created and not version:
            if connection.execute("SELECT count(*) FROM sqlite_schema").get:
                raise UnknownFormat(f"{self.place} is not a Fairway log")
            return {}  # a creation that broke off
        self._verify_format(connection)
        self._groups = tables.read_group_number(connection, self.place)
        if self.created:
            self._verify_groups(connection, generation)
        elif self._groups:
            raise Corrupt("the watermark is missing", place=self.place)
        tails, self._deleted = tables.read_tails(connection, self.place)
        return tails

    def open(self, *, held: bool = False) -> None:
        """Recover. Only after `inspect`, of this file and of all others.

        If it is `held`, a file that was there stays as it is until `release`, or the first write.
        """
        new = not self.created
        wal = self._path.with_name(self._path.name + "-wal")
        self._found_wal = self._vfs is not None or wal.exists()
        try:
            with self._reading_errors():
                if self._writer is None:
                    self._writer = self._connect()
                if new:
                    self._create()
                if self._writer.pragma("journal_mode", "WAL") != "wal":
                    raise Corrupt("the file cannot be put into WAL mode", place=self.place)
                if new:
                    self._mark.create()
                self.unsynced_kept = self._boot is not None and self._boot == self._mark.boot
                self._held = held and not new
                if not self._held:
                    self._settle(self._writer)
        except BaseException as error:
            self._failed = str(error)
            self.close()
            raise

    def release(self) -> None:
        """What was read makes sense: recover."""
        with self._lock:
            if self._held and self._writer is not None:
                with self._reading_errors():
                    self._settle(self._writer)
                self._held = False

    def _settle(self, writer: apsw.Connection) -> None:
        # Whatever was recovered is now rewritten and synced: a sync that once failed may have left
        # pages that only memory remembers.
        self._move_pages(writer, self._groups, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._count_pages(writer)
        self._wal_pages = 0
        # Last: what comes from here on was written in this run of the system.
        self._mark.remember_boot(self._boot)

    @property
    def created(self) -> bool:
        """Whether the file was ever completed: the watermark comes last."""
        return self._path.with_suffix(".mark").exists()

    @property
    def groups(self) -> int:
        """How many groups were ever written."""
        return self._groups

    def statistics(self) -> ShardStatistics:
        """A snapshot; it waits for nobody."""
        return ShardStatistics(
            place=self.place,
            groups=self._groups,
            groups_marked=self._mark.value,
            syncs=self.syncs,
            wal_bytes=self._wal_pages * FRAME_SIZE,
            wal_bytes_bound=self._wal_bound,
            wal_bytes_blocked=self._stuck_pages * FRAME_SIZE,
            checkpoints_alone=self._checkpoints_alone,
        )

    def _journal_exists(self) -> bool:
        return self._path.with_name(self._path.name + "-journal").exists()

    def _has_content(self) -> bool:
        try:
            return self._path.stat().st_size > 0
        except FileNotFoundError:
            return False

    def _verify_groups(self, connection: apsw.Connection, generation: int | None) -> None:
        """Refuse a file that ends before the watermark, or that is half of one."""
        if self._groups < self._mark.open():
            raise Corrupt(
                f"acknowledged data is gone: the file ends at group {self._groups},"
                f" but group {self._mark.value} was synced",
                place=self.place,
            )
        begun = self._mark.note is not None and generation in (self._mark.note, walfile.DAMAGED)
        if begun and not connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]:
            raise Corrupt(
                "acknowledged data may be gone: some pages were moved here from the -wal file, and"
                " the others in it cannot be read",
                place=self.place,
            )

    def write(self, group: Group, *, sync: bool) -> dict[int, FairwayError]:
        """Apply the group in one transaction; an error is everybody's in this shard."""
        with self._lock:
            if self._writer is None:
                raise Closing(f"{self.place} is not open")
            if self._failed is not None:
                return dict.fromkeys(group, WriteFailed(f"{self.place} stopped: {self._failed}"))
            if self._held:
                try:
                    self.release()
                except FairwayError as error:
                    return dict.fromkeys(group, WriteFailed(f"{error}; nothing was written"))
            try:
                synced = self._apply(self._writer, group, sync)
            except apsw.Error as error:
                return dict.fromkeys(group, self._failure(error))
            except BaseException:
                # Not SQLite's refusal but an operation that cannot be bound. The transaction it
                # leaves open would swallow the groups after it.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            self._groups += 1
            if synced:
                self.syncs += 1
                try:
                    self._mark.advance(self._groups)
                except OSError as error:
                    self._failed = f"the watermark cannot be written: {error}"
                    return dict.fromkeys(group, OutcomeUnknown(f"{self.place}: {self._failed}"))
        self._keep_short()
        return {}

    def _keep_short(self) -> None:
        """Bound the -wal, after whatever made it longer."""
        if (self._wal_pages - self._stuck_pages) * FRAME_SIZE > self._wal_bound:
            # The checkpoints beside us do not keep up. Waiting for one now bounds the file.
            self.checkpoint(wait=True)

    def _apply(self, connection: apsw.Connection, group: Group, sync: bool) -> bool:
        rows = tables.append_rows(group, self._groups + 1)
        sync = sync or (rows is None and tables.has_hard_state(group))
        if sync is not self._full_sync:
            connection.pragma("synchronous", "FULL" if sync else "NORMAL")
            self._full_sync = sync
        if rows is not None and self._bounds is None:
            tables.insert_rows(connection, rows)
        else:
            self._deleted |= tables.apply_mixed(connection, group, self._groups + 1, self._bounds)
        self._count_pages(connection)
        return sync

    def _count_pages(self, connection: apsw.Connection) -> None:
        """How long the -wal has become. Perhaps less, if it started over by itself.

        Not by a hook: that would ask for the interpreter lock in the middle of each commit.
        """
        pages, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)  # since the last time
        self._wal_pages += pages

    def _failure(self, error: apsw.Error) -> FairwayError:
        """What a failed transaction means. Known to be undone, or in doubt and therefore final."""
        assert self._writer is not None
        self._cramped |= isinstance(error, apsw.FullError)
        code = getattr(error, "extendedresult", 0)
        reason = f"{type(error).__name__} {error} (code {code})"
        doubtful = not isinstance(error, UNDONE_KINDS) and code not in UNDONE_ERRORS
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except apsw.Error as second:
            reason += f", and the rollback failed: {second}"
            doubtful = True
        if doubtful:
            # After a failed sync the system may have dropped the pages and will call the next one a
            # success. Nothing on this file can be acknowledged until it was recovered.
            self._failed = reason
            self._vouch_no_more()
            return OutcomeUnknown(f"{self.place}: {reason}; reopen the log to recover")
        if code in DAMAGE_ERRORS or isinstance(error, apsw.CorruptError):
            self._failed = reason
        return WriteFailed(f"{self.place}: {reason}; nothing was written")

    def read(
        self, partition: int, first: int, last: int, limit: int, max_bytes: int, backwards: bool
    ) -> list[Entry]:
        """See `Wal.read`."""
        if partition in self._deleted or limit < 1:
            return []
        with self._reading(partition) as connection:
            return tables.read_entries(
                connection,
                partition,
                first=first,
                last=last,
                limit=limit,
                max_bytes=max_bytes,
                backwards=backwards,
                place=self.place,
            )

    def tail(self, partition: int) -> Tail:
        """See `Wal.tail`."""
        if partition in self._deleted:
            return Tail()
        with self._reading(partition) as connection:
            return tables.read_tail(connection, partition)

    def meta(self, partition: int, name: str) -> bytes | None:
        """See `Wal.meta`."""
        if partition in self._deleted:
            return None
        with self._reading(partition) as connection:
            return tables.read_meta(connection, partition, name)

    def meta_scan(
        self, partition: int, prefix: str, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        """See `Wal.meta_scan`."""
        if partition in self._deleted:
            return []
        with self._reading(partition) as connection:
            return tables.scan_meta(connection, partition, prefix, after, limit)

    def hard_state(self, partition: int) -> HardState | None:
        """See `Wal.hard_state`."""
        if partition in self._deleted:
            return None
        with self._reading(partition) as connection:
            return tables.read_hard_state(connection, partition)

    def sweep(self, limit: int) -> bool:
        """Remove up to `limit` rows of deleted partitions. False also if the disk says no."""
        with self._lock:
            if self._writer is None or not self._deleted or self._failed is not None:
                return False
            partition = min(self._deleted)
            try:
                if tables.sweep(self._writer, partition, limit):
                    self._deleted.discard(partition)
                self._count_pages(self._writer)
            except apsw.Error as error:
                self._failure(error)  # nobody waits for this; if it is final, the next write fails
                return False
            more = bool(self._deleted)
        self._bound_wal()  # a long sweep puts off `maintain`
        self._keep_short()
        return more

    def deleting(self) -> set[int]:
        """See `Wal.deleting`."""
        with self._lock:
            return set(self._deleted)

    def free_inside_bytes(self) -> int:
        """See `Wal.free_inside_bytes`."""
        return self._file_pages().free * PAGE_SIZE

    def forbid_growth(self, keep_bytes: int) -> None:
        """See `Wal.forbid_growth`; `keep_bytes` is this file's share."""
        with self._lock:
            self._bounds = None
            if keep_bytes:
                keep_pages = max(keep_bytes // PAGE_SIZE, 1)
                self._bounds = tables.bounds_of(self._file_pages(), keep_pages)

    def _file_pages(self) -> tables.FilePages:
        with self._lock, self._reading_errors():
            if self._writer is None:
                raise Closing(f"{self.place} is not open")
            return tables.file_pages(self._writer)

    def _bound_wal(self) -> None:
        """A -wal that cannot be moved for want of room would hold on to what deletes need."""
        if self._vfs is not None:
            return  # that disk is not the one below the directory
        free = free_bytes(self._path.parent)
        self._wal_bound = self._wal_bytes_max
        if free < 2 * self._wal_bytes_max:
            tight = max(SHORT_WAL_BYTES, min(TIGHT_WAL_BYTES, free // 4))
            self._wal_bound = min(self._wal_bound, tight)

    def maintain(self) -> None:
        """Checkpoint once the -wal is worth it, or nothing was written since the last call.

        Beside commits first, which never catches up with them; twice, since what they add during
        the second time is a fraction of what they add during the first. That little is moved while
        they wait, so that the file starts over instead of growing to its bound. A reader in the way
        is not waited for; there is always a next time.
        """
        self._bound_wal()
        if self._cramped:
            self.checkpoint(wait=True, busy_ms=FINISH_BUSY_MS)
        busy = self._groups != self._groups_seen
        self._groups_seen = self._groups
        if busy and self._wal_pages * FRAME_SIZE < self._checkpoint_bytes:
            return
        self.checkpoint()
        if self._vfs is None:
            self.checkpoint()
            self.checkpoint(wait=True, busy_ms=FINISH_BUSY_MS)

    def checkpoint(self, *, wait: bool = False, busy_ms: int = CHECKPOINT_BUSY_MS) -> None:
        """Move committed pages into the database file, beside commits. With `wait`, commits are
        held up until the -wal can start over, or a reader has been in the way for too long.

        Never raises for a storage failure: the pages stay where they are, and if no commit can be
        trusted any more, the next one fails.
        """
        if self._failed is not None or not (self._wal_pages or self._cramped):
            return
        with self._checkpoint_lock:
            try:
                if wait or self._vfs is not None:
                    self._checkpoint_alone(busy_ms)
                else:
                    self._checkpoint_beside()
            except apsw.BusyError:
                if busy_ms == CHECKPOINT_BUSY_MS:
                    self._stuck_pages = self._wal_pages
            except apsw.Error as error:
                self._cramped |= isinstance(error, apsw.FullError)
                code = getattr(error, "extendedresult", 0)
                if code in UNSYNCED_ERRORS or code in DAMAGE_ERRORS:
                    self._failed = f"a checkpoint failed: {error} (code {code})"
                    self._vouch_no_more()
            except OSError as error:
                self._failed = f"a checkpoint failed: {error}"
                self._vouch_no_more()

    def _vouch_no_more(self) -> None:
        """After a failed sync the system may have dropped what it could not write: that only a
        process died will not mean any more that everything is there."""
        self._mark.remember_boot(None)

    def _checkpoint_alone(self, busy_ms: int) -> None:
        with self._lock:
            if self._writer is None:
                return
            self._checkpoints_alone += 1
            mode = apsw.SQLITE_CHECKPOINT_RESTART  # the file is kept and written over: it is faster
            if self._cramped:
                mode = apsw.SQLITE_CHECKPOINT_TRUNCATE
            self._writer.set_busy_timeout(busy_ms)
            try:
                self._move_pages(self._writer, self._groups, mode)
            finally:
                self._writer.set_busy_timeout(BUSY_MS)
            self._wal_pages = self._stuck_pages = 0
            self._cramped = False

    def _checkpoint_beside(self) -> None:
        with self._borrowed() as pin, self._borrowed() as mover:
            try:
                with self._lock:
                    if self._writer is None:
                        return
                    frames, moved = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
                    if frames == moved:
                        return
                    # A checkpoint goes no further than the oldest reader has seen, which is this
                    # one: pages of groups that are committed from now on stay where they are.
                    pin.execute("BEGIN")
                    pin.execute("SELECT 1 FROM state LIMIT 1").fetchall()
                    groups = self._groups
                # A connection that has read nothing does not know that there is a -wal.
                mover.execute("SELECT 1 FROM state LIMIT 1").fetchall()
                self._move_pages(mover, groups, apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                if pin.in_transaction:
                    pin.execute("ROLLBACK")

    def _move_pages(self, connection: apsw.Connection, groups: int, mode: int) -> None:
        """Checkpoint. Every group it moves, up to `groups`, is synced and on the mark before.

        From the first page that is moved until the last, the database file is neither old nor new
        and means nothing without the -wal. If that cannot be read to the end then, the mark says
        what is missing; if it cannot be read at all, the note says that it was needed.
        """
        if self._vfs is None:
            if self._mark.value < groups:
                walfile.sync(self.place)
            with self._lock:
                self._mark.advance(groups)
            generation = walfile.generation(self.place)
            if generation is not None and generation != walfile.DAMAGED:
                self._mark.remember(generation)
        frames, moved = connection.wal_checkpoint(mode=mode)
        if frames == moved:
            with self._lock:
                self._mark.advance(groups)

    def close(self) -> None:
        """Close every connection; a clean close leaves no -wal behind."""
        try:
            self.checkpoint(wait=True)  # in the order that is safe; what is left to SQLite has none
            with self._checkpoint_lock, self._lock, self._lending:
                self._close_connections()
        finally:
            self._mark.close()

    def _close_connections(self) -> None:
        for reader in self._all_readers:
            reader.close()
        self._all_readers, self._readers = [], []
        if self._writer is not None:
            writer, self._writer = self._writer, None
            if self._failed is not None or (self._held and self._found_wal):
                _close_as_it_is(writer)
            else:
                writer.close(force=True)

    def _connect(self, *, read_only: bool = False) -> apsw.Connection:
        vfs = self._vfs
        if vfs is None:
            vfs = checksum_vfs()
        if not read_only:
            connection = apsw.Connection(self.place, vfs=vfs)
        elif walfile.generation(self.place) is not None:
            connection = apsw.Connection(self.place, flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
        else:
            # Opened as immutable: else SQLite would make an empty -wal to read nothing from.
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            connection = apsw.Connection(f"{_uri(self._path)}?immutable=1", flags=flags, vfs=vfs)
        try:
            self._configure(connection)
        except BaseException:  # not let go of: an open one would keep what it made of the -wal
            _close_as_it_is(connection)
            raise
        return connection

    def _configure(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(BUSY_MS)
        if self._vfs is not None:
            # Without shared memory a VFS can do write-ahead logging only for one connection.
            connection.pragma("locking_mode", "EXCLUSIVE")
        connection.pragma("fullfsync", True)
        connection.pragma("checkpoint_fullfsync", True)
        connection.pragma("synchronous", "FULL")
        connection.pragma("cache_size", -16 * 1024)
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("journal_size_limit", self._wal_bytes_max)  # once grown, it shrinks again

    def _create(self) -> None:
        """Lay the schema. Safe to repeat: a creation that broke off left no watermark."""
        connection = self._writer
        assert connection is not None
        if connection.pragma("user_version"):
            return
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise UnknownFormat(f"{self.place} is not a Fairway log")
        if self._vfs is None:
            connection.reserve_bytes("main", CHECKSUM_BYTES)
        connection.pragma("page_size", PAGE_SIZE)
        connection.pragma("journal_mode", "WAL")
        with connection:
            connection.execute(tables.SCHEMA)

    def _verify_format(self, connection: apsw.Connection) -> None:
        if connection.pragma("application_id") != tables.APPLICATION_ID:
            raise UnknownFormat(f"{self.place} is not a Fairway log")
        version = connection.pragma("user_version")
        if version != tables.FORMAT:
            raise UnknownFormat(
                f"{self.place} has format {version}; this release reads {tables.FORMAT}"
            )
        if self._vfs is None and connection.reserve_bytes("main") != CHECKSUM_BYTES:
            raise Corrupt("the header says that pages have no checksums", place=self.place)

    @contextmanager
    def _reading(self, partition: int | None) -> Iterator[apsw.Connection]:
        """A connection for one read: its own where SQLite can share, else the writer's."""
        if self._vfs is not None:
            with self._lock, self._reading_errors(partition):
                if self._writer is None:
                    raise Closing(f"{self.place} is not open")
                yield self._writer
            return
        with self._borrowed() as connection, self._reading_errors(partition):
            yield connection

    @contextmanager
    def _borrowed(self) -> Iterator[apsw.Connection]:
        """A connection that nobody else uses meanwhile."""
        with self._lending:
            if self._writer is None:
                raise Closing(f"{self.place} is not open")
            if not self._readers:
                self._readers.append(self._connect())
                self._all_readers.append(self._readers[0])
            connection = self._readers.pop()
        try:
            yield connection
        finally:
            with self._lending:
                self._readers.append(connection)

    @contextmanager
    def _reading_errors(self, partition: int | None = None) -> Iterator[None]:
        try:
            yield
        except (apsw.BusyError, apsw.LockedError) as error:
            raise AlreadyOwned(self.place, pid=None) from error
        except apsw.FullError as error:
            raise WriteFailed(f"{self.place}: {error}") from error
        except apsw.ConnectionClosedError as error:
            raise Closing(f"{self.place} is not open") from error
        except apsw.Error as error:
            code = getattr(error, "extendedresult", 0)
            if code == apsw.SQLITE_IOERR_SHMSIZE:  # nothing but a want of room for the -shm
                raise WriteFailed(f"{self.place}: {error} (code {code})") from error
            raise Corrupt(
                f"{error} (code {code})", place=self.place, partition=partition
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise WriteFailed(f"{self.place}: {error}") from error
            raise Corrupt(str(error), place=self.place, partition=partition) from error


def _close_as_it_is(connection: apsw.Connection) -> None:
    """Close it without the checkpoint that SQLite makes of the last one to leave."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(force=True)


def _uri(path: Path) -> str:
    return path.absolute().as_uri()


def checksum_vfs() -> str:
    """The VFS through which every file of a log is opened: it verifies each page it reads."""
    if CHECKSUM_VFS not in apsw.vfs_names():
        apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
    return CHECKSUM_VFS
