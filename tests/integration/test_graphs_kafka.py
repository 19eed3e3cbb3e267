"""A graph over Kafka: what the broker does shows, and nothing is lost by it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import Producer

from fairway import Fairway, Graph, any_
from fairway.graphs.feeds.kafka import kafka
from fairway.graphs.health import ReactorState, SourceState
from tests.support.kafka_mock import CLIENT, mock_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 30.0


class Tick(msgspec.Struct, frozen=True):
    id: int


def graph_over(app: Fairway, servers: str, seen: list[int], **options: Any) -> Graph:
    ticks = app.source("ticks", Tick, feed=kafka("ticks", servers=servers, options=CLIENT))
    graph = app.graph("over", when=any_(ticks), inputs="sequential", **options)

    @graph.node
    def note(ticks: Tick) -> int:
        seen.append(ticks.id)
        return ticks.id

    return graph


def produce(servers: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for value in values:
        producer.produce("ticks", value)
    assert producer.flush(PATIENCE_S) == 0


async def until(graph: Graph, condition: Callable[[], bool]) -> None:
    """Wait for something that shows with a firing, or with a change of state."""
    moved = asyncio.Event()
    instance = graph.running
    before = instance.reactor.changed

    def changed() -> None:
        before()
        moved.set()

    instance.reactor.changed = changed
    instance.reactor.listeners.append(lambda firing: moved.set())
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            moved.clear()
            await moved.wait()


def test_a_broker_that_another_process_takes_down_degrades_the_graph(tmp_path: Path) -> None:
    """Upstream stays Live for ever; here Degraded is what the broker does, and back again."""
    seen: list[int] = []

    async def main() -> None:
        with mock_process({"ticks": 1}) as cluster:
            app = Fairway(tmp_path)
            graph = graph_over(app, cluster.bootstrap, seen, checkpoint=True)
            async with app:
                reactor = graph.running.reactor
                await until(graph, lambda: reactor.state is ReactorState.LIVE)
                produce(cluster.bootstrap, b'{"id":1}')
                await until(graph, lambda: seen == [1])
                cluster.down()  # over its control socket: the broker lives in that process
                await until(graph, lambda: reactor.state is ReactorState.DEGRADED)
                health = graph.running.healths["ticks"]
                assert health.state is SourceState.DISCONNECTED
                assert health.why
                # It fires with what it has, and says that it is old.
                firing = await graph.running.force()
                assert firing.degraded == ("ticks",)
                assert firing.inputs["ticks"] == Tick(1)
                cluster.up()
                await until(graph, lambda: reactor.state is ReactorState.LIVE)
                produce(cluster.bootstrap, b'{"id":2}')
                await until(graph, lambda: seen == [1, 1, 2])

    asyncio.run(main())


def test_poison_is_kept_aside_with_its_bytes_and_the_source_goes_on(tmp_path: Path) -> None:
    seen: list[int] = []

    async def main() -> None:
        with mock_process({"ticks": 1}) as cluster:
            app = Fairway(tmp_path)
            graph = graph_over(app, cluster.bootstrap, seen, checkpoint=True)
            produce(cluster.bootstrap, b'{"id":1}', b'{"id":"one"}', b"\xff", b'{"id":2}')
            async with app:
                await until(graph, lambda: seen == [1, 2])
                letters = graph.running.checkpoint.letters()
            assert [each.data for each in letters] == [
                {"ticks": b'{"id":"one"}'},
                {"ticks": b"\xff"},
            ]
            assert "Expected `int`, got `str`" in letters[0].reason
            again = Fairway(tmp_path)
            graph = graph_over(again, cluster.bootstrap, seen, checkpoint=True)
            produce(cluster.bootstrap, b'{"id":3}')
            async with again:
                await until(graph, lambda: seen == [1, 2, 3])
                assert len(graph.running.checkpoint.letters()) == 2, "they are kept once"

    asyncio.run(main())
