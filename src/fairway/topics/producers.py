"""How far the producers of a topic are: those that appended, or were asked for, in this life.

Every position is in the log, in the same operation as its records. Memory only spares the look-up:
of a producer that is not in here the store knows how far it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairway.topics.operations import ProducerPosition


class Producers:
    """The (epoch, number) of each producer whose last append was made, or begun."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[str, tuple[int, int]] = {}

    def at(self, producer: str) -> tuple[int, int] | None:
        return self._at.get(producer)

    def passed(self, position: ProducerPosition) -> bool:
        """Whether its append was made, or begun, before: a position never goes back."""
        known = self._at.get(position.producer)
        return known is not None and (position.epoch, position.number) <= known

    def begin(self, position: ProducerPosition) -> None:
        """An append of a producer is queued: the same one again is none."""
        self._at[position.producer] = (position.epoch, position.number)

    def apply(self, position: ProducerPosition) -> None:
        """An operation wrote a position, or it was found in the store. What was queued meanwhile,
        or applied before, is further."""
        if not self.passed(position):
            self.begin(position)

    def forget(self, producer: str) -> None:
        """A write failed: how far its producer is, only the store knows now."""
        self._at.pop(producer, None)
