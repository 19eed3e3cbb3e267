"""A queue for the threads and processes that want to write one file.

SQLite's own lock has no queue: a writer that asks again at once has it again, and those that ask
every few milliseconds wait for seconds. So a writer takes a second lock first, the turn, and gives
it up once SQLite has let it in. While one waits for SQLite and holds the turn, the one that has
just written cannot ask again.
"""

from __future__ import annotations

import fcntl
import os
import threading
from typing import TYPE_CHECKING

from fairway.errors import Unavailable
from fairway.jobs.stores.sqlite.connections import BUSY_MS

if TYPE_CHECKING:
    import apsw


class WriterQueue:
    """The queue as one thread sees it. The turn is a lock on a file of its own, `jobs.db-turn`.

    Not on the jobs' file: closing any descriptor of that one would end SQLite's locks on it.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._file: int | None = None
        self._pause = threading.Event()  # never set: waiting for it is how a thread lets time pass

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def begin(self, connection: apsw.Connection) -> None:
        """Begin a transaction that writes, when it is our turn."""
        if self._file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            try:
                self._file = os.open(f"{self._place}-turn", flags, 0o644)
            except OSError as error:
                raise Unavailable(f"{self._place} cannot be written: {error}") from error
        self._take(self._file)
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take(self, file: int) -> None:
        # Asked for again and again rather than waited for: its holder may be stopped, and a file
        # that cannot be written is an error to report.
        for _ in range(BUSY_MS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._pause.wait(0.001)
            else:
                return
        raise Unavailable(f"{self._place} is held by somebody else: others wait to write it")
