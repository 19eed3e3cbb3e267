"""Whose turn it is to write, among the threads and processes that share one file.

SQLite's own lock has no queue: who asks again at once has it again, and those who ask every few
milliseconds wait for seconds. So whoever wants to write takes the turn first, and gives it up once
SQLite has let him in. While somebody waits with the turn in his hand, who has just written cannot
ask again.
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


class Turn:
    """The turn as one thread sees it, in a file of its own beside the jobs.

    Not in the jobs' file: closing any descriptor of that one would end SQLite's locks on it.
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
        # Asked for again and again rather than waited for: whoever has it may be stopped, and a
        # file that cannot be written is to be told of.
        for _ in range(BUSY_MS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._pause.wait(0.001)
            else:
                return
        raise Unavailable(f"{self._place} is held by somebody else: others wait to write it")
