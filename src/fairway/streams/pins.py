"""Forks hold on to their source: which fork needs what of which stream, durably.

A pin is stored with the source, by the epoch of the fork's topic. It is written before the fork is
and removed after it: whatever a crash leaves of that is a pin without a fork, and found as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.streams.stored import META, PIN, Pin, encode_pin

if TYPE_CHECKING:
    from fairway.streams.port import BackingTopic, BackingTopics
    from fairway.streams.stream import Stream


class ForkPins:
    """What every fork that is known holds on to."""

    def __init__(self, topics: BackingTopics) -> None:
        self._topics = topics
        self._sources: dict[int, Stream] = {}
        """By the epoch of the fork's topic."""

    def found(self, source: Stream) -> None:
        """A stream was loaded, with its pins."""
        self._sources.update(dict.fromkeys(source.pins, source))

    async def pin(self, source: Stream, fork: BackingTopic, floor: int) -> None:
        """Have `source` keep what it holds from seq `floor` on, for a fork in that topic."""
        pin = Pin(fork.name, floor)
        source.pins[fork.epoch] = pin
        self._sources[fork.epoch] = source
        await source.topic.pin(source.pinned, {f"{PIN}{fork.epoch}": encode_pin(pin)})

    async def unpin(self, source: Stream, epoch: int) -> None:
        """The fork of that epoch needs nothing any more."""
        source.pins.pop(epoch, None)
        self._sources.pop(epoch, None)
        await source.topic.pin(source.pinned, {f"{PIN}{epoch}": None})

    async def loose(self, source: Stream) -> list[int]:
        """The epochs of forks that were never finished, or are gone."""
        return [
            epoch
            for epoch, pin in list(source.pins.items())
            if not await self._is_fork(pin.topic, epoch)
        ]

    async def _is_fork(self, name: str, epoch: int) -> bool:
        topic = self._topics.find(name)
        if topic is None or topic.epoch != epoch:
            return False
        return META in await topic.meta(META)

    def gone(self, epoch: int) -> Stream | None:
        """A topic is gone: the stream that is to be let go of, if that was a fork.

        A fork that nobody has asked for since the start is no stream in memory, but known here.
        """
        return self._sources.pop(epoch, None)
