"""librdkafka's mock cluster: brokers that speak the protocol of Kafka, in memory, for tests.

`mock_cluster()` runs it in this process and `mock_process()` in one of its own, which obeys
over a loopback socket: its brokers are then really somebody else's. It comes with the wheel
of confluent-kafka, but that exports only how to start it; the rest is called through ctypes.

It answers a fetch when the wait of the fetch ends, however many messages came: clients under test
set `fetch.wait.max.ms` low, and no latency measured against it means anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
OFFSET_COMMIT = 8
"""The number of the request by which offsets are committed."""
CLIENT = {
    "fetch.wait.max.ms": 10,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "statistics.interval.ms": 50,
    # A new member waits for a second less than this if the group is not new.
    "session.timeout.ms": 1_500,
    "heartbeat.interval.ms": 200,
}
"""Options of a consumer that make tests fast."""
PRODUCER = 0  # RD_KAFKA_PRODUCER: a cluster needs a client to live in, and this is the smallest


@functools.cache
def _library() -> Any:
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    places = (package.parent / "confluent_kafka.libs", package / ".dylibs", package)
    found = [path for place in places for path in sorted(place.glob("librdkafka*"))]
    if not found:
        raise RuntimeError(f"the wheel of confluent-kafka in {package} brings no librdkafka")
    library = ctypes.CDLL(str(found[0]))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    size = ctypes.c_size_t
    for name, result, *arguments in (
        ("rd_kafka_conf_new", pointer),
        ("rd_kafka_conf_set", number, pointer, text, text, text, size),
        ("rd_kafka_new", pointer, number, pointer, text, size),
        ("rd_kafka_destroy", None, pointer),
        ("rd_kafka_mock_cluster_new", pointer, pointer, number),
        ("rd_kafka_mock_cluster_destroy", None, pointer),
        ("rd_kafka_mock_cluster_bootstraps", text, pointer),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, pointer, ctypes.c_int32),
        ("rd_kafka_mock_topic_create", number, pointer, text, number, number),
        ("rd_kafka_mock_partition_set_leader", number, pointer, text, ctypes.c_int32, number),
        ("rd_kafka_mock_broker_set_down", number, pointer, ctypes.c_int32),
        ("rd_kafka_mock_broker_set_up", number, pointer, ctypes.c_int32),
        ("rd_kafka_mock_start_request_tracking", None, pointer),
        ("rd_kafka_mock_get_requests", ctypes.POINTER(pointer), pointer, ctypes.POINTER(size)),
        ("rd_kafka_mock_request_api_key", ctypes.c_int16, pointer),
        ("rd_kafka_mock_request_destroy_array", None, ctypes.POINTER(pointer), size),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """Brokers 1 to `brokers`, and what may be done to them. `bootstrap` is their addresses."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = library = _library()
        self._brokers = range(1, brokers + 1)
        why = ctypes.create_string_buffer(512)
        settings = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(settings, b"log_level", b"0", why, len(why))
        self._client = library.rd_kafka_new(PRODUCER, settings, why, len(why))
        assert self._client, why.value.decode()
        self._cluster = library.rd_kafka_mock_cluster_new(self._client, brokers)
        assert self._cluster, "there is no mock cluster"
        # Three seconds to wait for others is what each group does when it is new.
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        library.rd_kafka_mock_start_request_tracking(self._cluster)
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        error = self._library.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, len(self._brokers)
        )
        assert error == 0, f"topic {name}: error {error}"

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Make a broker the leader of a partition."""
        error = self._library.rd_kafka_mock_partition_set_leader(
            self._cluster, topic.encode(), partition, broker
        )
        assert error == 0, f"{topic}/{partition}: error {error}"

    def down(self, *brokers: int) -> None:
        """Close the connections of brokers (of all, if none is named) and take no new ones."""
        for broker in brokers or self._brokers:
            assert self._library.rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def up(self, *brokers: int) -> None:
        """Take connections again, at the same addresses."""
        for broker in brokers or self._brokers:
            assert self._library.rd_kafka_mock_broker_set_up(self._cluster, broker) == 0

    def requests(self, kind: int) -> int:
        """How many requests of a kind came so far, from all clients."""
        count = ctypes.c_size_t()
        found = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        kinds = [self._library.rd_kafka_mock_request_api_key(found[i]) for i in range(count.value)]
        self._library.rd_kafka_mock_request_destroy_array(found, count.value)
        return kinds.count(kind)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


@contextlib.contextmanager
def mock_cluster(
    topics: Mapping[str, int] | None = None, *, brokers: int = 1
) -> Iterator[MockCluster]:
    """A cluster in this process, with these topics of so many partitions."""
    cluster = MockCluster(brokers)
    try:
        for name, partitions in (topics or {}).items():
            cluster.topic(name, partitions)
        yield cluster
    finally:
        cluster.close()


class MockProcess:
    """A cluster in a process of its own. `control` is where any process may command it."""

    def __init__(self, brokers: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kafka_mock", str(brokers)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert len(words) == 2, "the mock cluster did not start"
        self.bootstrap = words[0]
        self.control = int(words[1])

    def topic(self, name: str, partitions: int = 1) -> None:
        command(self.control, f"topic {name} {partitions}")

    def down(self, *brokers: int) -> None:
        command(self.control, " ".join(("down", *map(str, brokers))))

    def up(self, *brokers: int) -> None:
        command(self.control, " ".join(("up", *map(str, brokers))))

    def requests(self, kind: int) -> int:
        return int(command(self.control, f"requests {kind}"))

    def kill(self) -> None:
        """End it at once, and all it holds with it."""
        self._process.kill()
        self._process.wait(timeout=10)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it ends with whoever started it, however that ends
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


@contextlib.contextmanager
def mock_process(
    topics: Mapping[str, int] | None = None, *, brokers: int = 1
) -> Iterator[MockProcess]:
    """A cluster in a process of its own, with these topics of so many partitions."""
    cluster = MockProcess(brokers)
    try:
        for name, partitions in (topics or {}).items():
            cluster.topic(name, partitions)
        yield cluster
    finally:
        cluster.close()


def command(control: int, line: str) -> str:
    """Tell the cluster that listens at this port; what it answers after `ok`."""
    with socket.create_connection(("127.0.0.1", control), timeout=10) as connection:
        connection.sendall(line.encode() + b"\n")
        with connection.makefile() as answers:
            answer = answers.readline().strip()
    assert answer.startswith("ok"), answer
    return answer.removeprefix("ok").strip()


def obey(cluster: MockCluster, line: str) -> str:
    match line.split():
        case ["topic", name, partitions]:
            cluster.topic(name, int(partitions))
        case ["down", *brokers]:
            cluster.down(*map(int, brokers))
        case ["up", *brokers]:
            cluster.up(*map(int, brokers))
        case ["requests", kind]:
            return f"ok {cluster.requests(int(kind))}"
        case _:
            return f"unknown: {line}"
    return "ok"


async def serve(brokers: int) -> None:
    """Print the addresses of the brokers and the port of control; obey until asked to quit.

    Also until standard input ends.
    """
    quitting = asyncio.Event()
    with mock_cluster(brokers=brokers) as cluster:

        async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                while line := (await reader.readline()).decode().strip():
                    if line == "quit":
                        quitting.set()
                    try:
                        answer = "ok" if line == "quit" else obey(cluster, line)
                    except (AssertionError, ValueError) as error:
                        answer = f"failed: {error}"
                    writer.write(answer.encode() + b"\n")
                    await writer.drain()

        class Started(asyncio.Protocol):
            def connection_lost(self, error: Exception | None) -> None:
                quitting.set()

        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(Started, sys.stdin)
        server = await asyncio.start_server(converse, "127.0.0.1", 0)
        print(cluster.bootstrap, server.sockets[0].getsockname()[1], flush=True)
        async with server:
            await quitting.wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
