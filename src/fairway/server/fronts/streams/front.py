"""What Durable Streams show in the server: an application of their own, by their own protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.server.front import Front
from fairway.server.fronts.streams.app import StreamsApp
from fairway.server.fronts.streams.protocol import PREFIX
from fairway.server.fronts.topics.quotas import TopicQuotas
from fairway.streams.engine import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.app import Fairway
    from fairway.errors import FairwayError
    from fairway.server.access.auth import Identity
    from fairway.server.context import OpenStream, ServerContext
    from fairway.server.front import Shown
    from fairway.server.fronts.streams.live import StreamsFrontConfig
    from fairway.server.http.asgi import Application
    from fairway.server.http.exchange import Request


class StreamMeter:
    """Counts what streams make a key use up: they are topics, and each reader is an open stream."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._quotas = context.state(TopicQuotas)

    def charge(self, identity: Identity, topic: str, *, records: int, size: int) -> None:
        self._quotas.charge(identity, topic, records=records, size=size)

    def connect(self, identity: Identity, end: Callable[[FairwayError], None]) -> OpenStream:
        return self._context.connect(identity, end)

    def disconnect(self, open_stream: OpenStream) -> None:
        self._context.disconnect(open_stream)


class StreamsFront(Front):
    name = "streams"
    mount = PREFIX
    description = (
        f"Durable Streams are served under {PREFIX}, by a protocol with a document of its own:"
        " https://github.com/durable-streams/durable-streams"
    )

    def __init__(self, config: StreamsFrontConfig | None = None) -> None:
        self._config = config

    def parts(self, app: Fairway) -> Sequence[Shown]:
        return (app.streams,)

    def lasts(self, request: Request) -> bool:
        """Whether an EventSource asks this, with a ticket."""
        # Looked into only with a ticket: the protocol takes queries that are refused elsewhere.
        asked = request.method == "GET" and b"ticket=" in request.scope["query_string"]
        return asked and request.parameters.get("live") == "sse"

    def application(self, context: ServerContext) -> Application:
        return StreamsApp(
            context.part(Streams),
            config=self._config,
            meter=StreamMeter(context),
            pages=context.pages,
        )

    def stop_admitting(self, context: ServerContext) -> None:
        context.part(Streams).stop_admitting()
