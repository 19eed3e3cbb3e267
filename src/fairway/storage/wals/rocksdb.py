"""A `Wal` on RocksDB: a group is one WriteBatch, and one sync made off the interpreter lock.

`rocksdict` holds that lock while it writes, so a batch goes to RocksDB without a sync and the live
log file is synced from here (`rocksdb_log`). The layout of the rows is in `rocksdb_rows`.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairway.errors import (
    Closing,
    Corrupt,
    FairwayError,
    InvalidConfig,
    OutcomeUnknown,
    UnknownFormat,
    WriteFailed,
)
from fairway.runtime.boot import boot_id
from fairway.storage.owner import DirectoryLock
from fairway.storage.reserve import free_bytes
from fairway.storage.sync import sync_data, sync_directory
from fairway.storage.wal import INT_MAX, Entry, HardState, Tail, checksum
from fairway.storage.wals.rocksdb_batch import BatchChange, put_group, put_sweep
from fairway.storage.wals.rocksdb_config import kept
from fairway.storage.wals.rocksdb_log import LogFiles, check_records
from fairway.storage.wals.rocksdb_rows import (
    DEAD,
    FORMAT,
    FORMAT_KEY,
    HARD_STATE,
    META,
    PARTITION,
    SEGMENT,
    SEGMENTS_KEPT,
    SPACE_KEY_BYTES,
    PartitionRow,
    ReadView,
    corrupt,
    head,
    partition_body,
    seal,
    segment_body,
    segment_key,
    space_key,
    system_key,
    unpack_hard_state,
)
from fairway.storage.wals.stores import refuse_other_store
from fairway.storage.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairway.storage.wal import Failures, Group

STALLED = "Write stall"
STALL_POLL_S = 0.001
NO_ROOM = re.compile(r"No space left|Disk quota exceeded")
ROOM_BYTES = 8 * 1024 * 1024
"""What RocksDB needs beside the rows of its log files, which it writes to tables when it opens."""
NOT_APPENDED = re.compile(r"No space left|File too large|While appending|While open a file")
"""Complaints after which the record is not in the log, or is cut short and dropped by recovery."""


@dataclass(frozen=True)
class RocksdbStatistics:
    """How the store stands."""

    groups: int
    """Groups ever written."""
    groups_marked: int
    """How many of them the watermark vouches for: without these the store is refused."""
    syncs: int
    """How many times a log file was synced since the start."""
    stalls: int
    """How often a write waited because RocksDB's flushes lagged behind."""
    spaces_deleted: int
    """Deleted partitions whose rows are still to be swept."""


class RocksdbWal:
    """Partitions in one RocksDB under `directory`. A group is written and fails as a whole.

    After a failed write or sync the log refuses every write until it is reopened: RocksDB itself
    stops after the one, and after the other the system may have dropped what it could not write.
    After a full disk it reopens by itself, once there is room for that; until then reads go on, and
    a start on a full disk begins that way. Deletes wait as well: RocksDB writes before it frees.
    Reads and writes hold the interpreter lock for as long as RocksDB works; syncs do not, nor does
    waiting for its flushes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memtable_bytes: int = 64 * 1024 * 1024,
        sync_file: Callable[[int], None] = sync_data,
        boot: Callable[[], bytes | None] = boot_id,
    ) -> None:
        """`memtable_bytes` bounds a write buffer: larger ones are flushed less often and take
        longer to replay at `open`. `sync_file` makes one file durable; tests make it slow or fail.
        `boot` tells one run of the system from the next.
        """
        try:
            import rocksdict
        except ImportError as missing:
            raise InvalidConfig(
                "the RocksDB log needs rocksdict: pip install 'fairway[rocksdb]'"
            ) from missing
        self._rocksdict = rocksdict
        self._directory = directory
        self._home = directory / "rocksdb"
        self._log_home = directory / "rocksdb-log"
        self._memtable_bytes = memtable_bytes
        self._boot = boot
        self.unsynced_kept = False
        """See `Vouching`."""
        self._lock = DirectoryLock(directory)
        self._mark = Watermark(directory / "watermark")
        self._logs = LogFiles(self._log_home, sync_file)
        self._read_options = rocksdict.ReadOptions()
        self._read_options.set_background_purge_on_iterator_cleanup(True)
        self._write_options = rocksdict.WriteOptions()  # not synced
        self._write_options.no_slowdown = True  # it would wait with the interpreter lock in hand
        self._stall = threading.Event()  # never set: a wait that lets others run

        self._writing = threading.Lock()  # guards what follows
        self._db: Any = None
        self._failed: str | None = None
        self._no_room = False  # that is why
        self._held = False  # the files are as they were found
        self._group = 0  # the last one written
        self._segment, self._segment_first = 1, 1  # of the next group
        self._next_space = 1
        self._dead: dict[int, bytes] = {}
        self._stalls = 0

        self._state = threading.Condition()  # guards what readers look at; never held for long
        self._partitions: dict[int, PartitionRow] = {}
        self._view: ReadView | None = None
        self._readers = 0
        self._reopening = False

    @property
    def parallelism(self) -> int:
        return 1

    @property
    def syncs(self) -> int:
        """How many times a log file was synced."""
        return self._logs.syncs

    def statistics(self) -> RocksdbStatistics:
        """A snapshot; it waits for nobody."""
        return RocksdbStatistics(
            groups=self._group,
            groups_marked=self._mark.value,
            syncs=self._logs.syncs,
            stalls=self._stalls,
            spaces_deleted=len(self._dead),
        )

    # -- the life of the log ----------------------------------------------------------------------

    def open(self) -> dict[int, Tail]:
        return self._opened(held=False)

    def open_held(self) -> dict[int, Tail]:
        """See `Holding`."""
        return self._opened(held=True)

    def release(self) -> None:
        """See `Holding`."""
        with self._writing:
            if self._held:
                self._release()

    def _opened(self, *, held: bool) -> dict[int, Tail]:
        self._lock.acquire()
        try:
            self._open(held)
        except BaseException:
            self.close()
            raise
        return {partition: row.tail for partition, row in self._partitions.items()}

    def _open(self, held: bool) -> None:
        refuse_other_store(self._directory, "rocksdb")
        created = (self._home / "CURRENT").exists()
        begun = any(home.is_dir() and any(home.iterdir()) for home in (self._home, self._log_home))
        if begun or (self._directory / "watermark").exists():
            synced = self._mark.open()
        else:
            self._mark.create()
            synced = 0
        if synced and not created:  # RocksDB would make a new one
            raise Corrupt("the store is missing", place=str(self._home / "CURRENT"))
        if created or synced:
            with kept(self._home):
                for path in (*self._home.glob("MANIFEST-*"), *self._log_home.glob("*.log")):
                    check_records(path)
                # First without the right to write: RocksDB, once it may, deletes files it does not
                # know, and a person who has to look at a refused store should find all of them.
                self._db = self._connect(create=False, read_only=True)
            self._held = True
            view = ReadView(self._db.iter(), str(self._home))
            try:
                self._load(view, synced)
            finally:
                view.close()
        boot = self._boot()
        self.unsynced_kept = boot is not None and boot == self._mark.boot
        if self._held and held:
            self._publish(BatchChange(self._next_space))
        else:
            self._begin(create=not synced, created=created)

    def _release(self) -> None:
        with self._nobody_reading():
            self._begin(create=False, created=True)

    def _begin(self, *, create: bool, created: bool) -> None:
        """With the right to write, which changes files."""
        self._close_db()
        self._held = False
        try:
            self._db = self._connect(create=create)
        except WriteFailed as error:
            if not created:
                raise
            self._read_on(str(error))
            return
        sync_directory(self._directory)
        sync_directory(self._home)
        # The first group meets a log file that is new to us, and so all of them are synced: what
        # was recovered is durable before anybody builds on it.
        self._commit(self._start, sync=True)
        self._mark.remember_boot(self._boot())

    def _options(self) -> Any:
        rocksdict = self._rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.set_paranoid_checks(True)
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_recycle_log_file_num(0)  # a reused file ends in old records, as if damaged
        options.set_wal_dir(str(self._log_home))
        options.set_write_buffer_size(self._memtable_bytes)
        options.set_max_write_buffer_number(4)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_max_log_file_size(1024 * 1024)
        options.set_keep_log_file_num(4)
        return options

    def _connect(self, *, create: bool, read_only: bool = False) -> Any:
        options = self._options()
        options.create_if_missing(create)
        access = self._rocksdict.AccessType
        try:
            return self._rocksdict.Rdict(
                str(self._home),
                options,
                {"default": options},  # or it would take those of the last time, from a file
                access.read_only(False) if read_only else access.read_write(),
            )
        except Exception as error:
            if NO_ROOM.search(str(error)):
                raise WriteFailed(f"{self._home}: {error}") from error
            raise corrupt(error, str(self._suspect(str(error)))) from error

    def _suspect(self, complaint: str) -> Path:
        """The file that RocksDB means when it opens and names none: CURRENT or a log file."""
        if "CURRENT" in complaint:
            return self._home / "CURRENT"
        logs = list(self._log_home.glob("*.log"))
        return logs[0] if len(logs) == 1 else self._log_home

    def _load(self, view: ReadView, synced: int) -> None:
        """Read what is kept in memory: O(partitions). Refuse a store that is not all there."""
        found = view.body(FORMAT_KEY)
        if found is None and (synced or view.seek(b"")):
            raise Corrupt("the format version is missing", place=view.place)
        if found not in (None, FORMAT):
            raise UnknownFormat(f"{view.place} says {found!r}; this release reads {FORMAT!r}")
        rows = [
            (segment_key.unpack(key)[1], *segment_body.unpack(body))
            for key, body in view.sealed(SEGMENT)
        ]
        segment, self._group = head(rows, view.place)
        if self._group < synced:
            raise Corrupt(
                f"the store ends at group {self._group}; up to {synced} they were synced",
                place=view.place,
            )
        self._segment, self._segment_first = segment + 1, self._group + 1
        for key, body in view.sealed(PARTITION):
            self._partitions[system_key.unpack(key)[1]] = PartitionRow(*partition_body.unpack(body))
        for key, _ in view.sealed(DEAD):
            space = system_key.unpack(key)[1]
            self._dead[space] = space_key(space, 0)
        spaces = {row.space for row in self._partitions.values()}
        self._next_space = max(spaces | self._dead.keys(), default=0) + 1

    def _start(self, batch: Any) -> BatchChange:
        batch.put(FORMAT_KEY, seal(FORMAT_KEY, FORMAT))
        return BatchChange(self._next_space)

    def close(self) -> None:
        with self._writing:
            with self._state:
                view, self._view = self._view, None
                self._state.wait_for(lambda: not self._readers)
                if view is not None:
                    view.close()
            if self._db is not None and self._failed is None and not self._held:
                with suppress(OSError):  # nobody waits for this sync
                    self._logs.settle(sync=True)
                    self._mark.advance(self._group)
            self._close_db()
            self._logs.close()
            self._mark.close()
            self._lock.release()

    def _close_db(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(Exception):  # it flushes; what it cannot flush is in the log
                db.close()

    # -- a full disk ------------------------------------------------------------------------------

    def _read_on(self, reason: str) -> None:
        """Without the right to write, which takes room that there is not."""
        self._db = self._connect(create=False, read_only=True)
        self._lack_room(reason)
        self._publish(BatchChange(self._next_space))

    def _lack_room(self, reason: str) -> None:
        self._no_room = True
        self._failed = (
            f"the disk is full, and RocksDB needs {-(-self._room_needed() // 2**20)} MiB of it to"
            f" go on, for deletes as well: make room on the disk, then it goes on by itself"
            f" ({reason})"
        )

    def _room_needed(self) -> int:
        logs = self._log_home.glob("*.log")
        return ROOM_BYTES + sum(path.stat().st_size for path in logs)

    def _reopen(self) -> None:
        """Go on after a full disk, if there is room by now: RocksDB itself never does."""
        with self._writing:
            if self._db is None or free_bytes(self._directory) < self._room_needed():
                return
            with self._nobody_reading():
                self._close_db()
                self._open_again()

    @contextmanager
    def _nobody_reading(self) -> Iterator[None]:
        """Readers wait meanwhile; whoever reads is waited for."""
        with self._state:
            self._reopening = True
            view, self._view = self._view, None
            self._state.wait_for(lambda: not self._readers)
            if view is not None:
                view.close()
        try:
            yield
        finally:
            with self._state:
                self._reopening = False
                self._state.notify_all()

    def _open_again(self) -> None:
        known = self._group, dict(self._partitions), dict(self._dead)
        try:
            self._db = self._connect(create=False)
            self._partitions, self._dead = {}, {}
            view = ReadView(self._db.iter(), str(self._home))
            try:
                self._load(view, self._mark.value)
            finally:
                view.close()
            found = self._group, self._partitions, self._dead.keys()
            if found != (known[0], known[1], known[2].keys()):
                self._no_room = False
                self._failed = "it holds other than what was acknowledged"
                self._publish(BatchChange(self._next_space))
                return
            self._failed, self._no_room = None, False
            self._commit(self._start, sync=True)
        except WriteFailed as error:
            self._close_db()
            self._group, self._partitions, self._dead = known
            self._read_on(str(error))

    # -- writing ----------------------------------------------------------------------------------

    def write(self, group: Group, *, sync: bool) -> Failures:
        def fill(batch: Any) -> BatchChange:
            return put_group(batch, group, self._partitions, self._next_space, self._reading)

        with self._writing:
            self._check_open()
            try:
                if self._held:
                    self._release()
                self._commit(fill, sync=sync)
            except (WriteFailed, OutcomeUnknown) as error:
                return {partition: type(error)(*error.args) for partition in group}
            return {}

    def _commit(self, fill: Callable[[Any], BatchChange], *, sync: bool) -> None:
        """Write one batch, make it durable, then visible. Raises the outcome if that fails."""
        if self._no_room:
            raise WriteFailed(f"{self._home}: {self._failed}")
        if self._failed is not None:
            raise WriteFailed(f"{self._home}: {self._failed}; reopen the log to recover")
        group = self._group + 1
        try:
            change = fill(batch := self._batch(group))
            while not self._write(batch):
                self._stalls += 1
                self._stall.wait(STALL_POLL_S)  # flushes lag behind
                change = fill(batch := self._batch(group))  # the other one is used up
        except Corrupt as error:
            raise WriteFailed(f"{error}; nothing was written") from error
        try:
            synced, new_file = self._logs.settle(sync=sync or change.sync)
            if synced:
                self._mark.advance(group)
        except OSError as error:
            raise self._latch(OutcomeUnknown, f"a sync failed: {error}") from error
        self._group = group
        if new_file:
            self._segment, self._segment_first = self._segment + 1, group + 1
        self._publish(change)

    def _batch(self, group: int) -> Any:
        """A batch that says which group it is (see `rocksdb_rows.head`)."""
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        key = segment_key.pack(SEGMENT, self._segment, group % 2)
        batch.put(key, seal(key, segment_body.pack(self._segment_first, group)))
        if group == self._segment_first and self._segment > SEGMENTS_KEPT:
            for slot in range(2):
                batch.delete(segment_key.pack(SEGMENT, self._segment - SEGMENTS_KEPT, slot))
        return batch

    def _write(self, batch: Any) -> bool:
        """Hand a batch to RocksDB. False if it would have had to wait; then nothing was written."""
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # it has no other type
            if STALLED in str(error):
                return False
            if NO_ROOM.search(str(error)):
                self._lack_room(str(error))
                raise WriteFailed(f"{self._home}: {self._failed}") from error
            kind = WriteFailed if NOT_APPENDED.search(str(error)) else OutcomeUnknown
            raise self._latch(kind, str(error)) from error
        return True

    def _latch(self, kind: type[FairwayError], reason: str) -> FairwayError:
        """Refuse writes from now on."""
        self._failed = reason
        self._vouch_no_more()
        return kind(f"{self._home}: {reason}; reopen the log to recover")

    def _vouch_no_more(self) -> None:
        """After a failed sync the system may have dropped what it could not write: that only a
        process died will not mean any more that everything is there."""
        self._mark.remember_boot(None)

    def _publish(self, change: BatchChange) -> None:
        view = ReadView(self._db.iter(self._read_options), str(self._home))
        self._next_space = change.next_space
        self._dead.update(change.dead)
        for space in [space for space, begin in change.dead.items() if not begin]:
            del self._dead[space]
        with self._state:
            for partition, row in change.partitions.items():
                if row.space:
                    self._partitions[partition] = row
                else:
                    self._partitions.pop(partition, None)
            former, self._view = self._view, view
            if former is not None and not former.readers:
                former.close()

    def sweep(self, *, limit: int = 1000) -> bool:
        def fill(batch: Any) -> BatchChange:
            return put_sweep(batch, self._dead, self._next_space, limit, self._reading)

        with self._writing:
            self._check_open()
            if self._dead and self._failed is None and not self._held:
                with suppress(WriteFailed, OutcomeUnknown):  # the next write reports it
                    self._commit(fill, sync=False)
            return bool(self._dead) and self._failed is None

    def deleting(self) -> set[int]:
        """None ever: a deleted partition may be created anew at once, in another space."""
        self._check_open()
        return set()

    def free_inside_bytes(self) -> int:
        return 0  # its files are never written again

    def forbid_growth(self, keep_bytes: int) -> None:
        pass

    def maintain(self) -> None:
        """Sync what was written without a sync, beside commits, so that the watermark covers it;
        after a full disk go on, if there is room."""
        if self._no_room:
            self._reopen()
        with self._writing:
            self._check_open()
            if self._failed is not None or self._held:
                return
            self._publish(BatchChange(self._next_space))  # an old view keeps deleted files alive
            if self._mark.value >= self._group:
                return
            group, settle = self._group, self._logs.settle_beside()
        try:
            settle()
        except OSError as error:
            self._failed = f"a sync failed: {error}"
            self._vouch_no_more()
            return
        with self._writing:
            if self._db is not None and self._failed is None:
                self._mark.advance(group)

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
        entries: list[Entry] = []
        if limit < 1:
            return entries
        size = 0
        with self._reading(partition) as view:
            found = view.partition_row(partition)
            rows = view.falling if backwards else view.rising
            first, last = max(first, found.floor), min(last, found.last_entry)
            for key, term, check, payload in rows(found, first, last):
                if checksum(partition, key, term, payload) != check:
                    raise Corrupt(f"entry {key} fails its checksum", place=view.place)
                size += len(payload)
                if entries and size > max_bytes:
                    break
                entries.append(Entry(key, payload, term))
                if len(entries) == limit:
                    break
        return entries

    def tail(self, partition: int) -> Tail:
        with self._state:
            self._check_open()
            return self._partitions.get(partition, PartitionRow()).tail

    def term_at(self, partition: int, key: int) -> int | None:
        found = self.read(partition, first=key, last=key)
        return found[0].term if found else None

    def meta(self, partition: int, name: str) -> bytes | None:
        with self._reading(partition) as view:
            return view.body(space_key(view.partition_row(partition).space, META) + name.encode())

    def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        with self._reading(partition) as view:
            home = space_key(view.partition_row(partition).space, META)
            begin, skip = home + prefix.encode(), home + after.encode()
            row = view.seek(max(begin, skip))
            if after and row == skip:
                row = view.step()
            while row.startswith(begin) and len(found) < limit:
                found.append((row[SPACE_KEY_BYTES:].decode(), view.unseal()))
                row = view.step()
        return found

    def hard_state(self, partition: int) -> HardState | None:
        with self._reading(partition) as view:
            body = view.body(space_key(view.partition_row(partition).space, HARD_STATE))
        return unpack_hard_state(body) if body is not None else None

    @contextmanager
    def _reading(self, partition: int | None = None) -> Iterator[ReadView]:
        """The present view, for this caller alone. `close` waits until it is given back."""
        with self._state:
            self._check_open()
            view = self._view
            assert view is not None
            self._readers += 1
            view.readers += 1
        try:
            with view.lock:
                yield view
        except Corrupt as error:
            raise Corrupt(error.reason, place=error.place, partition=partition) from error
        finally:
            with self._state:
                self._readers -= 1
                view.readers -= 1
                if not view.readers and view is not self._view:
                    view.close()
                self._state.notify_all()

    def _check_open(self) -> None:
        if self._reopening:
            with self._state:
                self._state.wait_for(lambda: not self._reopening)
        if self._view is None:
            raise Closing(f"{self._directory} is not open")
