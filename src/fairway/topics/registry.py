"""Which topics there are: by name, by epoch, in order; and the configurations they share."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import msgspec

from fairway.errors import NotFound
from fairway.wire.topics import TopicConfig, TopicPatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.topics.topic import Topic


class Registry:
    """Every topic of one log. What is in here is in the catalog, or is being made."""

    def __init__(self, *, ephemeral_cap_bytes: int) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_epoch: dict[int, Topic] = {}
        self._ephemeral_cap_bytes = ephemeral_cap_bytes
        self._names: list[str] | None = None  # in order, if nothing changed since
        self._configs: dict[TopicConfig, TopicConfig] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self.by_name.values())

    def get(self, name: str) -> Topic:
        """The topic of that name, or `NotFound`."""
        topic = self.by_name.get(name)
        if topic is None:
            raise NotFound("topic", name)
        return topic

    def ordered(self, *, prefix: str = "", after: str = "", limit: int = 100) -> Iterator[Topic]:
        """Topics whose name begins with `prefix` and lies above `after`, in order."""
        if self._names is None:
            self._names = sorted(self.by_name)
        ordered = self._names
        at = bisect_left(ordered, max(prefix, after))
        if at < len(ordered) and ordered[at] == after:
            at += 1
        for name in ordered[at : at + limit]:
            if not name.startswith(prefix):
                return
            yield self.by_name[name]

    def add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_epoch[topic.epoch] = topic
        self._names = None

    def remove(self, topic: Topic) -> int:
        """Forget a topic; whoever still holds it notices by its epoch, which is returned."""
        del self.by_name[topic.name]
        del self.by_epoch[topic.epoch]
        self._names = None
        return topic.retire()

    # Configurations

    def window_ms(self, epoch: int) -> int:
        """How long idempotency keys of a topic count; not at all once it is deleted."""
        topic = self.by_epoch.get(epoch)
        return topic.config.idempotency_window_ms if topic is not None else 0

    def config(self, patch: TopicPatch | None, over: TopicConfig | None = None) -> TopicConfig:
        """What a topic is configured as after `patch`; `over` is what it was."""
        config = (patch or TopicPatch()).over(over or TopicConfig())
        if config.durability == "ephemeral" and not config.cap_bytes:
            config = msgspec.structs.replace(config, cap_bytes=self._ephemeral_cap_bytes)
        return config

    def shared(self, config: TopicConfig) -> TopicConfig:
        """Topics with the same configuration share one object."""
        return self._configs.setdefault(config, config)
