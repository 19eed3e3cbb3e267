"""SQLite on real files with a hook in front of every write and sync: to fail, hold or photograph.

Unlike the simulated disk it leaves the log on its usual path: page checksums, shared memory, and
readers with connections of their own.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import apsw

from fairway.storage.wals import sqlite_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    Step = Literal["write", "sync", "truncate", "delete"]

_NUMBERS = itertools.count(1)


class HookedVFS(apsw.VFS):
    """Calls `hook(step, path)` before each step; what it raises is what SQLite sees."""

    def __init__(self) -> None:
        self.name = f"hooked-{next(_NUMBERS)}"
        self.base = sqlite_shard.checksum_vfs()
        self.hook: Callable[[Step, str], None] = lambda step, path: None
        self.room: Callable[[str, int], None] = lambda path, end: None
        """Called before each write with where it ends."""
        super().__init__(self.name, self.base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        return HookedFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.hook("delete", filename)
        super().xDelete(filename, syncdir)


class HookedFile(apsw.VFSFile):
    def __init__(
        self, vfs: HookedVFS, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        self._vfs = vfs
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__(vfs.base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.hook("write", self._path)
        self._vfs.room(self._path, offset + len(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._vfs.hook("truncate", self._path)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._vfs.hook("sync", self._path)
        super().xSync(flags)


@contextmanager
def hooked_vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedVFS]:
    """Every SQLite log opened meanwhile goes through the hooks."""
    vfs = HookedVFS()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_shard, "checksum_vfs", lambda: vfs.name)
        yield vfs
    vfs.unregister()


def fail_sync(*_: object) -> None:
    raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)


def fail_full(*_: object) -> None:
    raise apsw.exception_for(apsw.SQLITE_FULL)
