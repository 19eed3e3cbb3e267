"""`ServerTopics`: how topic handles of an app reach the topics of a running server.

It fills the port `fairway.topics.handle.RemoteTopics` for a process that works on jobs only.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.client.records import Position
from fairway.errors import BadRecord, Forbidden, NotFound
from fairway.wire.topics import TopicPatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from fairway.client.aio.client import AsyncClient
    from fairway.client.aio.topics import AsyncWatch
    from fairway.client.following import Item
    from fairway.client.records import Page
    from fairway.wire.topics import AppendReply, DeleteRequest, DiffRequest


class ServerTopics:
    """The topics of a running server, as topic handles of an app use them.

    A topic that is not there is made by its first use, as in the server's own process. Configuring
    one takes a key with more rights than using it does, so what was declared is sent only then.
    Whoever may not make it is told that it is not there.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def append(
        self, name: str, values: Sequence[Any], *, config: TopicPatch, **options: Any
    ) -> AppendReply:
        if options["key"] is None:
            del options["key"]  # then the client makes one, so that it can repeat itself
        append = partial(self._client.topic(name).append, *values, **options)
        try:
            # With nothing declared the defaults will do, and to write is enough to make it so.
            return await append(create=None if config == TopicPatch() else False)
        except NotFound as missing:
            try:
                return await append(config=config)
            except Forbidden as refusal:
                raise missing from refusal

    async def read(
        self, name: str, type: Any, asked: DiffRequest, *, config: TopicPatch
    ) -> Page[Any]:
        diff = partial(
            self._client.topic(name, type).diff,
            _start(asked),
            limit=asked.limit,
            node=asked.node,
            match=asked.match,
            wait_ms=asked.wait_ms,
        )
        try:
            return await diff()
        except NotFound as missing:
            await self._make(name, config, missing)
            return await diff()

    async def watch(
        self, name: str, type: Any, asked: DiffRequest, *, config: TopicPatch, touch: bool = True
    ) -> AsyncGenerator[Item[Any] | BadRecord, None]:
        watch = self._watch(name, type, asked, touch)
        try:
            await watch.open()
        except NotFound as missing:
            await self._make(name, config, missing)
        while True:
            try:
                async with aclosing(watch.items()) as items:
                    async for item in items:
                        yield item
                return
            except BadRecord as bad:
                unreadable = bad
            yield unreadable  # and on behind it

    def _watch(self, name: str, type: Any, asked: DiffRequest, touch: bool) -> AsyncWatch[Any]:
        start, match = _start(asked), asked.match
        assert not isinstance(asked.node, list), "a handle takes one name"
        if isinstance(match, tuple) and match[1] == "Eq" and match[2].endswith("*"):
            # The URL of a topic's watch cannot ask for such a tag, only the body of a session can.
            return self._client.watch(
                {name: start}, type=type, node=asked.node, match=match, touch=touch
            )
        return self._client.topic(name, type).watch(
            start, node=asked.node, match=match, touch=touch
        )

    async def delete(self, name: str, asked: DeleteRequest) -> int:
        delete = self._client.topic(name).delete_records
        reply = await delete(before_seq=asked.before_seq, match=asked.match, seq=asked.seq)
        return reply.deleted

    async def _make(self, name: str, config: TopicPatch, missing: NotFound) -> None:
        try:
            await self._client.topic(name).put(**msgspec.to_builtins(config))
        except Forbidden as refusal:
            raise missing from refusal


def _start(asked: DiffRequest) -> int | Position:
    return asked.from_seq if asked.epoch is None else Position(asked.epoch, asked.from_seq)
