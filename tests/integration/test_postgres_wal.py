"""The PostgreSQL log against a real server: lost connections, crashes, deposed owners."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fairway.app import Fairway
from fairway.errors import (
    AlreadyOwned,
    Closing,
    Corrupt,
    FairwayError,
    Fenced,
    InvalidConfig,
    InvalidOperation,
    OutcomeUnknown,
    ReadOnly,
    TryLater,
    Unavailable,
    UnknownFormat,
    WriteFailed,
)
from fairway.runtime.clock import boottime_ns
from fairway.storage.log import UPKEEP_S, Log
from fairway.storage.wal import DELETE, Entry, HardState, Operation, Tail
from fairway.storage.wals.postgres import PostgresWal
from tests.support import postgres
from tests.support.history import Twin, contents
from tests.support.postgres import PostgresServer, postgres_url
from tests.support.server import until
from tests.support.topics import new, read_all, topics_on, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.topics.engine import Topics
    from fairway.topics.outcome import Appended
    from tests.conftest import Campaign

PROCESS = Path(__file__).with_name("postgres_process.py")
HOUR_NS = 3_600_000_000_000
SCHEMAS = itertools.count(1)


class Place:
    """A schema of a server: makes logs on it and looks behind their backs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = f"integration_{next(SCHEMAS)}"
        self.admin = psycopg.connect(url, autocommit=True)
        self._made: list[PostgresWal] = []

    def log(self, **options: Any) -> PostgresWal:
        options = {"schema": self.schema, "connect_pause_ns": 1_000_000, **options}
        wal = PostgresWal(options.pop("url", self.url), **options)
        self._made.append(wal)
        return wal

    def opened(self, **options: Any) -> PostgresWal:
        wal = self.log(**options)
        wal.open()
        return wal

    def sql(self, statement: str, *parameters: object) -> list[Any]:
        self.admin.execute(f'SET search_path TO "{self.schema}"')
        cursor = self.admin.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def terminate(self, role: str = "owner") -> int:
        """End the backends of a log's connections, and return when they are gone."""
        return len(
            self.sql(
                "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
                " WHERE application_name = %s",
                f"fairway {self.schema} {role}",
            )
        )

    def wait_blocked(self, count: int = 1) -> None:
        """Until so many connections of an owner, present or future, wait for a lock."""
        waiting = (
            "SELECT 1 FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND application_name = %s"
        )
        eventually(lambda: len(self.sql(waiting, f"fairway {self.schema} owner")) >= count)

    def close(self) -> None:
        for wal in self._made:
            wal.close()
        if not self.admin.closed:
            self.admin.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')
            self.admin.close()


@pytest.fixture(scope="module")
def url() -> str:
    try:
        return postgres_url()
    except postgres.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def place(url: str) -> Iterator[Place]:
    made = Place(url)
    yield made
    made.close()


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """For what only another process can tell: ask often, and not forever."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        pause.wait(0.002)


@pytest.fixture
def _syncs(url: str) -> Iterator[None]:
    """The server syncs, as outside of tests: it sleeps before a sync only if it makes one."""
    set_fsync(url, "on")
    yield
    set_fsync(url, "off")


def set_fsync(url: str, setting: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"ALTER SYSTEM SET fsync = {setting}".encode())
        admin.execute("SELECT pg_reload_conf()")
    eventually(lambda: shown(url, "fsync") == setting)


def shown(url: str, setting: str) -> str:
    """A setting, as it is for whoever connects now."""
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SHOW {setting}".encode()).fetchone()
    assert row is not None
    return str(row[0])


def slow_sync(url: str) -> str:
    """The same server, which sleeps for 50 ms before each sync."""
    return f"{url}&options={quote('-c commit_delay=50000 -c commit_siblings=0')}"


def append(*keys: int, term: int = 0, **rest: Any) -> Operation:
    return Operation(entries=[Entry(key, b"%d" % key, term) for key in keys], **rest)


def one_failure(failures: Any, kind: type[FairwayError]) -> FairwayError:
    """All partitions failed for one reason of exactly this kind."""
    assert {type(error) for error in failures.values()} == {kind}, failures
    first: FairwayError = next(iter(failures.values()))
    return first


# -- a group in which every statement occurs

BEFORE = {
    1: [append(1, 2, 3, term=1, meta={"kept": b"old", "dropped": b"x"})],
    2: [append(1, 2, 3, term=1), Operation(hard_state=HardState(1, "a"))],
    3: [append(1, 2, 3, meta={"gone": b"x"})],
}
GROUP = {
    1: [append(4, term=2, meta={"kept": b"new", "dropped": None}), Operation(compact_before=3)],
    2: [append(3, 4, term=2, truncate_after=2), Operation(hard_state=HardState(2, "b"))],
    3: [DELETE, append(1, term=7, meta={"fresh": b"y"})],
    4: [append(9, term=3)],
}
PLAIN = {**GROUP, 2: [append(3, 4, term=2, truncate_after=2)]}  # without what forces a sync
CHANGES = [
    *("hold", "delete", "truncate", "touch", "append", "compact", "set_meta", "drop_meta"),
]
STATEMENTS = {
    True: ["begin", *CHANGES, "set_hard_state", "commit"],
    False: ["begin", "unsynced", *CHANGES, "commit"],
}


def twins(*groups: Any) -> dict[int, Any]:
    made = {number: Twin() for number in (1, 2, 3, 4)}
    for group in groups:
        for number, operations in group.items():
            for operation in operations:
                made[number].apply(operation)
    return {number: twin.contents() for number, twin in made.items()}


def everything(wal: PostgresWal) -> dict[int, Any]:
    return {number: contents(wal, number) for number in (1, 2, 3, 4)}


@pytest.mark.parametrize("sync", [True, False])
def test_a_terminated_backend_at_every_statement(
    place: Place, campaign: Campaign, sync: bool
) -> None:
    group = GROUP if sync else PLAIN
    seen: list[str] = []
    wal = place.opened(before_statement=seen.append)
    assert wal.write(BEFORE, sync=True) == {}
    seen.clear()
    assert wal.write(group, sync=sync) == {}
    assert seen == STATEMENTS[sync]
    assert everything(wal) == twins(BEFORE, group)

    for index, name in enumerate(STATEMENTS[sync]):
        here = Place(place.url)
        pending: list[int] = []

        def strike(name: str, here: Place = here, pending: list[int] = pending) -> None:
            if pending and not pending.pop():
                campaign.tally[f"terminated at {name}"] += here.terminate()

        wal = here.opened(before_statement=strike)
        assert wal.write(BEFORE, sync=True) == {}
        pending += range(index + 1)  # counts down to 0 at this statement
        # The server is there to be asked, so even in the commit there is no doubt.
        one_failure(wal.write(group, sync=sync), WriteFailed)
        assert everything(wal) == twins(BEFORE), name
        assert wal.write(group, sync=sync) == {}, "the next write works"
        assert everything(wal) == twins(BEFORE, group), name
        campaign.tally["undone and written again"] += 1
        here.close()
    for name in STATEMENTS[sync]:
        assert campaign.tally[f"terminated at {name}"] == 1
    assert campaign.tally["undone and written again"] == len(STATEMENTS[sync])


def test_a_backend_terminated_between_writes_is_replaced_before_the_next(place: Place) -> None:
    wal = place.opened()
    for key in range(1, 6):
        assert wal.write({1: [append(key)]}, sync=True) == {}
        assert len(wal.read(1)) == key
        assert place.terminate() == 1
        assert place.terminate("reader") == 1
    assert wal.tail(1) == Tail(5, 0, 1)


# -- the answer is lost


class Wire:
    """A socket in front of the server that can lose what passes through it.

    A fault strikes the next bytes that pass and then the wire is whole again, unless `down`.
    """

    def __init__(self, url: str, directory: Path) -> None:
        server = conninfo_to_dict(url)
        self._target = f"{server['host']}/.s.PGSQL.5432"
        self.url = f"postgresql://{server['user']}@/{server['dbname']}?host={directory}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        self.fault = ""
        self.down = False
        self.in_time: Callable[[], bool] = lambda: True
        """Asked before "hang up at once" does so; if it is too late, the wire stays whole."""
        self._held: tuple[socket.socket, bytes] | None = None
        self._ends: list[socket.socket] = []
        self._pool = ThreadPoolExecutor(64)
        self._pool.submit(self._accept)

    def deliver(self) -> None:
        """Send at last what was held back."""
        assert self._held is not None
        end, data = self._held
        with suppress(OSError):
            end.sendall(data)
            end.recv(1)  # its answer, or the end of it

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            hang_up(end)
        self._pool.shutdown()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._ends += [client, server]
            self._pool.submit(self._carry, client, server, request=True)
            self._pool.submit(self._carry, server, client, request=False)

    def _carry(self, source: socket.socket, target: socket.socket, *, request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if request and self.fault == "hold the request":
                    self.fault = ""
                    self._held = (target, data)
                    hang_up(source)
                    return  # the server's end stays open: it does not know
                if request and self.fault == "hang up at once":
                    self.fault = ""
                    target.sendall(data)
                    if not self.in_time():
                        continue
                    hang_up(source)
                    return
                if request and self.fault == "lose the request":
                    self.fault = ""
                    break
                if not request and self.fault == "lose the answer":
                    self.fault = ""
                    break
                target.sendall(data)
        hang_up(source)
        hang_up(target)


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@pytest.fixture
def wire(url: str, tmp_path: Path) -> Iterator[Wire]:
    made = Wire(url, tmp_path)
    yield made
    made.down = True
    made.close()


@pytest.mark.parametrize("fault", ["lose the answer", "lose the request", "hold the request"])
@pytest.mark.parametrize("reachable", [True, False])
def test_a_connection_lost_in_the_commit(
    place: Place, wire: Wire, campaign: Campaign, fault: str, reachable: bool
) -> None:
    armed = False

    def strike(name: str) -> None:
        nonlocal armed
        if armed and name == "commit":
            armed = False
            wire.fault = fault
            wire.down = not reachable

    # An hour's lease: the server would not by itself let go of what a lost client holds.
    wal = place.opened(url=wire.url, before_statement=strike, lease_ttl_ns=HOUR_NS)
    assert wal.write(BEFORE, sync=True) == {}
    armed = True
    failures = wal.write(GROUP, sync=True)
    took_place = fault == "lose the answer"
    if reachable and took_place:
        assert failures == {}
    elif reachable:
        one_failure(failures, WriteFailed)
    else:
        one_failure(failures, OutcomeUnknown)
        with pytest.raises(TryLater):
            wal.tail(1)  # it must not answer: the commit could still take place
        one_failure(wal.write(GROUP, sync=True), WriteFailed)
        wire.down = False
    campaign.tally[f"{fault}, {type(failures.get(1)).__name__}"] += 1
    assert everything(wal) == (twins(BEFORE, GROUP) if took_place else twins(BEFORE))
    if fault == "hold the request":
        wire.deliver()
        assert everything(wal) == twins(BEFORE), "what was read is final"
    assert wal.write({5: [append(1)]}, sync=True) == {}
    assert everything(wal) == (twins(BEFORE, GROUP) if took_place else twins(BEFORE))


@pytest.mark.parametrize("fault", ["lose the answer", "lose the request"])
def test_a_topic_goes_on_after_the_answer_to_a_commit_was_lost(
    place: Place, wire: Wire, fault: str
) -> None:
    """The database cannot be asked at first; what it took is shown once, under its own seq."""
    doubting = threading.Event()

    def strike(name: str) -> None:
        if name == "commit" and doubting.is_set():
            doubting.clear()
            wire.fault, wire.down = fault, True

    async def main() -> None:
        wal = place.log(url=wire.url, connect_tries=1, before_statement=strike)
        async with asyncio.timeout(60), topics_on(wal) as topics:
            await topics.append("t", new("good"))
            doubting.set()
            with pytest.raises(OutcomeUnknown):
                await topics.append("t", new("doubtful"))
            doubts = topics.activate(topics.get("t")).doubts
            await asyncio.sleep(2 * UPKEEP_S)  # upkeep cannot ask either
            assert doubts.end
            wire.down = False
            answer = await append_at_last(topics, "t", "healed")
            there = ["doubtful"] if fault == "lose the answer" else []
            found = await read_all(topics, "t")
            assert values(found) == ["good", *there, "healed"]
            assert found.seqs[-1] == answer.first_seq == len(found.seqs)

    asyncio.run(main())


async def append_at_last(topics: Topics, name: str, data: object) -> Appended:
    """Append as a client does, who comes back when it is told to."""
    while True:
        try:
            return (await topics.append(name, new(data)))[1]
        except (ReadOnly, Unavailable, WriteFailed):
            await asyncio.sleep(UPKEEP_S / 4)


def test_a_reader_settles_the_doubt_before_it_looks(place: Place, wire: Wire) -> None:
    """The lost commit arrives after the wire is whole again: a read before must not differ from
    one after."""
    losing = False

    def lose(name: str) -> None:
        if losing and name == "commit":
            wire.fault, wire.down = "hold the request", True

    reader = place.log()
    wal = place.opened(url=wire.url, connect_tries=1, lease_ttl_ns=HOUR_NS, before_statement=lose)
    assert wal.write({1: [append(1)]}, sync=True) == {}
    losing = True
    one_failure(wal.write({1: [append(2)]}, sync=True), OutcomeUnknown)
    wire.down = False
    before = wal.tail(1)
    wire.deliver()
    assert before == wal.tail(1) == reader.tail(1) == Tail(1, 0, 1)


@pytest.mark.usefixtures("_syncs")
def test_a_commit_that_is_still_under_way_is_waited_for(
    place: Place, wire: Wire, campaign: Campaign
) -> None:
    """The client is gone and the server is in its sync: to look now would be too early."""
    losing = False

    def lose(name: str) -> None:
        if losing and name == "commit":
            wire.fault = "hang up at once"

    committing = (
        "SELECT state FROM pg_stat_activity WHERE application_name = %s AND query = 'COMMIT'"
    )
    name = f"fairway {place.schema} owner"
    lost = False

    def under_way() -> bool:
        """A machine that is busy may look only when it is over: then nothing is lost."""
        nonlocal lost
        found: list[Any] = []
        eventually(lambda: bool(found.extend(place.sql(committing, name)) or found))
        lost = ("active",) in found
        return lost

    wire.in_time = under_way
    wal = place.opened(url=slow_sync(wire.url), before_statement=lose, lease_ttl_ns=HOUR_NS)
    rounds = 0
    while rounds < 5 or not campaign.tally["waited for"]:
        rounds += 1
        losing = lost = False
        key = wal.tail(1).last_key + 1
        assert wal.write({2: [append(key)]}, sync=True) == {}
        losing = True
        failures = wal.write({1: [append(key)]}, sync=True)
        if failures:  # it was evicted just before it could no longer be
            one_failure(failures, WriteFailed)
            campaign.tally["evicted in time"] += 1
        else:
            campaign.tally["waited for" if lost else "over before it was lost"] += 1
        assert wal.tail(1).last_key == (key - 1 if failures else key), "what it said is so"
        assert wal.write({2: [DELETE]}, sync=True) == {}


# -- the server refuses

REFUSALS = ["53100", "53200", "40001", "40P01", "57014", "25006"]


@pytest.mark.parametrize("when", ["", "CONSTRAINT"])
def test_a_server_that_refuses(place: Place, campaign: Campaign, when: str) -> None:
    wal = place.opened()
    assert wal.write(BEFORE, sync=True) == {}
    for sqlstate in REFUSALS:
        place.sql(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$"
        )
        deferred = "DEFERRABLE INITIALLY DEFERRED" if when else ""  # strikes in the commit
        place.sql(
            f"CREATE {when} TRIGGER refuse AFTER INSERT ON entries {deferred}"
            " FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        error = one_failure(wal.write(GROUP, sync=True), WriteFailed)
        assert sqlstate in str(error)
        assert everything(wal) == twins(BEFORE)
        place.sql("DROP TRIGGER refuse ON entries")
        campaign.tally[f"{sqlstate}{' in the commit' if when else ''}"] += 1
    assert wal.write(GROUP, sync=True) == {}
    assert everything(wal) == twins(BEFORE, GROUP)
    assert set(campaign.tally.values()) == {1}


def test_bad_data_fails_its_own_partition_only(place: Place) -> None:
    wal = place.opened()
    group = {
        1: [append(1, meta={os.urandom(1300).hex(): b""})],
        2: [append(1, meta={os.urandom(4000).hex(): b""})],  # beyond what an index row holds
        3: [append(1, meta={"\ud800": b""})],  # not text
        4: [append(1, meta={"zero \0 is text": b""})],
    }
    failures = wal.write(group, sync=True)
    assert {number: type(error) for number, error in failures.items()} == {
        2: WriteFailed,
        3: InvalidOperation,
    }
    assert [wal.tail(number).last_key for number in (1, 2, 3, 4)] == [1, 0, 0, 1]
    assert wal.meta_scan(4) == [("zero \0 is text", b"")]


def test_a_key_used_twice_is_refused_by_the_table(place: Place) -> None:
    wal = place.opened()
    assert wal.write({1: [append(1)]}, sync=True) == {}
    failures = wal.write({1: [append(1)], 2: [append(1)]}, sync=True)
    assert {number: type(error) for number, error in failures.items()} == {1: WriteFailed}
    assert wal.read(2) == [Entry(1, b"1")]


# -- crashes


def test_an_immediate_shutdown_in_a_saturated_write_loop(campaign: Campaign) -> None:
    """Every acknowledged synced group is found, operations are whole, and the log goes on."""
    rng = campaign.random()
    with PostgresServer() as server:
        place = Place(server.url())
        wal = place.opened(connect_tries=1)
        acknowledged = dict.fromkeys(range(8), 0)
        for _ in range(campaign.rounds(share=3, full=25)):
            enough = threading.Event()
            with ThreadPoolExecutor() as pool:
                loop = pool.submit(
                    write_until_failure, wal, acknowledged, enough, rng.randint(5, 60)
                )
                assert enough.wait(60)
                server.stop("immediate")
                attempted, failures = loop.result(60)
            outcome = one_failure(failures, type(failures[min(failures)]))
            assert isinstance(outcome, WriteFailed | OutcomeUnknown)
            campaign.tally[f"last group {type(outcome).__name__}"] += 1
            server.start()

            written = {wal.tail(number).last_key == key for number, key in attempted.items()}
            assert len(written) == 1, "a group is one transaction"
            if written == {True}:
                assert isinstance(outcome, OutcomeUnknown)
                campaign.tally["in doubt and there"] += 1
                acknowledged.update(attempted)
            for number, key in acknowledged.items():
                assert_whole(wal, number, key)
            campaign.tally["immediate shutdown"] += 1
            campaign.tally["acknowledged entries"] = sum(acknowledged.values())
            assert wal.write({9: [append(wal.tail(9).last_key + 1)]}, sync=True) == {}
        wal.close()
        place.admin.close()
    assert campaign.tally["immediate shutdown"] >= 3
    assert campaign.tally["acknowledged entries"] > 100


@pytest.mark.parametrize("writers", [1, 6])
def test_topics_go_on_after_an_immediate_shutdown_under_load(
    campaign: Campaign, writers: int
) -> None:
    """Every acknowledged record is there once under its seq, and no topic stays closed."""
    with PostgresServer() as server:
        place = Place(server.url())

        async def main() -> None:
            async with topics_on(place.log(connect_tries=1)) as topics:
                for number in range(campaign.rounds(share=4, full=25)):
                    names = [f"round{number}-{writer}" for writer in range(writers)]
                    loaded = asyncio.Barrier(writers + 1)
                    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                        for name in names:
                            writer = write_through_a_crash(topics, name, campaign, loaded)
                            group.create_task(writer)
                        await loaded.wait()
                        if number % 2:
                            await asyncio.to_thread(hold_commits, server)
                        await asyncio.to_thread(server.stop, "immediate")
                        await asyncio.to_thread(server.start)

        asyncio.run(main())
        place.admin.close()
    assert campaign.tally["went on"] >= 4 * writers
    assert campaign.tally["in doubt and there"] >= 2


def hold_commits(server: PostgresServer) -> None:
    """Return when a commit is written and will never be answered: it waits for a standby."""
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        eventually(lambda: admin.execute(waiting).fetchone() is not None)
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")  # at the next start


async def write_through_a_crash(
    topics: Topics, name: str, campaign: Campaign, loaded: asyncio.Barrier
) -> None:
    """Append until it fails; go on behind it, and look at what is there."""
    acknowledged: dict[int, int] = {}
    doubtful: set[int] = set()
    for data in itertools.count():
        if data == 10:
            await loaded.wait()
        try:
            _, answer, _ = await topics.append(name, new(data))
        except OutcomeUnknown:
            doubtful.add(data)
            break
        except (ReadOnly, WriteFailed):
            break
        acknowledged[answer.first_seq] = data
    for more in range(data + 1, data + 4):
        acknowledged[(await append_at_last(topics, name, more)).first_seq] = more
    found = await read_all(topics, name)
    records = dict(zip(found.seqs, values(found), strict=True))
    assert len(records) == len(found.seqs) == topics.get(name).head
    assert acknowledged.items() <= records.items()
    extra = set(records.values()) - set(acknowledged.values())
    assert extra <= doubtful
    campaign.tally["in doubt"] += len(doubtful)
    campaign.tally["in doubt and there"] += len(extra)
    campaign.tally["went on"] += 1


def write_until_failure(
    wal: PostgresWal, acknowledged: dict[int, int], enough: threading.Event, count: int
) -> tuple[dict[int, int], Any]:
    for done in itertools.count():
        if done == count:
            enough.set()
        group, attempted = {}, {}
        for number in range(done % 4, 8, 1 + done % 3):
            key = acknowledged[number]
            last = str(key + 3).encode()
            group[number] = [append(key + 1, key + 2, key + 3, meta={"last": last})]
            attempted[number] = key + 3
        failures = wal.write(group, sync=True)
        if failures:
            assert failures.keys() == group.keys()
            return attempted, failures
        acknowledged.update(attempted)
    raise AssertionError


def assert_whole(wal: PostgresWal, number: int, last: int) -> None:
    assert wal.tail(number).last_key == last
    found = wal.read(number, limit=10**9)
    assert [entry.key for entry in found] == list(range(1, last + 1))
    assert wal.meta(number, "last") == (str(last).encode() if last else None)


def test_a_server_that_went_away_in_a_commit_leaves_no_partition_closed() -> None:
    """Not even if it cannot be asked at once where the partition ends."""
    with PostgresServer() as server:
        armed = threading.Event()

        def before(statement: str) -> None:
            if statement == "commit" and armed.is_set():
                armed.clear()
                server.stop("immediate")

        place = Place(server.url())

        async def main() -> None:
            wal = place.log(before_statement=before, connect_tries=1)
            async with asyncio.timeout(60), Log(wal) as log:
                assert await log.append(7, b"a") == 1
                armed.set()
                with pytest.raises(OutcomeUnknown):
                    await log.append(7, b"b")
                with pytest.raises(WriteFailed, match="in doubt"):
                    log.append(7, b"c")
                await asyncio.to_thread(server.start)
                key = None
                while key is None:
                    try:
                        key = await log.append(7, b"c")
                    except WriteFailed:
                        await asyncio.sleep(UPKEEP_S)  # then the store is asked again
                assert [entry.key for entry in await log.read(7)] == list(range(1, key + 1))
                assert wal.read(7, first=key)[0].payload == b"c"

        asyncio.run(main())
        place.admin.close()


def test_a_log_whose_unsynced_groups_a_crash_took_refuses_to_go_on(campaign: Campaign) -> None:
    with PostgresServer() as server:
        place = Place(server.url())
        # The server's own writer would save them within a moment.
        place.admin.execute("ALTER SYSTEM SET wal_writer_delay = 10000")
        place.admin.execute("SELECT pg_reload_conf()")
        for _ in range(campaign.rounds(share=3, full=10)):
            wal = place.opened(connect_tries=1)
            key = wal.tail(1).last_key
            assert wal.write({1: [append(key + 1)]}, sync=True) == {}
            assert wal.write({1: [append(key + 2)]}, sync=False) == {}
            server.stop("immediate")
            one_failure(wal.write({1: [append(key + 3)]}, sync=True), WriteFailed)
            server.start()
            place.admin.close()
            place.admin = psycopg.connect(place.url, autocommit=True)
            if wal.tail(1).last_key == key + 2:
                campaign.tally["unsynced group survived"] += 1
                continue
            campaign.tally["unsynced group lost"] += 1
            error = one_failure(wal.write({1: [append(key + 3)]}, sync=True), Fenced)
            assert "open the log again" in str(error)
            with pytest.raises(Fenced):
                wal.renew()
            heir = place.log(takeover=True)
            assert heir.open() == {1: Tail(key + 1, 0, 1)}
            assert heir.write({1: [append(key + 2)]}, sync=True) == {}
            heir.close()
        assert campaign.tally["unsynced group lost"] > 0
        place.close()


def test_a_log_whose_synced_groups_are_gone_is_corrupt(place: Place) -> None:
    """A restored backup, or a standby that lagged behind."""
    wal = place.opened()
    for key in (1, 2):
        assert wal.write({1: [append(key)]}, sync=True) == {}
    place.sql("UPDATE owner SET groups = groups - 1")
    place.terminate()
    one_failure(wal.write({1: [append(3)]}, sync=True), Corrupt)
    one_failure(wal.write({1: [append(3)]}, sync=True), Corrupt)


class Owner:
    """A real process that owns the log, or did."""

    def __init__(self, place: Place, *, lease_ttl_ns: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROCESS), place.url, place.schema, str(lease_ttl_ns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self._process.pid
        word, epoch = self.hear().split()
        assert word == "owner"
        self.epoch = int(epoch)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def kill(self) -> str:
        """kill -9; what it had said until then."""
        self._process.kill()
        said, _ = self._process.communicate()
        return said


@pytest.fixture
def owner(place: Place) -> Iterator[Callable[..., Owner]]:
    made: list[Owner] = []

    def start(where: Place = place, **options: Any) -> Owner:
        made.append(Owner(where, **options))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def test_unsynced_groups_survive_kill_9_of_the_owner(
    place: Place, campaign: Campaign, owner: Callable[..., Owner]
) -> None:
    rng = campaign.random()
    for round_ in range(campaign.rounds(share=3, full=50)):
        if round_:
            place.sql("UPDATE owner SET lease_end = '-infinity'")
        victim = owner(lease_ttl_ns=HOUR_NS)
        victim.tell("flood")
        count = rng.randint(1, 200)
        said = [victim.hear() for _ in range(count)]
        said += victim.kill().split()  # every whole line of it was acknowledged
        last = int(said[-2] if len(said) > count else said[-1])
        wal = place.log(takeover=True)
        tails = wal.open()
        assert tails[1] == tails[2], "the two were written in one group"
        assert tails[1].last_key >= last
        assert [entry.key for entry in wal.read(1, limit=10**9)] == list(
            range(1, tails[1].last_key + 1)
        )
        wal.close()
        campaign.tally["kill -9"] += 1
        campaign.tally["acknowledged groups found"] += len(said)
    assert campaign.tally["kill -9"] >= 3


# -- one owner


def test_a_second_opener_is_refused_with_the_holder(
    place: Place, owner: Callable[..., Owner]
) -> None:
    holder = owner(lease_ttl_ns=HOUR_NS)
    with pytest.raises(AlreadyOwned) as refusal:
        place.log().open()
    assert refusal.value.pid == holder.pid
    assert f"/{holder.pid}/" in str(refusal.value)
    assert place.schema in refusal.value.place
    assert holder.ask("write 1") == "ok"

    named = place.opened(takeover=True, owner="the night shift")
    with pytest.raises(AlreadyOwned, match="the night shift") as refusal:
        place.log().open()
    assert refusal.value.pid is None
    named.close()
    assert place.opened().epoch == named.epoch + 1, "a clean close ends the lease at once"


@pytest.mark.parametrize("force", [False, True])
def test_a_deposed_process_is_fenced(
    place: Place, campaign: Campaign, owner: Callable[..., Owner], force: bool
) -> None:
    first = owner(lease_ttl_ns=HOUR_NS if force else 50_000_000)
    assert first.ask("write 1") == "ok"
    heir = place.log(takeover=force, lease_ttl_ns=HOUR_NS)
    if force:
        tails = heir.open()
    else:
        refused = 0
        while True:  # until the database says that the lease has ended
            try:
                tails = heir.open()
                break
            except AlreadyOwned:
                refused += 1
                heir = place.log(lease_ttl_ns=HOUR_NS)
        campaign.tally["refused while the lease ran"] += refused
    assert heir.epoch == first.epoch + 1
    assert tails == {1: Tail(1, 0, 1), 2: Tail(1, 0, 1)}
    for key in (2, 3):
        assert first.ask(f"write {key}") == "Fenced"
        campaign.tally["Fenced, each in every partition"] += 1
    assert first.ask("renew") == "Fenced"
    assert heir.write({1: [append(2)]}, sync=True) == {}
    assert first.ask("write 3") == "Fenced", "also when its key would fit"
    assert heir.tail(1) == Tail(2, 0, 1)
    assert heir.tail(2) == Tail(1, 0, 1)


def test_a_takeover_in_the_middle_of_a_transaction(
    place: Place, campaign: Campaign, owner: Callable[..., Owner]
) -> None:
    """The nasty one: the old owner has checked its epoch, holds the row and has not committed.

    It may hang there forever, so it is thrown out: its transaction is undone, and when it wakes up
    it is fenced.
    """
    for lease_ttl_ns, takeover in ((HOUR_NS, True), (1_000_000, False)):
        here = Place(place.url)
        first = owner(here, lease_ttl_ns=lease_ttl_ns)
        assert first.ask("pause") == "pausing"
        first.tell("write 1")
        assert first.hear() == "at commit"
        heir = here.log(takeover=takeover)
        assert heir.open() == {}, "its transaction was undone"
        assert heir.write({1: [append(1)]}, sync=True) == {}
        assert first.ask("go") == "Fenced"
        assert first.ask("write 2") == "Fenced"
        campaign.tally["Fenced"] += 2
        assert heir.tail(1) == Tail(1, 0, 1)
        assert heir.tail(2) == Tail()
        campaign.tally["thrown out in its transaction"] += 1
        here.close()
    assert campaign.tally == {"Fenced": 4, "thrown out in its transaction": 2}


def test_a_takeover_waits_for_a_commit_under_way(place: Place) -> None:
    """If the old owner's commit comes first, the new one sees what it wrote."""
    place.opened().close()
    hold = "UPDATE owner SET groups = groups + 1, lease_end = clock_timestamp() + interval '1 hour'"
    insert = "INSERT INTO partitions (partition, last_key, last_term, top_key) VALUES (7, 5, 0, 0)"
    with psycopg.connect(place.url) as commits, ThreadPoolExecutor() as pool:
        commits.execute(f'SET LOCAL search_path TO "{place.schema}"')
        commits.execute(hold)
        commits.execute(insert)
        forced = pool.submit(place.log(takeover=True).open)
        place.wait_blocked()
        patient = pool.submit(place.log().open)
        place.wait_blocked(2)
        assert not forced.done()
        assert not patient.done()
        commits.commit()
        assert forced.result(30) == {7: Tail(5, 0, 1)}
        with pytest.raises(AlreadyOwned):
            patient.result(30)  # the lease it saw at an end was renewed by the commit


def test_a_write_waits_for_a_takeover_under_way(place: Place) -> None:
    wal = place.opened()
    assert wal.write({1: [append(1)]}, sync=True) == {}
    with psycopg.connect(place.url) as rival, ThreadPoolExecutor() as pool:
        rival.execute(f'UPDATE "{place.schema}".owner SET epoch = epoch + 1, inherited = groups')
        writing = pool.submit(wal.write, {1: [append(2)]}, sync=True)
        place.wait_blocked()
        assert not writing.done()
        rival.commit()
        one_failure(writing.result(30), Fenced)
    assert wal.tail(1) == Tail(1, 0, 1)


def test_a_commit_in_doubt_is_judged_across_takeovers(place: Place, wire: Wire) -> None:
    """The next owner wrote down where the epoch ended; after two the answer is honestly unknown."""
    for takeovers, fault, expected in (
        (1, "lose the answer", None),
        (1, "lose the request", Fenced),
        (2, "lose the answer", OutcomeUnknown),
        (2, "lose the request", OutcomeUnknown),
    ):
        here = Place(place.url)
        armed = False

        def strike(
            name: str, here: Place = here, fault: str = fault, takeovers: int = takeovers
        ) -> None:
            nonlocal armed
            if armed and name == "commit":
                wire.fault = fault
            elif armed and name == "evict":  # connected again, before it looks at the owner row
                armed = False
                for _ in range(takeovers):
                    heir = here.opened(takeover=True, lease_ttl_ns=HOUR_NS)
                    assert heir.write({9: [append(heir.tail(9).last_key + 1)]}, sync=True) == {}

        wal = here.opened(url=wire.url, before_statement=strike)
        assert wal.write(BEFORE, sync=True) == {}
        armed = True
        failures = wal.write(GROUP, sync=True)
        if expected is None:
            assert failures == {}
        else:
            one_failure(failures, expected)
        took_place = fault == "lose the answer"
        assert everything(wal) == (twins(BEFORE, GROUP) if took_place else twins(BEFORE))
        one_failure(wal.write({1: [append(99)]}, sync=True), Fenced)
        here.close()


def test_the_lease_is_judged_by_the_clock_of_the_database(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.opened(lease_ttl_ns=HOUR_NS)
    day = 86_400
    for skew in (-day, day):  # a worker's clock that is wrong by a day either way
        monkeypatch.setattr(time, "time", lambda skew=skew: skew)
        monkeypatch.setattr(time, "time_ns", lambda skew=skew: skew * 10**9)
        with pytest.raises(AlreadyOwned):
            place.log().open()
    left = "SELECT extract(epoch FROM lease_end - clock_timestamp())::float FROM owner"
    place.sql("UPDATE owner SET lease_end = clock_timestamp() + interval '1 minute'")
    assert place.sql(left)[0][0] <= 60
    for renew in (
        first.renew,
        first.maintain,
        lambda: first.write({1: [append(1)]}, sync=False),
    ):
        place.sql("UPDATE owner SET lease_end = clock_timestamp() + interval '1 minute'")
        renew()
        assert 3500 < place.sql(left)[0][0] <= 3600
    place.sql("UPDATE owner SET lease_end = clock_timestamp()")
    second = place.opened()
    assert second.epoch == first.epoch + 1
    for late in (first.renew, first.maintain):
        with pytest.raises(Fenced):
            late()


def test_an_owner_whose_lease_ended_goes_on_if_nobody_took_over(place: Place) -> None:
    wal = place.opened()
    place.sql("UPDATE owner SET lease_end = '-infinity'")
    assert wal.write({1: [append(1)]}, sync=True) == {}
    with pytest.raises(AlreadyOwned):
        place.log().open()


def test_what_is_read_is_answered_only_within_the_lease(place: Place) -> None:
    """On a clock of its own, as if the machine had slept: for the log, for handles and watches."""
    slept_ns = 0
    broken = threading.Event()

    def cut(statement: str) -> None:
        if broken.is_set():
            raise psycopg.OperationalError("the network is gone")

    wal = place.log(now_ns=lambda: boottime_ns() + slept_ns, before_statement=cut)

    async def scenario() -> None:
        nonlocal slept_ns
        async with (app := Fairway(wal, worker=None)):
            topic = app.topic("t")
            told: list[Fenced] = []
            app.log.when_lost.append(told.append)
            await topic.append(1)
            assert [record.data for record in (await topic.read()).records] == [1]
            async with aclosing(topic.watch()) as watching:
                assert (await anext(watching)).data == 1
                epoch = topic.state.epoch
                broken.set()  # nobody took over, but who knows
                slept_ns += 14_000_000_000
                for ask in (topic.read, lambda: app.log.read(epoch)):
                    with pytest.raises(Fenced, match="was not renewed in time"):
                        await ask()
                broken.clear()
                await until(lambda: not wal.ownership.overdue)  # the upkeep renews it
                assert [record.data for record in (await topic.read()).records] == [1]
                place.opened(takeover=True)
                assert not told, "it was late, and not lost"
                with pytest.raises(Fenced, match="has epoch 2"):
                    await anext(watching)
                assert len(told) == 1
            with pytest.raises(Fenced, match="has epoch 2"):
                await topic.read()
            with pytest.raises(Fenced, match="has epoch 2"):
                _ = topic.state

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_lease_is_trusted_from_when_a_synced_renewal_was_sent(place: Place) -> None:
    """Not from when its answer came; and a commit that waits for no disk does not count: a crash of
    the server would take it back."""
    now_ns = 0
    delay_ns = 0

    def later(statement: str) -> None:
        nonlocal now_ns
        if statement in ("renew", "commit"):
            now_ns += delay_ns

    wal = place.opened(now_ns=lambda: now_ns, before_statement=later)
    delay_ns = 5_000_000_000
    wal.renew()  # sent at 0, answered at 5 s
    now_ns = 13_999_999_999
    assert not wal.ownership.overdue
    now_ns = 14_000_000_000
    assert wal.ownership.overdue
    delay_ns = 0
    assert wal.write({1: [Operation.appending(1, b"x", 0)]}, sync=False) == {}
    assert wal.ownership.overdue
    assert wal.write({1: [Operation.appending(2, b"x", 0)]}, sync=True) == {}
    assert not wal.ownership.overdue


def test_a_close_ends_the_lease_even_after_a_lost_connection(place: Place) -> None:
    wal = place.opened(lease_ttl_ns=HOUR_NS)
    place.terminate()
    wal.close()
    heir = place.opened(lease_ttl_ns=HOUR_NS)
    wal.close()  # a second time must not end the lease of the next owner
    with pytest.raises(AlreadyOwned):
        place.log().open()
    assert heir.write({1: [append(1)]}, sync=True) == {}


def test_of_many_first_openers_one_wins(place: Place, campaign: Campaign) -> None:
    for _ in range(campaign.rounds(share=3, full=30)):
        here = Place(place.url)
        start = threading.Barrier(4)

        def contend(here: Place = here, start: threading.Barrier = start) -> str:
            start.wait()
            try:
                here.opened()
            except AlreadyOwned:
                return "refused"
            return "won"

        with ThreadPoolExecutor(4) as pool:
            outcomes = sorted(pool.map(lambda _: contend(), range(4)))
        assert outcomes == ["refused", "refused", "refused", "won"]
        campaign.tally.update(outcomes)
        here.close()
    assert campaign.tally["refused"] == 3 * campaign.tally["won"]


# -- the event loop


@pytest.mark.usefixtures("_syncs")
def test_the_event_loop_turns_during_a_sync_of_50_ms(place: Place, campaign: Campaign) -> None:
    wal = place.opened(url=slow_sync(place.url))

    async def count_turns(*, sync: bool) -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        key = wal.tail(1).last_key + 1
        writing = loop.run_in_executor(None, lambda: wal.write({1: [append(key)]}, sync=sync))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        assert await writing == {}
        return turns, loop.time() - begun

    for _ in range(3):
        turns, seconds = asyncio.run(count_turns(sync=True))
        assert seconds >= 0.05
        assert turns > 500
        campaign.tally["turns of the loop during synced writes"] += turns
        campaign.tally["synced writes of at least 50 ms"] += 1
    unsynced = [asyncio.run(count_turns(sync=False))[1] for _ in range(5)]
    assert min(unsynced) < 0.05, "an unsynced group does not wait for the disk"


def test_hard_state_is_synced_whatever_the_group_asks_for(place: Place) -> None:
    seen: list[str] = []
    wal = place.opened(before_statement=seen.append)
    seen.clear()
    assert wal.write({1: [append(1)], 2: [append(1)]}, sync=False) == {}
    assert seen == ["begin", "unsynced", "hold", "touch", "append", "commit"]
    seen.clear()
    group = {1: [append(2)], 2: [Operation(hard_state=HardState(3, "x"))]}
    assert wal.write(group, sync=False) == {}
    assert seen[:2] == ["begin", "hold"]


# -- what is stored


def test_a_partition_used_again_before_the_sweep(place: Place) -> None:
    wal = place.opened()
    many = [append(*range(1, 26), meta={f"name {number}": b"old" for number in range(5)})]
    assert wal.write({1: many, 2: many}, sync=True) == {}
    assert wal.write({1: [DELETE]}, sync=True) == {}
    assert wal.write({1: [append(3, meta={"name 0": b"new"})]}, sync=True) == {}
    left = [30]
    while True:
        more = wal.sweep(limit=10)
        assert wal.read(1) == [Entry(3, b"3")]
        assert wal.meta_scan(1) == [("name 0", b"new")]
        rows = place.sql("SELECT (SELECT count(*) FROM entries) + (SELECT count(*) FROM meta)")
        left.append(rows[0][0] - 2 - 30)
        if not more:
            break
    assert left == [30, 20, 10, 0], "ten rows at a time, and none of the living"
    assert len(place.sql("SELECT 1 FROM partitions")) == 2


def test_damage_and_loss_are_noticed(place: Place) -> None:
    wal = place.opened()
    assert wal.write({number: [append(1, 2, 3)] for number in (1, 2, 3)}, sync=True) == {}
    life = "(SELECT life FROM partitions WHERE partition = %s)"
    place.sql(f"UPDATE entries SET payload = 'x' WHERE key = 2 AND life = {life}", 1)
    place.sql(f"UPDATE entries SET term = 9 WHERE key = 3 AND life = {life}", 2)
    with pytest.raises(Corrupt, match="entry 2 fails") as damage:
        wal.read(1)
    assert damage.value.partition == 1
    assert wal.read(1, first=3) == [Entry(3, b"3")]
    with pytest.raises(Corrupt):
        wal.term_at(2, 3)
    wal.close()
    place.sql(f"DELETE FROM entries WHERE key = 3 AND life = {life}", 3)
    for _ in range(2):
        with pytest.raises(Corrupt, match="acknowledged data is gone") as damage:
            place.log().open()
        assert damage.value.partition == 3


def test_every_statement_follows_an_index(place: Place, campaign: Campaign) -> None:
    """On a table that grew since it was last analysed the planner would sort whole partitions."""
    from fairway.storage.wals.postgres_connections import SQL, Dialler
    from fairway.storage.wals.postgres_rows import ByteaArray, Int8Array

    wal = place.opened()
    many = append(*range(1, 2001), meta={f"name {number}": b"" for number in range(2000)})
    assert wal.write({1: [many], 2: [many]}, sync=True) == {}
    numbers = Int8Array.of([1, 2])
    values = ByteaArray.of([b"a", b"b"])
    arrays = dict.fromkeys(("partitions", "keys", "terms", "checksums"), numbers)
    arrays |= dict.fromkeys(("last_keys", "last_terms", "top_keys", "firsts", "lasts"), numbers)
    single = dict.fromkeys(("partition", "key", "first", "life", "epoch", "ttl_us", "pid"), 1)
    parameters = {
        **arrays,
        **single,
        **dict.fromkeys(("payloads", "names", "values", "votes"), values),
        **dict.fromkeys(("last", "limit", "max_bytes"), 1000),
        **{"name": b"x", "after": b"", "prefix": b"", "before": b"y"},
    }
    connection, _ = Dialler(place.url, schema=place.schema).dial("reader")
    with connection:
        for _ in range(2):  # as the tables are after a burst of writes, and analysed
            for name, text in SQL.items():
                if not any(table in text for table in (b"entries", b"meta", b"partitions")):
                    continue  # the owner and format tables have one row
                if name in ("session", "exists", "create"):
                    continue
                plan = connection.execute(b"EXPLAIN " + text, parameters).fetchall()
                shown = "\n".join(line for (line,) in plan)
                for dreaded in ("Seq Scan", "Bitmap", "Sort", "Join Filter", "Disabled"):
                    assert dreaded not in shown, f"{name}:\n{shown}"
                campaign.tally["plan"] += 1
            place.sql("ANALYZE entries, meta, partitions")
    assert campaign.tally["plan"] >= 30


def test_an_unknown_format_is_refused(place: Place) -> None:
    place.opened().close()
    place.sql("UPDATE format SET version = 2")
    for _ in range(2):
        with pytest.raises(UnknownFormat, match="2"):
            place.log().open()


def test_reads_from_many_threads_while_connections_are_lost(
    place: Place, campaign: Campaign
) -> None:
    wal = place.opened(readers=3)
    assert wal.write({1: [append(*range(1, 101))]}, sync=True) == {}

    def read(number: int) -> tuple[int, int, int]:
        ended = place.terminate("reader") if number % 20 == 10 else 0
        for refused in itertools.count():
            with suppress(TryLater):  # its connection and the one that replaced it were ended
                return len(wal.read(1, first=number % 50 + 1)), ended, refused
        raise AssertionError

    with ThreadPoolExecutor(8) as pool:
        for number, (found, ended, refused) in enumerate(pool.map(read, range(200))):
            assert found == 100 - number % 50
            campaign.tally["reader terminated"] += ended
            campaign.tally["read"] += 1
            campaign.tally["refused for now"] += refused
    assert campaign.tally["reader terminated"] >= 5


def test_a_closed_log_and_a_server_that_is_not_there(place: Place, tmp_path: Path) -> None:
    nowhere = place.log(url=f"postgresql:///none?host={tmp_path}")
    with pytest.raises(TryLater):
        nowhere.open()
    nowhere.close()
    wal = place.opened()
    wal.close()
    for use in (
        wal.maintain,
        wal.sweep,
        lambda: wal.write({1: [append(1)]}, sync=True),
        lambda: wal.tail(1),
    ):
        with pytest.raises(Closing):
            use()
    with pytest.raises(InvalidConfig):
        place.log(url="not an address")
    with pytest.raises(InvalidConfig):
        place.log(lease_ttl_ns=0)
    with pytest.raises(InvalidConfig, match="does not exist"):
        place.log(schema="nothing here").tail(1)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "wals.postgres_" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidConfig, match=r"pip install fairway\[postgres\]"):
        PostgresWal("postgresql:///none")
