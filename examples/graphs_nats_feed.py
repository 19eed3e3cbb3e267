"""A feed of one's own: a stream of NATS JetStream as a source of a graph.

Run it against a server (`nats-server --jetstream`, `pip install nats-py`):

    python graphs_nats_feed.py nats://127.0.0.1:4222
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from fairway.errors import FeedLost
from fairway.graphs.feed import Event, FeedContext
from fairway.graphs.source import Source


# --8<-- [start:feed]
class Nats:
    """What to read: the messages of `subject` that JetStream keeps in `stream`."""

    kind = "nats"

    def __init__(self, stream: str, subject: str, *, server: str) -> None:
        self.stream = stream
        self.subject = subject
        self.server = server

    def open(self, context: FeedContext) -> "NatsConnection":
        return NatsConnection(self)


class NatsConnection:
    """Reads in order, from where the marks say. The server remembers nothing of us."""

    def __init__(self, feed: Nats) -> None:
        self._feed = feed
        self._client: Any = None
        self._messages: Any = None

    async def connect(self, marks: dict[str, int]) -> None:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        try:
            # It does not mend itself: the source connects again, and from the marks.
            async with asyncio.timeout(10):
                self._client = await nats.connect(self._feed.server, allow_reconnect=False)
            self._messages = await self._client.jetstream().pull_subscribe(
                self._feed.subject,
                stream=self._feed.stream,
                config=ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=marks.get(self._feed.stream, 0) + 1,
                    ack_policy=AckPolicy.NONE,
                ),
            )
        except (OSError, nats.errors.Error) as error:
            raise FeedLost(f"{self._feed.server}: {error!r}") from error

    async def receive(self) -> Sequence[Event]:
        import nats

        while True:
            try:
                messages = await self._messages.fetch(500, timeout=1)
            except nats.errors.TimeoutError:  # nothing came; and a lost connection is as quiet
                if self._client.is_closed:
                    raise FeedLost(f"{self._feed.server}: the connection is lost") from None
                continue
            except nats.errors.Error as error:
                raise FeedLost(f"{self._feed.server}: {error!r}") from error
            stream = self._feed.stream
            return [Event(each.data, stream, each.metadata.sequence.stream) for each in messages]

    async def commit(self, marks: dict[str, int]) -> None:
        """The stream keeps its messages by its own limits: there is nothing to tell."""

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()


# --8<-- [end:feed]


class Quote(msgspec.Struct):
    symbol: str
    price: float


# --8<-- [start:source]
def quotes(server: str) -> Source[Quote]:
    return Source("quotes", Quote, feed=Nats("market", "market.quotes", server=server))


# --8<-- [end:source]


async def main(server: str) -> None:
    """Publish two quotes, read the first, and go on after it as a restart would."""
    import nats

    client = await nats.connect(server)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="market", subjects=["market.>"])
    last = 0
    for price in (1.5, 2.5):
        quote = msgspec.json.encode(Quote("ABC", price))
        last = (await jetstream.publish("market.quotes", quote)).seq
    await client.close()

    source = quotes(server)
    context = FeedContext("prices", source.name, "", print_report, asyncio.to_thread)
    for already in (last - 2, last - 1):
        assert source.feed is not None
        connection = source.feed.open(context)
        await connection.connect({"market": already})
        event = (await connection.receive())[0]
        print(event.offset, source.event_schema.of_json(event.data))
        await connection.aclose()


def print_report(connected: bool, why: str = "") -> None:
    print("connected" if connected else f"lost: {why}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        print(quotes("nats://127.0.0.1:4222"), "needs a server: give its address")
