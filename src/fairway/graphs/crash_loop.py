"""Which firing ends the process at every start, and when to give it up. Pure.

A checkpointed graph fires again what it had accepted, so an event that crashes native code would
end every process that takes the graph over. After starts that came to nothing each firing is noted
in the journal before it begins, and before a predicate is asked about it. The note says how often
the process will have ended during that firing, if nothing follows it.
"""

from __future__ import annotations

from typing import Final

STARTS_MAX: Final = 2
"""After so many starts in a row that came to nothing, a crash loop is suspected."""
NOTED_FIRINGS: Final = 1024
"""So many firings are then noted, each by itself: what ends the process is among them, or later."""
CRASHES_MAX: Final = 5
"""A firing during which the process has ended so often is given up. As many as a job may have, by
default: a process may be killed for reasons of others."""


class CrashLoop:
    """What one life of a graph knows of the lives before it."""

    def __init__(self, *, starts: int, crashes: int) -> None:
        """`starts` in a row consumed nothing; the process ended `crashes` times in the next
        firing, as far as that was noted."""
        self.crashes = crashes
        self._left = NOTED_FIRINGS if starts >= STARTS_MAX or crashes else 0

    @property
    def suspected(self) -> bool:
        """Whether the next firing is noted before it begins."""
        return self._left > 0

    def begin(self) -> int | None:
        """A firing begins: what its note says. None if it is given up, and must not be tried."""
        self._left -= 1
        return self.crashes + 1 if self.crashes < CRASHES_MAX else None

    def forget(self) -> None:
        """The firing is over for good, or somebody wants to see it tried again."""
        self.crashes = 0
