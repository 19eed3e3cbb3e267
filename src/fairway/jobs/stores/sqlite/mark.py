"""How far the file was ever synced: a count in it and a mark beside it, compared when it is opened.

SQLite drops everything behind a damaged frame of its -wal without a word. So every transaction of
ours counts itself in the file, and once one is synced its number goes to the mark. A file that ends
before its mark has lost jobs that were acknowledged, and is refused.

Several processes write one file, and each of them the mark. It only ever lags: a number is written
after the sync it speaks of, and read before the file it is compared with.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from fairway.errors import Corrupt
from fairway.storage.watermark import Watermark

if TYPE_CHECKING:
    from fairway.jobs.stores.sqlite.schema import Sql

logger = logging.getLogger("fairway.jobs")

NAME: Final = "commit"
"""Of a row in `sqlite_sequence`, which SQLite leaves to be used like any other table. Whoever adds
jobs writes that page anyhow; the page of a table of our own would be one more for each commit."""
COUNT: Final = f"UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = '{NAME}'"
"""Part of each transaction of ours, synced or not.

If the first commits of a -wal did not have it, damage behind them could show old pages of jobs, out
of the -wal, beside the newest count, out of the database.
"""


def counted(connection: Sql) -> int:
    """The number of the last transaction; 0 if somebody took the row away."""
    statement = f"SELECT seq FROM sqlite_sequence WHERE name = '{NAME}'"
    (number,) = connection.execute(statement).fetchone() or (0,)
    return int(number)


class CommitCount:
    """Counts the transactions of one connection, and asks for a number only if others wrote."""

    def __init__(self) -> None:
        self._number = 0
        self._version: int | None = None  # of the file, as our last commit left it

    def add(self, connection: apsw.Connection) -> int:
        """Count the transaction that is open, and holds the lock; its number."""
        connection.execute(COUNT)
        if connection.data_version() == self._version:
            return self._number + 1
        return counted(connection)

    def committed(self, connection: apsw.Connection, number: int) -> None:
        self._number, self._version = number, connection.data_version()


class Mark:
    """The mark as one writer has it."""

    def __init__(self, place: str) -> None:
        self._place = f"{place}-mark"
        self._watermark = Watermark(Path(self._place))
        self._shared = False
        self._lagging = False

    def advance(self, number: int) -> None:
        """Note that the transaction `number` is synced. Never raises for a storage failure.

        Whoever waits for the transaction has what they asked for: it is on the disk. A mark that
        cannot be written would only have noticed if it were lost later, and the next may do so.
        """
        try:
            if not self._shared:
                self._watermark.share()
                self._shared = True
            self._watermark.advance(number)
        except OSError as error:
            if not self._lagging:
                logger.warning(
                    "%s cannot be written: %s. Until it can, a loss of the jobs that are committed"
                    " from now on may not be noticed.",
                    self._place,
                    error,
                )
            self._lagging = True
        else:
            self._lagging = False

    def close(self) -> None:
        self._watermark.close()
        self._shared = False


class Witness:
    """What stood beside the file before anybody looked into it.

    The order is what makes it safe while others write: they commit first and mark then, and they
    make a -wal only for a file that has content.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._marked = Watermark(Path(f"{place}-mark")).peek()
        self.logged = os.path.exists(f"{place}-wal")
        self._content = self.logged and size_of(f"{place}-wal") > 0

    def refuse_missing(self) -> None:
        """Before SQLite would make a new file, and delete the -wal of the old one."""
        if (self._marked or self._content) and not size_of(self._place):
            self._refuse("the file is missing or empty")

    def refuse_shortened(self, connection: apsw.Connection, counting: bool) -> None:
        """`counting` if the file is of a format that counts; one that is not ends at zero."""
        if not self._marked:
            return
        number = 0
        if counting:
            try:
                number = counted(connection)
            except apsw.SQLError as error:  # no such table: in a file that says it has one
                raise Corrupt(str(error), place=self._place) from error
        if number < self._marked:
            self._refuse(f"the file ends at group {number}")

    def _refuse(self, found: str) -> None:
        synced = f", but group {self._marked} was synced" if self._marked else ""
        raise Corrupt(f"acknowledged jobs are gone: {found}{synced}", place=self._place)


def size_of(path: str) -> int:
    """Of a file, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:  # what cannot be looked at is SQLite's to complain of
        return 0
