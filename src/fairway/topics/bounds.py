"""What owners of topics may use: a port. Whoever knows the owners fills it; embedded, nobody does.

Each question is asked in the step that takes what it is about, so nothing is taken twice for one
answer. A refusal is `Throttled`, and has used nothing up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from fairway.topics.topic import Topic


class OwnerBounds(Protocol):
    """How much the topics of an owner may come to."""

    @property
    def stored(self) -> Container[str]:
        """Owners who may not store as much as they like: `may_store` is asked about theirs only."""
        ...

    def may_make(self, owner: str) -> None:
        """Asked before a topic is made, whichever way; raises if its owner has enough."""
        ...

    def may_store(self, topic: Topic, size: int) -> None:
        """Asked before so many bytes are appended; raises if there is no room for them."""
        ...

    def may_copy(self, owner: str, records: int, size: int) -> Callable[[], None] | None:
        """Asked before a router of an owner copies so much; raises if that has to wait. What it
        returns is called once the copies are queued."""
        ...


class _Unbounded:
    stored: Container[str] = ()

    def may_make(self, owner: str) -> None:
        return None

    def may_store(self, topic: Topic, size: int) -> None:
        return None

    def may_copy(self, owner: str, records: int, size: int) -> Callable[[], None] | None:
        return None


UNBOUNDED: Final[OwnerBounds] = _Unbounded()
