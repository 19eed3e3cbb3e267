"""Pressure as clients see it: the ladder up and down under real load, and slow readers beside it.

Pressure costs latency and refusals before acceptance, never data. Where a test says `force`, the
governor is replaced by its own answer to a chosen pressure; elsewhere the load is real.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairway.app import Fairway
from fairway.core.lanes import LaneLimits
from fairway.core.pressure import Governor, Ladder, PressureConfig
from fairway.runtime.turn import TurnBudget
from fairway.storage.writer import WriterConfig
from fairway.topics.engine import TopicsConfig
from tests.support.log_vfs import HookedVFS, hooked_vfs
from tests.support.server import Api, Events, Served, run, serving, until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Campaign

LEVELS = (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)
MIB = 1024 * 1024
RECORD = {"records": [{"data": 1}]}


def ladder_at(pressure: float) -> Ladder:
    """What the governor says when the pressure has been this for long."""
    config = PressureConfig(rise=1.0, fall=1.0, defer_samples=1)
    return Governor(config).sample({"forced": pressure}, pressure >= 0.99)


class Forced:
    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder

    def sample(self, signals: object, ingest_full: bool) -> Ladder:
        return self.ladder


def force(served: Served, pressure: float) -> Ladder:
    """Hold the pressure at this level from now on."""
    sampler = served.app.kernel.governor
    sampler._governor = Forced(ladder_at(pressure))  # type: ignore[assignment]
    return sampler.sample()


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedVFS]:
    with hooked_vfs(monkeypatch) as made:
        yield made


# --- the whole ladder, under load


def test_10_real_load_climbs_every_rung_and_comes_down_again(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    """Checklist 9 and 10: a 429 never appends, has Retry-After and detail.retry_after_ms."""
    slow_s = 0.02
    disk = threading.Event()

    def slow_disk(step: str, path: str) -> None:
        if step == "sync":
            disk.wait(slow_s)  # a disk that takes its time, which is what fills the lanes

    rungs: list[Ladder] = []
    windows: set[int] = set()
    acknowledged: list[int] = []
    refusals: list[Any] = []

    async def post(api: Api) -> int:
        answer = await api.post("/v0/topics/load", RECORD)
        if answer.status == 200:
            acknowledged.append(answer.json["first_seq"])
        else:
            assert (answer.status, answer.code) == (429, "throttled"), answer
            detail = answer.error["detail"]
            assert detail["retry_after_ms"] >= 1
            assert int(answer.header("retry-after") or 0) >= 1
            refusals.append(detail)
        return answer.status

    async def write(api: Api, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await post(api)

    async def scenario() -> None:
        limits = LaneLimits(items=16, size=MIB)
        app = Fairway(tmp_path, writer=WriterConfig(lane=limits, total=limits))
        async with serving(tmp_path, app=app) as served:
            api, topics = served.api, served.app.topics
            await api.append("load", "first")
            await api.put("/v0/topics/low", {"priority": -1000})
            watcher, low = await api.watch("load"), await api.watch("low")
            for stream in (watcher, low):
                await stream.named("caught-up")

            def note(ladder: Ladder) -> None:
                rungs.append(ladder)
                windows.add(topics.kernel.partitions.linger_ns)

            topics.kernel.governor.listen(note)
            vfs.hook = slow_disk
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for _ in range(48):
                    group.create_task(write(api, stop))
                await until(lambda: any(ladder.refuse for ladder in rungs))
                while await post(api) != 429:
                    pass
                ready = (await api.get("/readyz")).json
                assert ready["pressure"] > 0.5
                assert ready["pressure_cause"] is not None
                assert ready["writable"] is True, "busy is not broken"
                while (
                    await api.post("/v0/topics/low", {**RECORD, "disable_backpressure": True})
                ).status != 200:
                    pass
                assert (await api.diff("low"))["head_seq"] >= 1, "withheld, and pollable"
                stop.set()
            vfs.hook = lambda step, path: None
            await until(lambda: rungs[-1].coalesce_window_ns == 0 and not rungs[-1].defer)
            assert rungs[-1].pressure < 0.2
            assert topics.kernel.partitions.linger_ns == 0, "the commit window is closed again"

            assert any(
                ladder.coalesce_window_ns and not ladder.commit_window_ns for ladder in rungs
            )
            assert any(ladder.commit_window_ns and not ladder.defer for ladder in rungs)
            assert any(ladder.defer and not ladder.refuse for ladder in rungs)
            assert max(windows) > 5_000_000, "the writer was told to wait for company"
            assert refusals
            assert any("limit" not in detail for detail in refusals)

            await api.append("load", "last")
            head = (await api.state("load"))["head_seq"]
            assert sorted(acknowledged) == list(range(2, head)), "refused, yet appended"
            assert await watcher.seqs(head - 1) == list(range(2, head + 1)), "late, and whole"
            assert len(await low.records(1)) == 1, "the withheld push came"
            single = await api.append("load", 1, 2, 3)
            frames = [await watcher.named("record") for _ in range(3)]
            assert [frame.seqs for frame in frames] == [[seq] for seq in single["seqs"]]

    run(scenario(), within_s=60)


# --- what a client sees, by pressure level


async def follow(api: Api, topic: str, **config: Any) -> Events:
    await api.put(f"/v0/topics/{topic}", config)
    stream = await api.watch(topic)
    await stream.named("caught-up")
    return stream


def test_what_a_client_sees_healthy_each_record_is_its_own_frame(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            force(served, 0.1)
            stream = await follow(served.api, "t")
            await served.api.append("t", *range(5))
            frames = [await stream.named("record") for _ in range(5)]
            assert [frame.seqs for frame in frames] == [[1], [2], [3], [4], [5]]

    run(scenario())


def test_what_a_client_sees_under_mild_pressure_frames_are_coalesced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            ladder = force(served, 0.3)
            assert 0 < ladder.coalesce_window_ns < 20_000_000
            stream = await follow(served.api, "t")
            await served.api.append("t", *range(5))
            assert (await stream.named("record")).seqs == [1, 2, 3, 4, 5]
            assert served.app.topics.kernel.partitions.linger_ns == 0, "acks are as fast as ever"

    run(scenario())


def test_what_a_client_sees_under_heavy_pressure_low_priority_waits_and_can_be_polled(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            low, high = await follow(api, "low", priority=-1000), await follow(api, "high")
            ladder = force(served, 0.9)
            assert ladder.defer
            assert (
                served.app.topics.kernel.partitions.linger_ns == ladder.commit_window_ns > 5_000_000
            )
            began = time.monotonic()
            await api.append("low", "waits")
            took_s = time.monotonic() - began
            assert took_s >= ladder.commit_window_ns / 1e9, "slower acknowledgements"
            await api.append("high", "goes")
            assert (await high.named("record")).seqs == [1]
            assert (await api.diff("low"))["records"][0]["data"] == "waits"
            with pytest.raises(TimeoutError):
                await low.next(within_s=took_s * 10)
            force(served, 0.0)
            assert (await low.named("record")).seqs == [1], "and comes when there is room"

    run(scenario())


def test_what_a_client_sees_saturated_a_429_before_anything_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            stream = await follow(api, "t")
            assert force(served, 1.0).refuse
            for path in ("/v0/topics/t", "/v0/topics/new"):
                answer = await api.post(path, {**RECORD, "idempotency_key": "k"})
                assert (answer.status, answer.code) == (429, "throttled")
                assert answer.header("retry-after") == "1"
                assert answer.error["detail"] == {"retry_after_ms": 200}
            counted = (await api.get("/metrics")).body.decode()
            assert 'fairway_requests_throttled_total{cause="pressure"} 2\n' in counted
            assert (await api.get("/v0/topics/new")).status == 404
            assert (await api.state("t"))["head_seq"] == 0
            bypass = await api.post("/v0/topics/t", {**RECORD, "disable_backpressure": True})
            assert (bypass.status, bypass.json["first_seq"]) == (200, 1)
            assert (await api.diff("t"))["next_from_seq"] == 1, "reading is not refused"
            assert (await stream.named("record")).seqs == [1]
            force(served, 0.0)
            again = await api.post("/v0/topics/t", {**RECORD, "idempotency_key": "k"})
            assert (again.json["first_seq"], again.json["deduped"]) == (2, False)

    run(scenario())


@pytest.mark.parametrize("pressure", LEVELS)
def test_what_a_client_sees_when_a_cap_crosses_its_cursor_at_any_pressure(
    tmp_path: Path, pressure: float
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            force(served, pressure)
            await api.put("/v0/topics/t", {"cap_records": 2, "priority": 900})
            for number in range(3):
                body = {"records": [{"data": number}] * 3, "disable_backpressure": True}
                assert (await api.post("/v0/topics/t", body)).status == 200
            page = await api.diff("t", 1)
            gap = page["tombstone"]
            assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (2, 7, "cap")
            stream = await api.watch("t", "?from_seq=1")
            told = await stream.next()
            assert (told.name, told.data["gap_from"], told.data["gap_to"]) == ("tombstone", 2, 7)
            assert await stream.seqs(2) == [8, 9]

    run(scenario())


# --- the same, whatever the pressure


def plan(rng: random.Random) -> list[tuple[str, Any]]:
    """A life of a topic: appends, deletes, changes of its cap, and reads in between."""
    steps: list[tuple[str, Any]] = []
    head = 0
    for _ in range(rng.randint(8, 20)):
        match rng.choice(("append", "append", "append", "delete", "cap", "read", "read")):
            case "append":
                count = rng.randint(1, 6)
                head += count
                tags = [rng.choice("abc") for _ in range(count)]
                steps.append(("append", [{"data": rng.random(), "tag": tag} for tag in tags]))
            case "delete":
                body: dict[str, Any] = {"before_seq": rng.randint(0, head + 2)}
                if rng.random() < 0.5:
                    body["match"] = rng.choice("abc")
                steps.append(("delete", body))
            case "cap":
                steps.append(("cap", {"cap_records": rng.choice((0, 3, 10))}))
            case _:
                body = {"from_seq": rng.randint(0, head), "limit": rng.randint(1, 10)}
                if rng.random() < 0.3:
                    body["match"] = rng.choice("abc")
                steps.append(("read", body))
    return [*steps, ("read", {"limit": 1000, "include_tags": True})]


async def carry_out(api: Api, topic: str, steps: list[tuple[str, Any]]) -> list[Any]:
    """What a reader of `diff` sees on the way, less names and times."""
    seen = []
    await api.put(f"/v0/topics/{topic}", {"auto_priority": False})
    for step, body in steps:
        if step == "append":
            whole = {"records": body, "disable_backpressure": True}
            answer = await api.post(f"/v0/topics/{topic}", whole)
            assert answer.status == 200, answer
            seen.append(answer.json["seqs"])
        elif step == "cap":
            assert (await api.put(f"/v0/topics/{topic}", body)).status == 200
        elif step == "delete":
            seen.append((await api.post(f"/v0/topics/{topic}/delete", body)).json["deleted"])
        else:
            page = await api.diff(topic, **body)
            for record in page["records"]:
                del record["$ts"]
            del page["topic"], page["epoch"]
            seen.append(page)
    return seen


async def push_all(api: Api, topic: str, count: int) -> list[tuple[int, Any]]:
    """Append one by one with a watcher on; what it was pushed, whatever the frames."""
    stream = await follow(api, topic, priority=-5)
    for number in range(count):
        body = {"records": [{"data": number}], "disable_backpressure": True}
        assert (await api.post(f"/v0/topics/{topic}", body)).status == 200
    return [(record["$seq"], record["data"]) for record in await stream.records(count)]


def test_6_the_same_diff_at_every_forced_pressure(campaign: Campaign, tmp_path: Path) -> None:
    """Checklist 6: the scheduler changes the order of pushes only."""
    rounds = campaign.rounds(share=5, full=100)

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            for number in range(rounds):
                steps = plan(campaign.random(number))
                outcomes = []
                for pressure in LEVELS:
                    force(served, pressure)
                    topic = f"same.{number}.{int(pressure * 100)}"
                    outcomes.append(await carry_out(served.api, topic, steps))
                    campaign.tally["lives"] += 1
                assert all(outcome == outcomes[0] for outcome in outcomes), number

    run(scenario(), within_s=60 + rounds * 20)


def test_the_same_records_are_pushed_at_every_forced_pressure(tmp_path: Path) -> None:
    """A B0 topic ages while it is withheld, so it is pushed late and not never."""

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            expected = [(seq, seq - 1) for seq in range(1, 21)]
            for pressure in LEVELS:
                force(served, pressure)
                name = f"pushed.{int(pressure * 100)}"
                assert await push_all(served.api, name, 20) == expected, pressure

    run(scenario(), within_s=60)


# --- bands


def test_7_no_band_starves_while_the_top_band_is_saturated(tmp_path: Path) -> None:
    """Checklist 7, thin: the bound itself is proved in virtual time, below HTTP."""

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            priorities = {"b0": -900, "b1": 100, "b2": 300, "b3": 600}
            lower = {name: await follow(api, name, priority=p) for name, p in priorities.items()}
            top = [await follow(api, f"top.{n}", priority=1000) for n in range(4)]
            stop = asyncio.Event()

            async def saturate(number: int) -> None:
                while not stop.is_set():
                    body = {"records": [{"data": "x" * 1000}] * 100, "disable_backpressure": True}
                    await api.post(f"/v0/topics/top.{number}", body)

            async def drink(stream: Events) -> None:
                while not stop.is_set():
                    await stream.named("record")

            async with asyncio.TaskGroup() as group:
                for number, stream in enumerate(top):
                    group.create_task(saturate(number))
                    group.create_task(drink(stream))
                for number in range(5):
                    for name, stream in lower.items():
                        body = {"records": [{"data": number}], "disable_backpressure": True}
                        assert (await api.post(f"/v0/topics/{name}", body)).status == 200
                        assert await stream.seqs(1) == [number + 1]
                stop.set()
                for number in range(len(top)):
                    await api.post(
                        f"/v0/topics/top.{number}", {**RECORD, "disable_backpressure": True}
                    )

    run(scenario(), within_s=60)


# --- slow readers


def test_8_a_stalled_watcher_resumes_on_its_connection_with_every_seq_and_harms_nobody(
    tmp_path: Path,
) -> None:
    """Checklist 8: one stalled client, bounded memory; the others do not notice."""

    async def scenario() -> None:
        # A small hot tail: what the stalled one missed has to come from the store.
        app = Fairway(tmp_path, topics=TopicsConfig(hot_bytes=MIB))
        async with serving(tmp_path, app=app) as served:
            api = served.api
            await api.put("/v0/topics/t")
            stalled = await api.watch("t", receive_buffer=4096)
            others = [await api.watch("t") for _ in range(5)]
            for stream in others:
                await stream.named("caught-up")
            host = served.server.host
            assert host is not None
            connections = [stream.connection for stream in host.heartbeats]
            limit = served.server._limits.stream_buffer_bytes
            count, most = 0, 0
            for _ in range(100):
                await api.append("t", *["x" * 1000] * 100)
                count += 100
                for stream in others:
                    got = await stream.seqs(100)
                    assert got == list(range(count - 99, count + 1))
                most = max(most, *(connection.buffered for connection in connections))
            assert most <= limit + 300_000, f"{most} bytes buffered for one connection"
            topic = app.topics.get("t")
            assert topic.active is not None
            watchers = [one for group in topic.active.subscribers.by_view.values() for one in group]
            assert [one.caught_up for one in watchers].count(False) == 1, "only the one that stalls"
            first = await stalled.next()
            assert first.name in ("caught-up", "record")
            seen = first.seqs if first.name == "record" else []
            while len(seen) < count:
                seen += (await stalled.named("record")).seqs
            assert seen == list(range(1, count + 1)), "on the same connection, every seq once"
            await api.append("t", "live again")
            assert await stalled.seqs(1) == [count + 1]
            assert app.topics._hot.used <= MIB

    run(scenario(), within_s=60)


def test_a_reader_that_is_slow_again_and_again_gets_nothing_twice(
    campaign: Campaign, tmp_path: Path
) -> None:
    """It stalls in the middle of a delivery, and has caught up by itself before that ends."""
    rng = campaign.random()
    rounds = campaign.rounds(share=8, full=100)

    async def scenario() -> None:
        # Hardly any time for a drain at once, so that it is interrupted at every watcher.
        config = TopicsConfig(hot_bytes=8 * MIB)
        app = Fairway(tmp_path, topics=config, turn=TurnBudget(delivery_ns=1))
        async with serving(tmp_path, app=app) as served:
            api = served.api
            await api.put("/v0/topics/t")
            streams = [
                await api.watch("t", receive_buffer=4096),
                *[await api.watch("t") for _ in range(3)],
            ]
            for stream in streams:
                await stream.named("caught-up")
            topic = app.topics.get("t")
            assert topic.active is not None
            [watchers] = topic.active.subscribers.by_view.values()
            slow, head = watchers[0], 0

            async def read(stream: Events, first: int, last: int, *, late: bool) -> None:
                if late:
                    await until(lambda: slow.stalled)
                    campaign.tally["stalls"] += 1
                assert await stream.seqs(last - first) == list(range(first + 1, last + 1))

            for _ in range(rounds):
                size = rng.randint(300, 600)

                async with asyncio.TaskGroup() as group:
                    for at, stream in enumerate(streams):
                        group.create_task(read(stream, head, head + size, late=at == 0))
                    await api.append("t", *["x" * 4000] * size)
                head += size

    run(scenario(), within_s=60 + rounds * 5)
    assert campaign.tally["stalls"] == rounds


# --- routers


def test_a_two_hop_router_delivers_everything_once_and_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            for name in ("hop.a", "hop.b"):
                await api.put(f"/v0/topics/{name}")
            await api.put("/v0/routers/ab", {"source": "hop.a", "dest": "hop.b"})
            await api.put("/v0/routers/bc", {"source": "hop.b", "dest": "hop.c"})
            watcher = await api.watch("hop.c")
            await watcher.named("caught-up")
            delays_ms = []
            for number in range(300):
                began = time.monotonic()
                await api.append("hop.a", number)
                [record] = await watcher.records(1)
                delays_ms.append((time.monotonic() - began) * 1000)
                assert (record["$seq"], record["data"]) == (number + 1, number)
            delays_ms.sort()
            print(f"two hops: p50 {delays_ms[150]:.2f} ms, p99 {delays_ms[297]:.2f} ms")
            await api.append("hop.a", *range(1000))
            assert await watcher.seqs(1000) == list(range(301, 1301))
            assert await api.read_all("hop.c") == list(range(1, 1301))

    run(scenario(), within_s=60)


def test_the_interpreter_is_tuned_only_while_a_server_runs(tmp_path: Path) -> None:
    before = sys.getswitchinterval(), gc.get_threshold()

    async def scenario() -> None:
        async with serving(tmp_path):
            assert sys.getswitchinterval() < before[0]
            assert gc.get_threshold() != before[1]

    run(scenario())
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
