"""The client against real servers: every call, restarts, storms, slow readers and lost answers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from fairway import errors
from fairway.app import Fairway
from fairway.client import AsyncClient, Client, NewRecord, Position, RetryConfig, following
from fairway.core.lanes import LaneLimits
from fairway.errors import BadRecord
from fairway.storage.writer import WriterConfig
from tests.support.server import ServerProcess, free_port, run, server_process, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from fairway.client import Record, Tombstone

WAIT_S = 60.0


class Order(msgspec.Struct, frozen=True):
    id: int
    symbol: str = "FWY"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("served")) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{server.port}") as made:
        yield made


def seqs(records: list[Record[Any]]) -> list[int]:
    return [record.seq for record in records]


# --- every call


def test_records_come_back_as_they_went(client: Client) -> None:
    orders = client.topic("typed", Order)
    first = orders.append(Order(1), tag="eu", node="n1", meta={"by": "me"})
    assert (first.created, first.deduped, first.first_seq, first.count) == (True, False, 1, 1)
    second = orders.append(Order(2), NewRecord(Order(3), tag="us", node="n2"))
    assert (second.first_seq, second.last_seq, second.created) == (2, 3, False)
    page = orders.diff()
    assert [(one.seq, one.data, one.tag, one.node, one.meta) for one in page.records] == [
        (1, Order(1), "eu", "n1", {"by": "me"}),
        (2, Order(2), None, None, None),
        (3, Order(3), "us", "n2", None),
    ]
    assert {(one.topic, one.epoch) for one in page.records} == {("typed", first.epoch)}
    assert page.caught_up
    assert page.position == Position(first.epoch, 3)
    assert seqs(orders.diff(match="e*").records) == [1]
    assert seqs(orders.diff(match="us").records) == [3]
    assert seqs(orders.diff(node=["n1", "n2"]).records) == [2]
    assert seqs(list(orders.read(1, page_size=1))) == [2, 3]


def test_records_that_do_not_fit_are_told_and_the_others_are_read(client: Client) -> None:
    client.topic("mixed").append(1, "two", 3, {"id": 4}, 5)
    numbers = client.topic("mixed", int)
    page = numbers.diff()
    assert [record.data for record in page.records] == [1, 3, 5]
    assert [(one.topic, one.seq, one.data) for one in page.bad] == [
        ("mixed", 2, b'"two"'),
        ("mixed", 4, b'{"id":4}'),
    ]
    assert page.next_from_seq == 5
    told: list[BadRecord] = []
    assert [one.data for one in numbers.read(on_bad_record=told.append)] == [1, 3, 5]
    assert [one.seq for one in told] == [2, 4]
    reading = numbers.read(page_size=2)
    assert next(reading).data == 1
    with pytest.raises(BadRecord, match="mixed 2: Expected `int`"):
        next(reading)
    told.clear()
    with numbers.watch(on_bad_record=told.append) as watch:
        following = iter(watch)
        assert [next(following).data for _ in range(3)] == [1, 3, 5]
    assert [one.seq for one in told] == [2, 4]


def test_a_long_poll_is_answered_by_an_append(client: Client) -> None:
    topic = client.topic("polled")
    topic.put()
    appending = threading.Thread(target=topic.append, args=("news",))
    appending.start()
    page = topic.diff(wait_ms=30_000)
    appending.join()
    assert [one.data for one in page.records] == ["news"]


def test_a_key_makes_a_repeat_change_nothing(client: Client) -> None:
    topic = client.topic("keyed")
    first = topic.append(1, key="k")
    again = topic.append(1, key="k")
    assert (again.deduped, again.first_seq) == (True, first.first_seq)
    assert not topic.append(1).deduped
    assert not topic.append(1, key=None).deduped
    assert topic.state().count == 3


def test_bulk_is_in_order_and_goes_on_where_it_failed(client: Client) -> None:
    topic = client.topic("bulk", int)
    seen: list[int] = []
    done = topic.append_many(
        range(2500), key="run", on_progress=lambda progress: seen.append(progress.records)
    )
    assert seen == [1000, 2000, 2500]
    assert (done.records, done.batches, done.first_seq, done.last_seq) == (2500, 3, 1, 2500)
    again = topic.append_many(range(1000, 3000), key="run", start=1000)
    assert (again.records, again.deduped) == (2000, 1500), "what was there is not there twice"
    assert [one.data for one in topic.read(0, page_size=999)] == [*range(3000)]


def test_topics_are_configured_listed_and_deleted(client: Client) -> None:
    topic = client.topic("life.a")
    assert topic.put(ttl_ms=60_000, durability="disk").created
    assert not topic.put(cap_records=5).created
    config = topic.state().config
    assert (config.ttl_ms, config.cap_records, config.durability) == (60_000, 5, "disk")
    client.topic("life.b").append(1, create=True, config={"durability": "memory"})
    found = list(client.topics("life.", page_size=1))
    assert [(one.topic, one.durability) for one in found] == [
        ("life.a", "disk"),
        ("life.b", "memory"),
    ]
    assert topic.delete().deleted
    assert not topic.delete().deleted
    with pytest.raises(errors.NotFound) as missing:
        topic.state()
    assert (missing.value.kind, missing.value.name) == ("topic", "life.a")
    with pytest.raises(errors.NotFound):
        topic.append(1, create=False)


def test_records_are_deleted_by_seq_and_by_tag(client: Client) -> None:
    topic = client.topic("trimmed")
    topic.append(*(NewRecord(at, tag=f"t{at % 2}") for at in range(10)))
    assert topic.delete_records(before_seq=5).deleted == 4
    assert topic.delete_records(match="t0").deleted == 3
    assert seqs(list(topic.read())) == [6, 8, 10]
    with pytest.raises(errors.InvalidRequest):
        topic.delete_records()


def test_routers(client: Client) -> None:
    client.topic("r.in").put()
    assert client.put_router("r.in->r.out", "r.in", "r.out", filter="eu.*").created
    assert not client.put_router("r.in->r.out", "r.in", "r.out", filter="eu.*").created
    client.topic("r.in").append(NewRecord(1, tag="eu.x"), NewRecord(2, tag="us.x"))
    with client.topic("r.out").watch() as watch:
        assert next(iter(watch)).data == 1
    state = client.router("r.in->r.out")
    assert (state.source, state.dest) == ("r.in", "r.out")
    assert [one.router for one in client.routers("r.", source="r.in")] == ["r.in->r.out"]
    with pytest.raises(errors.Conflict) as cycle:
        client.put_router("back", "r.out", "r.in")
    assert cycle.value.code == "router_cycle"
    assert cycle.value.detail["cycle"]
    assert client.delete_router("r.in->r.out").deleted
    with pytest.raises(errors.NotFound) as missing:
        client.router("r.in->r.out")
    assert missing.value.kind == "router"


def test_refusals_are_what_the_embedded_engine_would_raise(client: Client) -> None:
    full = client.topic("full")
    full.put(cap_records=2, discard="reject")
    full.append(1, 2)
    with pytest.raises(errors.TopicFull):
        full.append(3)
    with pytest.raises(errors.InvalidRequest) as large:
        full.append("x" * (1024 * 1024 + 1))
    assert large.value.code == "record_too_large"
    with pytest.raises(errors.InvalidRequest):
        client.topic("no/such").append(1)


def test_readiness_and_tickets(client: Client) -> None:
    ready = client.ready()
    assert (ready.ready, ready.writable) == (True, True)
    client.topic("ticketed").append("in")
    ticket = client.ticket("/v0/topics/ticketed/watch")
    path = f"{client.url}/v0/topics/ticketed/watch?ticket={ticket.ticket}"
    with httpx.stream("GET", path, trust_env=False) as response:
        assert response.status_code == 200
    assert httpx.get(path, trust_env=False).status_code == 401, "a ticket is good once"


def test_nobody_there_is_told_at_once_or_waited_for() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url) as client, pytest.raises(errors.Unreachable, match="nothing answers"):
        client.ready()
    hasty = RetryConfig(wait_for_server=False)
    with Client(url, retry=hasty) as client:
        with pytest.raises(errors.Unreachable):
            client.topic("t").state()
        with pytest.raises(errors.Unreachable), client.topic("t").watch():
            pass


def test_a_server_that_is_late_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port)
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.topic("early").append(1).first_seq == 1
    finally:
        server.close()


def test_keys_and_what_they_may_do(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[key]]\nname = "reader"\nsecret = "r-secret"\nscopes = ["read"]\n'
        '[[key]]\nname = "all"\nsecret = "a-secret"\nscopes = ["admin"]\n'
    )
    with server_process(tmp_path / "data", "--keys", str(keys)) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Client(url) as nobody, pytest.raises(errors.Unauthorized):
            nobody.topic("t").append(1)
        with Client(url, "a-secret") as owner:
            owner.topic("t").append(1)
        with Client(url, "r-secret") as reader:
            assert reader.topic("t").diff().records[0].data == 1
            with pytest.raises(errors.Forbidden) as refused:
                reader.topic("t").append(2)
            assert refused.value.detail == {"scope": "write"}


# --- watching


def test_a_watch_reads_what_is_there_and_what_comes(client: Client) -> None:
    topic = client.topic("watched", int)
    topic.append(1, 2)
    found = []
    for record in topic.watch():
        found.append(record.data)
        if len(found) == 2:
            topic.append(3)
        if len(found) == 3:
            topic.delete()
    assert found == [1, 2, 3], "and the deletion ended it"


def test_a_tail_is_what_comes_after_it_was_opened(client: Client) -> None:
    topic = client.topic("tailed", int)
    topic.append(1, 2)
    with topic.watch(tail=True) as watch:
        topic.append(3)
        assert next(iter(watch)).data == 3
    assert watch.positions == {"tailed": Position(topic.state().epoch, 3)}
    topic.append(4)
    assert next(iter(topic.watch(watch.positions["tailed"]))).data == 4


def test_what_a_watch_leaves_out(client: Client) -> None:
    topic = client.topic("chosen", int)
    topic.append(1, tag="eu.x", node="me")
    topic.append(2, tag="eu.y", node="you")
    topic.append(3, tag="us.x", node="you")
    assert next(iter(topic.watch(node="me", match="eu.*"))).data == 2
    assert next(iter(topic.watch(match="us.x"))).data == 3


def test_losses_are_told_in_their_place(client: Client) -> None:
    topic = client.topic("capped", int)
    topic.put(cap_records=10)
    topic.append(*range(1, 101))
    told: list[Tombstone] = []
    found = []
    for record in topic.watch(on_tombstone=told.append):
        found.append(record.seq)
        if len(found) == 1:
            first = [*told]
        if len(found) == 10:
            break
    assert found == [*range(91, 101)]
    assert first == told, "before the record that follows it"
    assert [(one.topic, one.gap_from, one.gap_to, one.reason) for one in told] == [
        ("capped", 1, 90, "cap")
    ]
    read: list[Tombstone] = []
    assert seqs(list(topic.read(on_tombstone=read.append))) == found
    assert [(one.gap_from, one.gap_to) for one in read] == [(1, 90)]


def test_several_topics_and_those_to_come(client: Client) -> None:
    a, b = client.topic("many.a", int), client.topic("many.b", int)
    a.append(1, 2, 3)
    b.append(1, 2)
    with client.watch({"many.a": 1}, prefix="many.*", type=int) as watch:
        b.append(3)
        client.topic("many.c").append(7)
        found = {}
        for record in watch:
            found.setdefault(record.topic, []).append(record.data)
            if sum(map(len, found.values())) == 4:
                break
    assert found == {"many.a": [2, 3], "many.b": [3], "many.c": [7]}
    ends = client.watch(["many.a", "many.b"])
    taken = 0
    for _ in ends:
        taken += 1
        if taken == 6:
            a.delete()
            b.delete()
    assert taken == 6, "it ended with the last of its topics"


def test_a_slow_reader_gets_everything_on_its_own_time(client: Client) -> None:
    topic = client.topic("slow", int)
    other = client.topic("quick", int)
    topic.append(0)
    watch = topic.watch()
    reading = iter(watch)
    assert next(reading).data == 0
    padding = {"x": "y" * 8000}
    for start in range(1, 2001, 100):  # 16 MB: far more than is buffered for one reader
        topic.append(*range(start, start + 100), meta=padding)
        other.append(start)
    assert [one.data for one in other.read()] == [*range(1, 2001, 100)]
    assert [next(reading).data for _ in range(2000)] == [*range(1, 2001)]
    watch.close()


# --- restarts


class Restarting:
    """A server that can be ended and started again on the same port and data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process = ServerProcess(data, port=self.port).wait_ready()

    def restart(self, how: signal.Signals) -> None:
        self._process.signal(how)
        self._process.wait()
        self._process.close()
        self._process = ServerProcess(self._data, port=self.port).wait_ready()

    def close(self) -> None:
        self._process.close()


@contextmanager
def restarting(data: Path) -> Iterator[Restarting]:
    server = Restarting(data)
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_watch_lives_through_a_restart_and_every_record_comes_once(
    tmp_path: Path, how: signal.Signals
) -> None:
    total = 400
    with restarting(tmp_path) as server, Client(server.url) as client:
        topic = client.topic("orders", int)
        topic.put()

        def write() -> None:
            with Client(server.url) as writer:
                for value in range(total):
                    writer.topic("orders").append(value)

        writing = threading.Thread(target=write)
        writing.start()
        found: list[Record[int]] = []
        lost: list[str] = []
        gone: list[Tombstone] = []
        for record in topic.watch(
            on_tombstone=gone.append, on_disconnect=lambda error: lost.append(str(error))
        ):
            found.append(record)
            if len(found) in (100, 200):
                server.restart(how)
            if len(found) == total:
                break
        writing.join(WAIT_S)
        assert seqs(found) == [*range(1, total + 1)]
        assert [one.data for one in found] == [*range(total)], "nor was one appended twice"
        assert gone == []
        assert len(lost) >= 2


def test_a_watch_of_several_lives_through_a_restart(tmp_path: Path) -> None:
    async def scenario(server: Restarting) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        async with AsyncClient(server.url) as client:
            await client.topic("s.a").append(*range(5))
            async for record in client.watch({"s.a": 0}, prefix="s.*", type=int):
                found.append((record.topic, record.data))
                if len(found) == 5:
                    await asyncio.to_thread(server.restart, signal.SIGKILL)
                    await client.topic("s.a").append(5)
                    await client.topic("s.new").append(0, 1)
                if len(found) == 8:
                    return found
        return found

    with restarting(tmp_path) as server:
        found = run(scenario(server), within_s=WAIT_S)
    assert Counter(found) == Counter(
        [("s.a", at) for at in range(6)] + [("s.new", 0), ("s.new", 1)]
    )


def test_bulk_lives_through_a_restart(tmp_path: Path) -> None:
    with restarting(tmp_path) as server, Client(server.url) as client:
        topic = client.topic("bulk", int)

        def restart(progress: Any) -> None:
            if progress.batches == 3:
                server.restart(signal.SIGKILL)

        done = topic.append_many(range(600), batch=100, on_progress=restart)
        assert done.records == 600
        assert [one.data for one in topic.read()] == [*range(600)]


# --- overload, and answers that get lost


class Tally(httpx.AsyncHTTPTransport):
    """Counts what servers answer."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: Counter[int] = Counter()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.statuses[response.status_code] += 1
        return response


def test_a_storm_of_429_costs_time_and_loses_nothing(tmp_path: Path) -> None:
    writers, each = 24, 8

    async def scenario() -> None:
        tiny = LaneLimits(items=2, size=64 * 1024)
        config = WriterConfig(
            lane=tiny, total=tiny, max_batch=1, max_batch_bytes=64 * 1024, reserve_items=2
        )
        app = Fairway(tmp_path, writer=config)
        async with serving(tmp_path, app=app) as served:
            transport = Tally()
            url = f"http://127.0.0.1:{served.server.port}"
            async with AsyncClient(url, transport=transport) as client:
                topic = client.topic("storm")
                await topic.put()

                async def write(name: int) -> None:
                    for at in range(each):
                        await topic.append([name, at])

                async with asyncio.TaskGroup() as group:
                    for name in range(writers):
                        group.create_task(write(name))
                found = [tuple(record.data) async for record in topic.read()]
            assert transport.statuses[429] > writers, transport.statuses
        assert Counter(found) == Counter(
            (name, at) for name in range(writers) for at in range(each)
        )
        for name in range(writers):
            assert [at for one, at in found if one == name] == [*range(each)]

    run(scenario(), within_s=WAIT_S)


@asynccontextmanager
async def losing(port: int, loses: Callable[[int], bool]) -> AsyncIterator[int]:
    """A proxy that carries every request to the server, and loses some of the answers."""
    count = 0
    open_: set[asyncio.StreamWriter] = set()

    async def ask(reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            server.write(data)
        server.close()

    async def answer(server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while data := await server.read(65_536):
            count += 1
            if loses(count):
                break
            writer.write(data)
        writer.transport.abort()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
        pair = {writer, server_writer}
        open_.update(pair)
        with suppress(ConnectionError, ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(ask(reader, server_writer))
                group.create_task(answer(server_reader, writer))
        open_.difference_update(pair)
        for one in pair:
            one.transport.abort()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for one in [*open_]:
            one.transport.abort()


def test_lost_answers_are_asked_for_again_and_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(tmp_path) as served,
            losing(served.server.port, lambda count: count % 3 == 0) as port,
            AsyncClient(f"http://127.0.0.1:{port}") as client,
        ):
            topic = client.topic("lossy", int)
            replies = [await topic.append(value) for value in range(30)]
            assert sum(reply.deduped for reply in replies) >= 10, "the proxy lost none"
            lost = 0
            for value in range(100, 103):
                try:
                    await topic.append(value, key=None)
                except errors.OutcomeUnknown:
                    lost += 1
            assert lost == 1, "without a key nothing is repeated"
            async with AsyncClient(f"http://127.0.0.1:{served.server.port}") as direct:
                stored = [one.data async for one in direct.topic("lossy", int).read()]
            assert stored == [*range(30), 100, 101, 102]

    run(scenario(), within_s=WAIT_S)


def test_a_watch_of_several_loses_nothing_with_its_first_connection(
    server: ServerProcess, client: Client
) -> None:
    """Which breaks before anything of it arrives, when its server has sent all there was."""

    async def scenario() -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        async with (
            losing(server.port, lambda count: count == 2) as port,
            AsyncClient(f"http://127.0.0.1:{port}") as through,
        ):
            async for record in through.watch(["cut.a", "cut.b"]):
                found.append((record.topic, record.seq))
                if len(found) == 4:
                    break
        return found

    for name in ("cut.a", "cut.b"):
        client.topic(name).append(1, 2)
    found = run(scenario(), within_s=WAIT_S)
    assert sorted(found) == [("cut.a", 1), ("cut.a", 2), ("cut.b", 1), ("cut.b", 2)]


def test_a_silent_stream_is_dropped_and_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SLACK_MS", -1900)  # of two heartbeats of a second
    requests: list[bytes] = []
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"

    def frame(seq: int) -> bytes:
        data = b'{"topic":"t","epoch":1,"records":[{"$seq":%d,"$ts":1,"data":%d}],' % (seq, seq)
        data += b'"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (seq - 1, seq, seq)
        return b"id: 1.%d\nevent: record\ndata: %b\n\n" % (seq, data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).lower())
        writer.write(head + frame(len(requests)))
        await reader.read()  # says nothing more, and waits to be left
        writer.close()

    async def scenario() -> list[int]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with (
            server,
            AsyncClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client,
        ):
            found: list[int] = []
            async for record in client.topic("t", int).watch(heartbeat_ms=1000):
                found.append(record.data)
                if len(found) == 3:
                    break
            return found

    assert run(scenario()) == [1, 2, 3]
    assert b"last-event-id: 1.1\r\n" in requests[1]
    assert b"last-event-id: 1.2\r\n" in requests[2]
