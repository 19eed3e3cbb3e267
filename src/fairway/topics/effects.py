"""Topics as a destination of effects: an effect is a record, its target the name of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.errors import Invalid
from fairway.runtime.words import brief
from fairway.topics.operations import ProducerPosition
from fairway.topics.writing import NewBatch
from fairway.wire.encoding import encode_given
from fairway.wire.records import check_tag, parse_records
from fairway.wire.topics import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.kernel.effects import EffectPosition
    from fairway.topics.engine import Topics
    from fairway.wire.topics import TopicPatch

KIND: Final = "topic"

_encode = msgspec.json.Encoder().encode


class TopicDestination:
    """Appends what the effects of other parts hold. A topic that does not exist is made."""

    def __init__(self, topics: Topics, config_of: Callable[[str], TopicPatch | None]) -> None:
        """`config_of` a name is what the program declared for a topic of that name."""
        self._topics = topics
        self._config_of = config_of

    def encode(self, asked: Any) -> tuple[str, bytes]:
        """Of `(topic, value, tag)`; the topic is a handle, or a name."""
        try:
            topic, value, tag = asked
            name = topic if isinstance(topic, str) else topic.name
        except (ValueError, AttributeError):
            raise Invalid(
                f"a topic, a value and a tag are what a topic takes, not {brief(asked)}"
            ) from None
        check_name(name)
        check_tag(tag)
        data = encode_given(value, f"a record for topic {name!r}")
        return name, record_of(data, tag)

    async def known(self, target: str, producer: str) -> tuple[int, int] | None:
        found = self._topics.find(target)
        if found is None:
            return None
        return await self._topics.writing.written_position_of(found, producer)

    async def send(
        self, target: str, effects: Sequence[bytes], position: EffectPosition | None
    ) -> bool:
        new = NewBatch(
            records=parse_records(b"[%b]" % b",".join(effects)),
            # Whoever writes to topics owns the log, so nobody can come in between here.
            position=None if position is None else ProducerPosition(*position[:3]),
            wait_for_room=True,
        )
        await self._topics.append(target, new, config=self._config_of(target))
        return True


def record_of(data: bytes, tag: str | None) -> bytes:
    """A record as JSON, of a value that is encoded already."""
    return b'{"data":%b%b}' % (data, b"" if tag is None else b',"tag":' + _encode(tag))
