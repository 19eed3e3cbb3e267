"""Whether the log may still be answered from: for a store that is owned for a time only.

A file is locked for as long as its owner lives, so there is nothing to ask. A lease in a database
may have ended while this process was stopped, suspended or cut off, and somebody else may have
written since. So whatever is answered from the log is checked twice: when it was read, and when it
goes to the socket. Each time it is one look at a clock and one comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.errors import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.core.lease import Tenure


class Ownership:
    """A `Tenure` and the clock it is compared with."""

    __slots__ = ("_now_ns", "_tenure", "_where", "lost")

    def __init__(self, tenure: Tenure, now_ns: Callable[[], int], where: str) -> None:
        self._tenure = tenure
        self._now_ns = now_ns
        self._where = where
        self.lost: Fenced | None = None
        """Why it is over for good; None while it may be ours again."""

    @property
    def overdue(self) -> bool:
        """Whether another process may own the log by now: nothing may be answered from it."""
        return self._now_ns() >= self._tenure.until_ns

    def check(self) -> None:
        """Raises `Fenced` once another process may own the log."""
        if self._now_ns() >= self._tenure.until_ns:
            raise self.refusal()

    def refusal(self) -> Fenced:
        """The answer to anybody who asks while it is overdue."""
        if self.lost is not None:
            return self.lost.again()
        return Fenced(
            f"{self._where}: the lease was not renewed in time, so another process may own the log;"
            " nothing is answered until it is renewed"
        )
