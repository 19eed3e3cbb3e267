"""The simulated disk as SQLite sees it: an apsw VFS that touches no real file.

    disk = SimulatedDisk(seed)
    vfs = SimulatedVFS(disk)
    db = apsw.Connection("shard.db", vfs=vfs.name)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    assert db.execute("PRAGMA journal_mode = WAL").get == "wal"

The VFS has no shared memory. SQLite runs in WAL mode without it only if the connection asks for
exclusive locking *before* it asks for WAL; the index of the write-ahead file is then kept on the
heap, and a second connection to the same file is refused as busy. A database in WAL mode that is
opened later needs `locking_mode = EXCLUSIVE` as its first statement too. The SQLite log backend
does both when it is given a VFS.

`PowerLoss` comes out of SQLite as itself or, if SQLite failed again while it cleaned up, as the
context of an `apsw.Error`; `disk.life()` takes both for what they are. A planned error arrives as
`apsw.IOError` with the extended code of its operation, a full disk or a short write as
`apsw.FullError`. SQLite draws salts from a random source of its own, so bytes in its files differ
between runs; the operations do not.
"""

from __future__ import annotations

import errno
import itertools
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import apsw

from fairway.testing.disk import PowerLoss
from fairway.testing.loop import WALL_START_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.runtime.clock import Clock
    from fairway.testing.disk import DiskFile, SimulatedDisk

_NUMBERS = itertools.count(1)
_JULIAN_1970_MS = 210_866_760_000_000  # the Julian day number of 1970-01-01, in milliseconds

_NO_LOCK = apsw.SQLITE_LOCK_NONE
_SHARED = apsw.SQLITE_LOCK_SHARED
_RESERVED = apsw.SQLITE_LOCK_RESERVED
_PENDING = apsw.SQLITE_LOCK_PENDING
_EXCLUSIVE = apsw.SQLITE_LOCK_EXCLUSIVE


class SimulatedVFS(apsw.VFS):
    """Registers the disk with SQLite under `name`.

    It belongs to one life of the disk: after `disk.restart()` make another, as a new process
    would. Connections of the old one can then do no harm, however late they are closed.
    """

    def __init__(
        self, disk: SimulatedDisk, name: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self.disk = disk
        self.name = name or f"fairway-disk-{next(_NUMBERS)}"
        self._clock = clock
        self._generation = disk.generation
        self._temporary = itertools.count(1)
        self._locks: dict[str, dict[SimulatedFile, int]] = {}
        self._orphans: list[apsw.Connection] = []
        disk.attach(self)
        super().__init__(self.name)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        if name is None:
            path = f"temporary-{self._generation}-{next(self._temporary)}"
        else:
            path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        with self._errors(apsw.SQLITE_CANTOPEN):
            self.disk._require_power(self._generation)
            file = self.disk.open(path, create=bool(flags[0] & apsw.SQLITE_OPEN_CREATE))
        temporary = bool(flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE)
        return SimulatedFile(self, file, self._locks.setdefault(path, {}), temporary)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._errors(apsw.SQLITE_IOERR_DELETE):
            self.disk._require_power(self._generation)
            self.disk.delete(filename, sync=syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:
        with self._errors(apsw.SQLITE_IOERR_ACCESS):
            self.disk._require_power(self._generation)
            return self.disk.exists(pathname)

    def xFullPathname(self, name: str) -> str:
        return name

    def xRandomness(self, numbytes: int) -> bytes:
        return bytes(numbytes)

    def xSleep(self, microseconds: int) -> int:
        return microseconds  # nobody else can make progress meanwhile

    def xCurrentTimeInt64(self) -> int:
        wall_ns = WALL_START_NS if self._clock is None else self._clock.wall_ns()
        return _JULIAN_1970_MS + wall_ns // 1_000_000

    def xCurrentTime(self) -> float:
        return self.xCurrentTimeInt64() / 86_400_000

    def xGetLastError(self) -> tuple[int, str | None]:
        return 0, None

    def power_lost(self) -> None:
        """Keep the dead program's connections, so that nobody else closes them."""
        # The collector would, and would write each error that follows to standard error.
        self._orphans = [db for db in apsw.connections() if db.open_vfs == self.name]

    def restarting(self) -> None:
        """Close them while nothing they still try can reach the disk."""
        while self._orphans:
            with suppress(PowerLoss, apsw.Error):
                self._orphans.pop().close(True)

    @contextmanager
    def _errors(self, code: int) -> Iterator[None]:
        """Turn the disk's errors into SQLite's; `code` is the one for this operation."""
        try:
            yield
        except FileNotFoundError as error:
            missing = code == apsw.SQLITE_IOERR_DELETE
            raise _sqlite_error(apsw.SQLITE_IOERR_DELETE_NOENT if missing else code) from error
        except OSError as error:
            full = error.errno == errno.ENOSPC
            raise _sqlite_error(apsw.SQLITE_FULL if full else code) from error


class SimulatedFile:
    """A file of the simulated disk in the shape apsw wants."""

    def __init__(
        self,
        vfs: SimulatedVFS,
        file: DiskFile,
        locks: dict[SimulatedFile, int],
        temporary: bool,
    ) -> None:
        self._vfs = vfs
        self._file = file
        self._locks = locks
        self._temporary = temporary

    def xRead(self, amount: int, offset: int) -> bytes:
        with self._vfs._errors(apsw.SQLITE_IOERR_READ):
            return self._file.read(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._vfs._errors(apsw.SQLITE_IOERR_WRITE):
            if self._file.write(data, offset) < len(data):
                raise OSError(errno.ENOSPC, "the write was short")

    def xTruncate(self, newsize: int) -> None:
        with self._vfs._errors(apsw.SQLITE_IOERR_TRUNCATE):
            self._file.truncate(newsize)

    def xSync(self, flags: int) -> None:
        with self._vfs._errors(apsw.SQLITE_IOERR_FSYNC):
            self._file.sync()

    def xFileSize(self) -> int:
        with self._vfs._errors(apsw.SQLITE_IOERR_FSTAT):
            return self._file.size()

    def xClose(self) -> None:
        self._locks.pop(self, None)
        disk = self._vfs.disk
        if self._temporary and disk.powered and disk.generation == self._vfs._generation:
            disk.delete(self._file.name)

    def xLock(self, level: int) -> None:
        others = max((held for file, held in self._locks.items() if file is not self), default=0)
        if (
            (level == _SHARED and others >= _PENDING)
            or (level == _RESERVED and others >= _RESERVED)
            or (level == _EXCLUSIVE and others >= _SHARED)
        ):
            raise _sqlite_error(apsw.SQLITE_BUSY)
        self._locks[self] = max(level, self._locks.get(self, _NO_LOCK))

    def xUnlock(self, level: int) -> None:
        self._locks[self] = level

    def xCheckReservedLock(self) -> bool:
        return any(held >= _RESERVED for held in self._locks.values())

    def xSectorSize(self) -> int:
        return 512

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE  # a write never hurts the bytes beside it

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False


def _sqlite_error(code: int) -> Exception:
    error: Exception = apsw.exception_for(code)
    return error
