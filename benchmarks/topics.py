"""Topics: delivery, posting, overload and recovery, against floors and peers in the same run."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import httpx
import uvloop

from benchmarks.harness import ROOT
from benchmarks.load import neighbours, redis
from benchmarks.load.child import Child, child, wait_until
from benchmarks.load.crowds import CONNECTIONS, Crowds, crowds, group, open_files
from benchmarks.load.http import (
    Poster,
    closed_loop,
    paced,
    percentile,
    post,
    posters,
    watchers,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benchmarks.harness import Report

FLOORS = "benchmarks.load.floors"
RATE = 200
PATH = "/v0/topics/bench"


def run(report: Report, quick: bool) -> None:
    open_files()  # before the servers start, which inherit it
    with tempfile.TemporaryDirectory() as directory:
        topics = {"bench": {}, "urgent": {"priority": 1000}, "calm": {}}
        with (
            child(FLOORS, "fairway", directory, json.dumps(topics)) as server,
            child(FLOORS, "fanout") as fanout,
            child(FLOORS, "echo") as echo,
            child(FLOORS, "echo", "knows_heads") as quick_echo,
        ):
            _delivery(report, server, fanout, quick)
            _posting(report, server, echo, quick_echo, quick)
            _batches(report, server, quick)
            _redis(report, server, quick)
            _overload(report, server, quick)
            _rude_clients(report, server, quick)
            _neighbours(report, server, quick)
    _recovery(report, quick)
    _idle_topics(report)


def _stamped(number: int) -> bytes:
    body = b'{"records":[{"data":{"t":%d,"text":"%064d"}}]}' % (time.monotonic_ns(), number)
    return post(PATH, body)


# Delivery


def _delivery(report: Report, server: Child, fanout: Child, quick: bool) -> None:
    seconds = 2 if quick else 5
    figures: dict[str, list[float]] = {"p50": [], "p99": [], "floor_p50": []}

    def ours() -> float:
        delays = _deliver(server.port, 100, RATE, seconds)
        figures["p50"].append(percentile(delays, 0.5))
        figures["p99"].append(percentile(delays, 0.99))
        return figures["p50"][-1]

    samples = report.alternate(
        report.rounds(full=5),
        delivery=ours,
        floor=lambda: percentile(_deliver(fanout.port, 100, RATE, seconds), 0.5),
    )
    report.figure(
        "delivery_p50_ms", figures["p50"], "ms", "100 watchers, 200 writes/s", target="<= 2"
    )
    report.figure("delivery_p99_ms", figures["p99"], "ms", "the same", target="<= 5")
    report.figure("delivery_floor_p50_ms", samples["floor"], "ms", "bare fan-out, no disk")
    report.ratio("delivery_p50_vs_floor", samples["delivery"], samples["floor"], "<= 2.5")
    samples = report.alternate(
        report.rounds(full=3),
        ours=lambda: percentile(_deliver(server.port, 1000, 20, seconds), 0.99),
        floor=lambda: percentile(_deliver(fanout.port, 1000, 20, seconds), 0.99),
    )
    report.figure("delivery_1000_p99_ms", samples["ours"], "ms", "1,000 watchers, 20 writes/s")
    report.figure("delivery_1000_floor_p99_ms", samples["floor"], "ms", "bare fan-out")
    report.ratio("delivery_1000_p99_vs_floor", samples["ours"], samples["floor"], "<= 2")


def _deliver(port: int, count: int, rate: float, seconds: float) -> list[int]:
    async def measure() -> list[int]:
        delays: list[int] = []
        streams = await watchers(port, f"{PATH}/watch?tail=true", count, delays)
        clients = await posters(port, 8)
        await paced(clients, rate, 0.5, _stamped)
        delays.clear()
        sent = await paced(clients, rate, seconds, _stamped)
        deadline = time.monotonic() + 5
        while len(delays) < sent * count and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for one in (*streams, *clients):
            one.transport.abort()
        if len(delays) < sent * count:
            raise RuntimeError(f"{sent * count - len(delays)} deliveries did not come")
        return delays

    return _run(measure())


# Posting


def _posting(report: Report, server: Child, echo: Child, quick_echo: Child, quick: bool) -> None:
    seconds = 2 if quick else 4
    body = b'{"records":[{"data":{"text":"%064d"}}]}' % 0
    request = post(PATH, body)

    def rate(port: int) -> float:
        answered, statuses = _run(closed_loop(port, 64, seconds, lambda number: request))
        assert set(statuses) == {200}, statuses
        return answered

    samples = report.alternate(
        report.rounds(full=5),
        post=lambda: rate(server.port),
        echo=lambda: rate(echo.port),
        quick_echo=lambda: rate(quick_echo.port),
    )
    report.figure("post_rate", samples["post"], "requests/s", "64 connections, one record, fsync")
    report.figure("echo_rate", samples["echo"], "requests/s", "the same stack, no topics")
    report.figure(
        "quick_echo_rate", samples["quick_echo"], "requests/s", "it knows repeated heads, as we do"
    )
    report.ratio("post_vs_echo", samples["post"], samples["echo"], ">= 0.4")
    report.ratio("post_vs_quick_echo", samples["post"], samples["quick_echo"])


def _batches(report: Report, server: Child, quick: bool) -> None:
    seconds = 2 if quick else 4
    records = [{"data": {"text": f"{number:064d}"}} for number in range(100)]
    body = json.dumps({"records": records}, separators=(",", ":")).encode()
    request = post(PATH + "?return_seqs=false", body)
    payload = body[len(b'{"records":') : -1]

    def ours() -> float:
        answered, statuses = _run(closed_loop(server.port, 64, seconds, lambda number: request))
        assert set(statuses) == {200}, statuses
        return answered * 100

    samples = report.alternate(
        report.rounds(full=5), batch=ours, writer=lambda: _run(_writer_rate(payload, seconds)) * 100
    )
    report.figure("batch_rate", samples["batch"], "records/s", "64 connections, batches of 100")
    report.figure("writer_rate", samples["writer"], "records/s", "the fair writer in-process")
    report.ratio("batch_vs_writer", samples["batch"], samples["writer"], ">= 0.5")


async def _writer_rate(raw: bytes, seconds: float) -> float:
    """Operations a second of the log alone, given the encoded batches."""
    from fairway import Entry, Log, Operation, wal_at
    from fairway.topics.batch import VERSION, RecordBatch, encode_batch

    with tempfile.TemporaryDirectory() as directory:
        async with Log(wal_at(directory)) as log:
            begin = time.monotonic()
            done = 0
            key = 0

            async def one() -> None:
                nonlocal done, key
                while time.monotonic() - begin < seconds:
                    key += 100
                    batch = RecordBatch(VERSION, key - 99, 100, 0, len(raw), raw)
                    operation = Operation((Entry(key, encode_batch(batch)),))
                    await log.submit(1, operation)
                    done += 1

            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(one())
            return done / (time.monotonic() - begin)


# A peer


def _redis(report: Report, server: Child, quick: bool) -> None:
    if not redis.installed():
        reason = "redis-server is not installed"
        report.ratio("vs_redis_batch", None, None, note=reason)
        report.ratio("vs_redis_delivery_p50", None, None, note=reason)
        return
    seconds = 2 if quick else 4
    payload = b'{"text":"%064d"}' % 0
    records = b",".join([b'{"data":%b}' % payload] * 100)
    request = post(PATH + "?return_seqs=false", b'{"records":[%b]}' % records)
    with redis.redis() as port:
        samples = report.alternate(
            report.rounds(full=3),
            ours=lambda: (
                _run(closed_loop(server.port, 16, seconds, lambda number: request))[0] * 100
            ),
            redis=lambda: _run(redis.batch_rate(port, payload, 16, seconds)),
        )
        report.figure("redis_batch_rate", samples["redis"], "records/s", "XADD, 100 in a pipeline")
        report.ratio("vs_redis_batch", samples["ours"], samples["redis"])
        samples = report.alternate(
            report.rounds(full=3),
            ours=lambda: percentile(_deliver(server.port, 100, RATE, seconds), 0.5),
            redis=lambda: percentile(_run(redis.deliver(port, 100, RATE, seconds)), 0.5),
        )
        report.figure("redis_delivery_p50_ms", samples["redis"], "ms", "100 readers, XREAD BLOCK")
        report.ratio("vs_redis_delivery_p50", samples["ours"], samples["redis"])


# Overload


def _overload(report: Report, server: Child, quick: bool) -> None:
    seconds = 20
    ratios: dict[str, list[float]] = {"goodput": [], "peak": [], "quiet": [], "loaded": []}
    slowest: list[float] = []
    growth: list[float] = []
    for number in range(3):
        report.progress(f"overload {number + 1}/3")
        outcome = _overloaded(server, seconds if not quick or number == 0 else 5)
        ratios["goodput"].append(outcome["goodput"])
        ratios["peak"].append(outcome["peak"])
        ratios["quiet"].append(outcome["quiet_p99"])
        ratios["loaded"].append(outcome["loaded_p99"])
        slowest.append(outcome["slowest_ms"])
        growth.append(outcome["rss_growth"])
        assert not outcome["lost"], f"{outcome['lost']} acknowledged records are gone"
        assert not outcome["others"], f"answers beside 200 and 429: {outcome['others']}"
    report.figure("peak_rate", ratios["peak"], "requests/s", "64 connections, closed loop")
    report.figure("slowest_answer_ms", slowest, "ms", "at twice the peak", target="<= 1000")
    report.figure("rss_growth_mib", [value / 2**20 for value in growth], "MiB", "while overloaded")
    report.figure("b4_quiet_p99_ms", ratios["quiet"], "ms", "an urgent topic, nothing else")
    report.figure("b4_loaded_p99_ms", ratios["loaded"], "ms", "the same at twice the peak")
    report.ratio("goodput_at_2x", ratios["goodput"], ratios["peak"], ">= 0.8")
    report.ratio("b4_p99_at_2x", ratios["loaded"], ratios["quiet"], "<= 3")


def _overloaded(server: Child, seconds: float) -> dict[str, Any]:
    request = post(PATH, b'{"records":[{"data":{"text":"%064d"}}]}' % 0)
    peak, _ = _run(closed_loop(server.port, 64, 3, lambda number: request))
    quiet = _urgent_delays(_probe(server.port, 6))  # a p99 of 300
    head, rss = _head(server.port), server.rss_bytes
    probe = _probe(server.port, seconds)
    flood = _run(_flood(server.port, 2 * peak, seconds, request))
    loaded = _urgent_delays(probe)
    return {
        "peak": peak,
        "goodput": flood.statuses[200] / flood.seconds,
        "slowest_ms": flood.slowest_ns / 1e6,
        "others": {code: n for code, n in flood.statuses.items() if code not in (200, 429)},
        "quiet_p99": percentile(quiet, 0.99),
        "loaded_p99": percentile(loaded, 0.99),
        "rss_growth": server.rss_bytes - rss,
        "lost": flood.statuses[200] - _readable(server.port, head),
    }


def _probe(port: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.load.probe", str(port), "50", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def _urgent_delays(probe: subprocess.Popen[str]) -> list[int]:
    told = json.loads(probe.communicate()[0])
    if len(told["delays"]) < told["sent"]:
        raise RuntimeError(f"{told['sent'] - len(told['delays'])} urgent deliveries did not come")
    delays: list[int] = told["delays"]
    return delays


class _Flood:
    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.slowest_ns = 0
        self.seconds = 0.0


async def _flood(port: int, rate: float, seconds: float, request: bytes) -> _Flood:
    """Open loop at `rate` over as many connections as that takes, up to 512."""
    flood = _Flood()
    clients = await posters(port, 512)
    free = deque(clients)  # in turn, or the server closes those that never speak

    def answered(client: Poster, status: int, elapsed_ns: int) -> None:
        flood.statuses[status] += 1
        flood.slowest_ns = max(flood.slowest_ns, elapsed_ns)
        free.append(client)

    for client in clients:
        client.answered = answered
    begin = time.monotonic_ns()
    sent = 0
    while (now := time.monotonic_ns()) - begin < seconds * 1e9:
        due = int((now - begin) / 1e9 * rate)
        while sent < due and free:
            sent += 1
            free.popleft().send(request)
        sent = max(sent, due)  # what found no connection was not offered: a client has only so many
        await asyncio.sleep(0.001)
    flood.seconds = (time.monotonic_ns() - begin) / 1e9
    while any(client.busy for client in clients):
        await asyncio.sleep(0.01)
    for client in clients:
        client.transport.close()
    return flood


def _head(port: int) -> int:
    return int(httpx.get(f"http://127.0.0.1:{port}{PATH}").json()["head_seq"])


def _readable(port: int, after: int) -> int:
    """How many records can be read after a seq."""
    count = 0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        while True:
            answer = client.post(f"{PATH}/diff", json={"from_seq": after, "limit": 1000}).json()
            count += len(answer["records"])
            after = answer["next_from_seq"]
            if answer["caught_up"]:
                return count


# Clients that do not wait, and clients without a key


APPEND = b'{"records":[{"data":{"text":"%064d"}}]}' % 0
KEY = "key-of-the-benchmark"
IMPATIENT = (64, 1_000, 2_000, 5_000, CONNECTIONS)
STRANGERS = 6_000


def _rude_clients(report: Report, server: Child, quick: bool) -> None:
    names = ("goodput_impatient", "retry_after_admitted_ratio", "keyed_goodput_under_strangers")
    if not open_files():
        for name in names:
            report.ratio(name, None, None, note="this process may not open 17,000 files")
        return
    with crowds() as clients:
        _impatient(report, server, clients, quick)
        _patient(report, server, clients, quick)
        _strangers(report, clients, quick)


def _impatient(report: Report, server: Child, clients: Crowds, quick: bool) -> None:
    seconds, request = 2 if quick else 4, post(PATH, APPEND)
    worst: list[float] = []
    peak: list[float] = []
    slowest: list[float] = []
    for number in range(report.rounds(full=3)):
        report.progress(f"impatient {number + 1}")
        rates: dict[int, float] = {}
        for count in IMPATIENT:
            impatient = group("impatient", count, request)
            _settle(server.port)
            # Until all of them are connected and were answered once.
            (met,) = clients.run(server.port, impatient, warm=1 + count / 2000, seconds=seconds)
            rates[count] = met.rate()
            if count == CONNECTIONS:
                slowest.append(met.slowest_ms)
            assert set(met.statuses) <= {200, 429}, met
        peak.append(max(rates[64], rates[1_000]))
        worst.append(min(rates[count] for count in IMPATIENT[2:]))
    report.figure(
        "impatient_peak_rate", peak, "requests/s", "the better of 64 and 1,000 connections"
    )
    report.figure("impatient_rate", worst, "requests/s", "the worst of 2,000, 5,000 and 8,000")
    report.figure("impatient_slowest_ms", slowest, "ms", "8,000 connections that repeat at once")
    report.ratio("goodput_impatient", worst, peak, ">= 0.7")


def _patient(report: Report, server: Child, clients: Crowds, quick: bool) -> None:
    seconds, request = 2 if quick else 4, post(PATH, APPEND)
    admitted: list[float] = []
    returned: list[float] = []
    for number in range(report.rounds(full=3)):
        report.progress(f"patient {number + 1}")
        patient = group("patient", CONNECTIONS, request)
        _settle(server.port)
        (met,) = clients.run(server.port, patient, warm=5, seconds=seconds)
        admitted.append(met.returned.get(200, 0))
        returned.append(max(sum(met.returned.values()), 1))
    report.figure("returned", returned, "requests", "8,000 clients, after the time they were told")
    report.ratio("retry_after_admitted_ratio", admitted, returned, ">= 0.8")


def _strangers(report: Report, clients: Crowds, quick: bool) -> None:
    """64 connections with a key, alone and among those that have none; and how the server is."""
    seconds = 3 if quick else 5
    keyed = group("impatient", 64, post(PATH, APPEND, key=KEY))
    strangers = group("impatient", STRANGERS, post(PATH, APPEND))
    alone: list[float] = []
    among: list[float] = []
    health: list[float] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        child(FLOORS, "fairway", directory, '{"bench": {}}', KEY) as server,
    ):
        for number in range(report.rounds(full=3)):
            report.progress(f"strangers {number + 1}")
            _settle(server.port)
            alone.append(clients.run(server.port, keyed, warm=1, seconds=seconds)[0].rate())
            clients.begin(server.port, keyed, strangers, warm=3, seconds=seconds)
            health.append(_slowest_health(server.port, 3 + seconds) * 1000)
            known, unknown = clients.wait()
            assert set(known.statuses) == {200}, known
            assert set(unknown.statuses) <= {401}, unknown
            among.append(known.rate())
    report.figure("keyed_rate", alone, "requests/s", "64 connections with a key")
    report.figure("keyed_rate_under_strangers", among, "requests/s", "and 6,000 without one")
    report.figure(
        "health_slowest_ms", health, "ms", "a new connection each, among them", target="<= 1000"
    )
    report.ratio("keyed_goodput_under_strangers", among, alone, ">= 0.5")


def _settle(port: int) -> None:
    """Wait until the server has seen that the clients of the last measurement left."""
    httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=120).raise_for_status()


def _slowest_health(port: int, seconds: float) -> float:
    """The slowest answer to who asks how the server is, each on a connection of its own."""
    slowest = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path in ("/healthz", "/readyz", "/metrics"):
            begin = time.monotonic()
            headers = {"authorization": f"Bearer {KEY}"}
            httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=30)
            slowest = max(slowest, time.monotonic() - begin)
        time.sleep(0.05)
    return slowest


# Neighbours


def _neighbours(report: Report, server: Child, quick: bool) -> None:
    """Routers, a stalled watcher, a topic of a million records that is deleted."""
    port, seconds, rounds = server.port, 3 if quick else 5, report.rounds(full=5)

    def p99(coroutine: Coroutine[Any, Any, Any]) -> float:
        return percentile(_run(coroutine), 0.99)

    def calm() -> float:
        return p99(neighbours.delays(port, seconds, write="calm", watch="calm"))

    neighbours.make_routers(port)
    hops = [
        p99(neighbours.delays(port, seconds, write="hop0", watch="hop2")) for _ in range(rounds)
    ]
    report.figure("two_hops_p99_ms", hops, "ms", "two routers, 200 writes/s", target="<= 5")

    growth: list[float] = []

    def stalled() -> float:
        seen, grown = _run(neighbours.delays_beside_a_stalled_watcher(server, seconds))
        growth.append(grown / 2**20)
        return percentile(seen, 0.99)

    samples = report.alternate(rounds, stalled=stalled, calm=calm)
    report.figure("stalled_rss_growth_mib", growth, "MiB", "a watcher that never reads")
    report.ratio("stalled_p99_vs_calm", samples["stalled"], samples["calm"], "<= 1.5")

    def deleting() -> float:
        neighbours.fill(port, "million")
        return p99(neighbours.delays_while_deleting(port, "million", seconds))

    samples = report.alternate(rounds, deleting=deleting, calm=calm)
    report.figure("calm_p99_ms", samples["calm"], "ms", "10 watchers, 200 writes/s")
    report.ratio("delete_million_p99_vs_calm", samples["deleting"], samples["calm"], "<= 2")


# Recovery


def _recovery(report: Report, quick: bool) -> None:
    for snapshots in (False, True):
        times = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as directory:
                report.progress(f"recovery, snapshots {snapshots}: building")
                with child("benchmarks.load.records", directory, str(int(snapshots))) as builder:
                    builder.kill()
                times.append(_time_to_ready(directory))
            if quick:
                break
        name = "recovery_snapshot_s" if snapshots else "recovery_s"
        target = "<= 2" if snapshots else "<= 8"
        note = "1,000,000 records, 10,000 topics, 10 % deleted, kill -9"
        report.figure(name, times, "s", note, target=target)


def _time_to_ready(directory: str) -> float:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    command = [sys.executable, "-m", "fairway", "serve", "--data", directory, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            return wait_until(60, ready)
        finally:
            process.kill()


def _idle_topics(report: Report) -> None:
    with tempfile.TemporaryDirectory() as directory:
        report.progress("idle topics: building")
        with child("benchmarks.load.records", directory, "idle") as builder:
            builder.kill()
        with tempfile.TemporaryDirectory() as empty, child(FLOORS, "fairway", empty) as server:
            before = server.rss_bytes
        with child(FLOORS, "fairway", directory) as server:
            each = (server.rss_bytes - before) / 100_000
    report.figure("idle_topic_bytes", each, "bytes", "100,000 idle topics", target="<= 1024")


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return uvloop.run(coroutine)
