"""Effects: what one part asks of another, durably and once.

An effect is (kind, target, data): which destination takes it, what there (a topic, say), and bytes
that only the destination understands. A part that can be asked for something fills `Destination`
and offers it to the kernel under a kind; whoever has effects looks the kind up and knows nothing
else of the part.

Effects go out under a *producer position* that rises from one to the next. The destination keeps
the last one of each producer, so an effect that is sent again after a crash, however late, changes
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class EffectPosition(NamedTuple):
    """Whose effect it is, and which."""

    producer: str
    epoch: int
    number: int
    first: int
    """The number of the first effect that goes out under it."""


class Destination(Protocol):
    """Takes effects of one kind."""

    def encode(self, asked: Any) -> tuple[str, bytes]:
        """The target and the data of what was asked for. Raises `Invalid` if it can go nowhere."""
        ...

    async def known(self, target: str, producer: str) -> tuple[int, int] | None:
        """The (epoch, number) that a target has of a producer."""
        ...

    async def send(
        self, target: str, effects: Sequence[bytes], position: EffectPosition | None
    ) -> bool:
        """All of them, durably; none, and False, unless the first is above the known position.

        The position may have moved since it was asked for: an earlier holder of the producer, or an
        earlier try, may come to its end only now.
        """
        ...
