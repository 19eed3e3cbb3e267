"""The fair log against bare loops, against one commit per append, and against a plain FIFO.

256-byte entries over 64 partitions throughout. Throughput is measured with 2,048 appends in flight:
each partition has a client that keeps 32 unacknowledged, awaits the oldest and sends the next.
One task for each append in flight would cost the event loop more, and the ratios to the bare loops
would be lower. The flood is counted after a warm-up of the same load; without it, it is higher.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairway.core.priority import WEIGHTS
from fairway.core.ready import Ready
from fairway.errors import Backpressure
from fairway.storage.log import Log
from fairway.storage.wal import Entry, Operation
from fairway.storage.wals.sqlite import SqliteWal

if TYPE_CHECKING:
    from benchmarks.harness import Report
    from fairway.storage.wal import Wal

PARTITIONS = 64
IN_FLIGHT = 2048
PAYLOAD = os.urandom(256)
BATCH = 1024  # of the bare loops
ENTRIES = 100_000  # behind one sample of throughput
SYNC_S = 0.002  # the simulated sync
COLD_RATE = 50  # appends a second and partition, open loop
FLOOD_SECONDS = 1.5
WARM_UP_SECONDS = 0.5  # of the same load, not counted: a new file grows and caches are cold


def run(report: Report, quick: bool) -> None:
    report.figure("uvloop", float(_runner() is not asyncio.run), "", "1 if the loop is uvloop")
    _sqlite(report)
    _rocksdb(report)
    _group_commit(report)
    _flood(report)
    _ready(report)


# Throughput against the bare store


def _sqlite(report: Report) -> None:
    samples = report.alternate(
        report.rounds(full=7),
        raw_sqlite=lambda: _in_directory(_raw_sqlite),
        log_sqlite=lambda: _in_directory(lambda at: _log_throughput(SqliteWal(at))),
    )
    report.figure("sqlite_raw", samples["raw_sqlite"], "entries/s", "executemany of 1,024, FULL")
    report.figure("sqlite_log", samples["log_sqlite"], "entries/s", "2,048 appends in flight")
    report.ratio("sqlite_vs_raw", samples["log_sqlite"], samples["raw_sqlite"], ">= 0.6")


def _rocksdb(report: Report) -> None:
    try:
        import rocksdict  # noqa: F401  (only to know whether it is there)
    except ImportError:
        report.ratio("rocksdb_vs_raw", None, None, note="rocksdict is not installed")
        return
    from fairway.storage.wals.rocksdb import RocksdbWal

    samples = report.alternate(
        report.rounds(full=7),
        raw_rocksdb=lambda: _in_directory(_raw_rocksdb),
        log_rocksdb=lambda: _in_directory(lambda at: _log_throughput(RocksdbWal(at))),
    )
    report.figure("rocksdb_raw", samples["raw_rocksdb"], "entries/s", "WriteBatch of 1,024, sync")
    report.figure("rocksdb_log", samples["log_rocksdb"], "entries/s", "2,048 appends in flight")
    report.ratio("rocksdb_vs_raw", samples["log_rocksdb"], samples["raw_rocksdb"], ">= 0.35")


def _raw_sqlite(directory: Path) -> float:
    """One thread, the same table, a transaction of 1,024 rows at a time, synced."""
    import apsw

    from fairway.storage.wals.sqlite_tables import SCHEMA

    connection = apsw.Connection(str(directory / "raw.db"), vfs="unix")
    connection.pragma("journal_mode", "WAL")
    connection.pragma("synchronous", "FULL")
    connection.execute(SCHEMA)
    keys = [0] * PARTITIONS
    begin = time.perf_counter()
    for _ in range(ENTRIES // BATCH):
        rows = []
        for number in range(BATCH):
            partition = number % PARTITIONS
            keys[partition] += 1
            rows.append((partition, keys[partition], 0, 0, PAYLOAD))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    rate = ENTRIES // BATCH * BATCH / (time.perf_counter() - begin)
    connection.close()
    return rate


def _raw_rocksdb(directory: Path) -> float:
    """One thread, a batch of 1,024 puts at a time, synced."""
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    database = rocksdict.Rdict(str(directory / "raw"), options)
    durable = rocksdict.WriteOptions()
    durable.sync = True
    keys = [0] * PARTITIONS
    begin = time.perf_counter()
    for _ in range(ENTRIES // BATCH):
        batch = rocksdict.WriteBatch(raw_mode=True)
        for number in range(BATCH):
            partition = number % PARTITIONS
            keys[partition] += 1
            batch.put(b"%010d:%020d" % (partition, keys[partition]), PAYLOAD)
        database.write(batch, durable)
    rate = ENTRIES // BATCH * BATCH / (time.perf_counter() - begin)
    database.close()
    return rate


def _log_throughput(wal: Wal) -> float:
    async def measure() -> float:
        async with Log(wal) as log:
            begin = time.perf_counter()
            await _closed_loop(log, IN_FLIGHT, ENTRIES)
            return ENTRIES / (time.perf_counter() - begin)

    return _run(measure())


async def _closed_loop(log: Log, in_flight: int, entries: int) -> None:
    """One client a partition, each with its share of the appends in flight, in a window."""
    left = entries
    window = in_flight // PARTITIONS

    async def client(partition: int) -> None:
        nonlocal left
        waiting: deque[asyncio.Future[int]] = deque()
        while left > 0:
            left -= 1
            waiting.append(log.append(partition, PAYLOAD))
            if len(waiting) == window:
                await waiting.popleft()
        for waiter in waiting:
            await waiter

    async with asyncio.TaskGroup() as clients:
        for partition in range(PARTITIONS):
            clients.create_task(client(partition))


# Group commit


class SlowSync(SqliteWal):
    """SQLite whose sync takes 2 ms more, as on a disk that really waits."""

    def write(self, group: Any, *, sync: bool) -> Any:
        failures = super().write(group, sync=sync)
        if sync:
            time.sleep(SYNC_S)
        return failures


def _group_commit(report: Report) -> None:
    syncs_per_entry = []

    def grouped(directory: Path) -> float:
        async def measure() -> float:
            entries = 20_000
            async with Log(SlowSync(directory)) as log:
                begin = time.perf_counter()
                await _closed_loop(log, PARTITIONS, entries)
                elapsed = time.perf_counter() - begin
                syncs_per_entry.append(log.statistics()[0].syncs_per_entry)
                return entries / elapsed

        return _run(measure())

    samples = report.alternate(
        report.rounds(full=5),
        commit_per_append=lambda: _in_directory(_commit_per_append),
        group_commit=lambda: _in_directory(grouped),
    )
    report.figure("commit_per_append", samples["commit_per_append"], "entries/s", "sync 2 ms")
    report.figure("group_commit", samples["group_commit"], "entries/s", "one append a partition")
    report.figure("syncs_per_entry", syncs_per_entry, "", "of group commit", target="<= 0.0334")
    report.ratio(
        "group_commit_gain", samples["group_commit"], samples["commit_per_append"], ">= 30"
    )


def _commit_per_append(directory: Path) -> float:
    wal = SlowSync(directory)
    wal.open()
    entries = 300
    begin = time.perf_counter()
    for number in range(entries):
        key = number // PARTITIONS + 1
        wal.write({number % PARTITIONS: [Operation((Entry(key, PAYLOAD),))]}, sync=True)
    rate = entries / (time.perf_counter() - begin)
    wal.close()
    return rate


# A hot partition and 63 cold ones


@dataclass
class Load:
    """What the cold partitions see: latencies from the intended send time, in milliseconds."""

    latencies_ms: list[float]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.latencies_ms, n=100)[98]


Append = Callable[[int], "asyncio.Future[int]"]


def _flood(report: Report) -> None:
    hot: list[float] = []

    def fair(flooded: bool) -> Callable[[Path], float]:
        async def measure(directory: Path) -> float:
            async with Log(SlowSync(directory)) as log:
                load = await _open_loop(lambda p: log.append(p, PAYLOAD), flooded=flooded)
                if flooded:
                    hot.append(log.last_key(0) / (WARM_UP_SECONDS + FLOOD_SECONDS))
                return load.p99

        return lambda directory: _run(measure(directory))

    def single_fifo(directory: Path) -> float:
        async def measure() -> float:
            async with SingleFifo(SlowSync(directory)) as fifo:
                return (await _open_loop(fifo.append, flooded=True)).p99

        return _run(measure())

    samples = report.alternate(
        report.rounds(full=7),
        quiet=lambda: _in_directory(fair(False)),
        flooded=lambda: _in_directory(fair(True)),
        fifo=lambda: _in_directory(single_fifo),
    )
    report.figure("cold_p99_quiet", samples["quiet"], "ms", "63 partitions, 50 appends/s each")
    report.figure("cold_p99_flooded", samples["flooded"], "ms", "the 64th kept full")
    report.figure("cold_p99_fifo", samples["fifo"], "ms", "the same on one global FIFO")
    report.figure("hot_rate", hot, "entries/s", "what the flooded partition got meanwhile")
    report.ratio("cold_p99_under_flood", samples["flooded"], samples["quiet"], "<= 3")
    report.ratio("cold_p99_under_flood_fifo", samples["fifo"], samples["quiet"])


async def _open_loop(append: Append, *, flooded: bool) -> Load:
    load = Load([])
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        if flooded:
            tasks.create_task(_hot(append, stop))
        await _cold(append, load)
        stop.set()
    return load


async def _cold(append: Append, load: Load) -> None:
    """Send on schedule, whatever the answers: a slow answer must not slow the questions."""
    gap = 1 / (COLD_RATE * (PARTITIONS - 1))
    warm = int(WARM_UP_SECONDS / gap)
    count = warm + int(FLOOD_SECONDS / gap)
    begin = time.perf_counter()
    pending = []

    def done(intended: float) -> Callable[[asyncio.Future[int]], None]:
        return lambda _: load.latencies_ms.append((time.perf_counter() - intended) * 1e3)

    for number in range(count):
        intended = begin + number * gap
        if (early := intended - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        waiter = append(1 + number % (PARTITIONS - 1))
        if number >= warm:
            waiter.add_done_callback(done(intended))
        pending.append(waiter)
    for waiter in pending:
        await waiter


async def _hot(append: Append, stop: asyncio.Event) -> None:
    """Keep partition 0 as full as it gets."""
    while not stop.is_set():
        try:
            for _ in range(64):
                append(0)
            await asyncio.sleep(0)
        except Backpressure as refusal:
            await asyncio.sleep(refusal.retry_after_ns / 1e9)


class SingleFifo:
    """What one would write first: one bounded queue, groups of 1,024 in order of arrival."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._queue: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._keys = [0] * PARTITIONS
        self._awake = asyncio.Event()
        self._stopping = False

    def append(self, partition: int) -> asyncio.Future[int]:
        if partition == 0 and len(self._queue) >= 4096:
            raise Backpressure("fifo", depth=4096, limit="4096 items", retry_after_ns=1_000_000)
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.append((partition, waiter))
        self._awake.set()
        return waiter

    async def __aenter__(self) -> SingleFifo:
        self._wal.open()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self._work())
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._stopping = True
        self._awake.set()
        await self._tasks.__aexit__(None, None, None)
        self._wal.close()

    async def _work(self) -> None:
        while self._queue or not self._stopping:
            await self._awake.wait()
            taken = [self._queue.popleft() for _ in range(min(len(self._queue), 1024))]
            if not taken:
                self._awake.clear()
                continue
            group: dict[int, list[Operation]] = {}
            for partition, _ in taken:
                self._keys[partition] += 1
                operation = Operation((Entry(self._keys[partition], PAYLOAD),))
                group.setdefault(partition, []).append(operation)
            await asyncio.to_thread(self._wal.write, group, sync=True)
            for _, waiter in taken:
                waiter.set_result(0)


# The ready queue


def _ready(report: Report) -> None:
    samples = report.alternate(
        report.rounds(full=7),
        ready_10=lambda: _ready_us(10),
        ready_100k=lambda: _ready_us(100_000),
    )
    report.figure("ready_us_10", samples["ready_10"], "us", "mark + take + release, 10 ready")
    report.figure("ready_us", samples["ready_100k"], "us", "the same, 100,000 ready", target="<= 3")
    report.ratio("ready_growth", samples["ready_100k"], samples["ready_10"], "<= 2")


def _ready_us(keys: int) -> float:
    ready: Ready[int, Any] = Ready(WEIGHTS)
    bands = list(WEIGHTS)
    for key in range(keys):
        ready.mark(key, bands[key % len(bands)], key)
    turns = 200_000
    begin = time.perf_counter()
    for now_ns in range(keys, keys + turns):
        key = ready.take()
        assert key is not None
        ready.release(key, now_ns)
        ready.mark(key, bands[key % len(bands)], now_ns)
    return (time.perf_counter() - begin) / turns * 1e6


def _in_directory(measure: Callable[[Path], float]) -> float:
    directory = Path(tempfile.mkdtemp(prefix="fairway-bench-"))
    try:
        return measure(directory)
    finally:
        shutil.rmtree(directory)


def _runner() -> Callable[[Coroutine[Any, Any, float]], float]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _run(measure: Coroutine[Any, Any, float]) -> float:
    return _runner()(measure)
