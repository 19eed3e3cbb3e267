"""What is not known of a topic after a write of unknown outcome.

Until the store was asked, nothing is numbered, evicted or counted: the end of the topic may lie
further on than its head, and a change that was made may not have been applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairway.topics.operations import Change


class Doubt(NamedTuple):
    """A change of unknown outcome: the snapshot it wrote says, and then it is applied."""

    snapshot: bytes
    seq: int
    """It comes after records below this seq."""
    change: Change


class Doubts:
    """The doubts about one topic, in the order of the log."""

    __slots__ = ("changes", "end")

    def __init__(self) -> None:
        self.end = False
        """Nobody knows where the topic ends: the store must be asked before the next write."""
        self.changes: tuple[Doubt, ...] = ()

    def __bool__(self) -> bool:
        return self.end or bool(self.changes)

    def raise_end(self) -> bool:
        """The end is not known any more; False if it was not before."""
        before, self.end = self.end, True
        return not before

    def raise_change(self, doubt: Doubt) -> None:
        """It is not known whether a change was made."""
        self.changes = (*self.changes, doubt)

    def made(self, stored: bytes | None) -> list[Doubt]:
        """Which changes were made, by the snapshot that the store has: each of these includes
        those before it."""
        found = list(self.changes)
        while found and found[-1].snapshot != stored:
            found.pop()
        return found

    def settle_changes(self) -> None:
        """Those that were made are certain to stay, and applied in this step."""
        self.changes = ()

    def settle_end(self) -> None:
        """Everything that the store has is shown."""
        self.end = False
