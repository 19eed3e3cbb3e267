"""Correct under pressure: the checklist of what must hold, point by point, over HTTP.

Some points are elsewhere, under their numbers: 6, 7, 8 and 10 in `test_server_ladder`, 12 in
`test_server_faults`, 14 in `test_server_watch`; and 1, 4, 5, 9 and 14 under kill -9 in
`test_server_crash`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairway.app import Fairway
from fairway.topics.engine import TopicsConfig
from tests.support.log_vfs import HookedVFS, hooked_vfs
from tests.support.server import Api, run, server_process, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Campaign

CLASSES = ("fsync", "disk", "memory", "ephemeral")


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedVFS]:
    with hooked_vfs(monkeypatch) as made:
        yield made


def test_1_an_acknowledged_fsync_append_survives_kill_9(tmp_path: Path) -> None:
    async def write(api: Api) -> list[int]:
        return [(await api.append("t", number))["last_seq"] for number in range(20)]

    async def read(api: Api) -> list[int]:
        return await api.read_all("t")

    with server_process(tmp_path) as process:
        acknowledged = run(write(process.api))
        process.kill()
    with server_process(tmp_path) as process:
        assert run(read(process.api)) == acknowledged == list(range(1, 21))


@pytest.mark.parametrize("durability", CLASSES)
def test_2_seqs_are_contiguous_and_published_in_order(tmp_path: Path, durability: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.put("/v0/topics/t", {"durability": durability})
            watcher = await api.watch("t")
            given: list[int] = []

            async def write(number: int) -> None:
                for at in range(10):
                    made = await api.append("t", *[f"{number}.{at}"] * (1 + at % 3))
                    assert made["seqs"] == list(range(made["first_seq"], made["last_seq"] + 1))
                    given.extend(made["seqs"])

            async with asyncio.TaskGroup() as group:
                for number in range(16):
                    group.create_task(write(number))
            assert sorted(given) == list(range(1, len(given) + 1)), "no hole, nothing twice"
            assert await watcher.seqs(len(given)) == sorted(given), "and seen in that order"

    run(scenario())


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_3_no_reader_sees_a_record_before_its_class_is_met(
    tmp_path: Path, vfs: HookedVFS, durability: str
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.put("/v0/topics/t", {"durability": durability})
            await api.append("t", "seen")
            watcher = await api.watch("t", "?from_seq=1")
            await watcher.named("caught-up")
            held, reached = threading.Event(), threading.Event()

            def hold(step: str, path: str) -> None:
                if step == ("sync" if durability == "fsync" else "write"):
                    reached.set()
                    held.wait(20)

            async with asyncio.TaskGroup() as group:
                vfs.hook = hold
                pending = group.create_task(api.append("t", "not yet"))
                await until(reached.is_set)
                try:
                    page = await api.diff("t", 1)
                    assert (page["records"], page["head_seq"], page["caught_up"]) == ([], 1, True)
                    assert (await api.state("t"))["head_seq"] == 1
                    late = await api.watch("t", "?from_seq=1")
                    assert (await late.next()).name == "caught-up"
                    assert not pending.done()
                finally:
                    vfs.hook = lambda step, path: None
                    held.set()
                assert (await pending)["last_seq"] == 2
            assert await watcher.seqs(1) == [2]
            assert await late.seqs(1) == [2]

    run(scenario())


def test_4_every_gap_is_a_tombstone_of_what_was_lost_or_a_requested_removal(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.put("/v0/topics/t", {"cap_records": 10})
            await api.append("t", *range(15))  # 1..5 are lost to the cap
            await api.post("/v0/topics/t/delete", {"before_seq": 9})  # 6..8 on request
            page = await api.diff("t")
            gap = page["tombstone"]
            assert (gap["gap_from"], gap["gap_to"], gap["missed_estimate"]) == (1, 5, 5)
            assert [record["$seq"] for record in page["records"]] == list(range(9, 16))
            for cursor, expected in ((3, (4, 5)), (4, (5, 5)), (5, None), (7, None)):
                gap = (await api.diff("t", cursor))["tombstone"]
                assert (gap and (gap["gap_from"], gap["gap_to"])) == expected, cursor
            state = await api.state("t")
            assert (state["evict_floor"], state["earliest_seq"]) == (6, 9)

            await api.put("/v0/topics/old", {"ttl_ms": 1})
            await api.append("old", 1, 2)
            async with asyncio.timeout(10):
                while (page := await api.diff("old"))["records"]:
                    pass
            gap = page["tombstone"]
            assert (gap["reason"], gap["gap_from"], gap["gap_to"]) == ("ttl", 1, 2)

    run(scenario())


def test_5_delivered_and_tombstoned_and_deleted_are_every_seq_for_every_kind_of_consumer(
    campaign: Campaign, tmp_path: Path
) -> None:
    """Slow ones, resumed ones, and those that switch between watching and polling."""
    rng = campaign.random()
    rounds = campaign.rounds(share=40, full=400)

    class Books:
        def __init__(self) -> None:
            self.seen: set[int] = set()
            self.lost: set[int] = set()
            self.cursor = 0

        def take(self, records: list[dict[str, Any]], gap: dict[str, Any] | None) -> None:
            if gap is not None:
                campaign.tally["tombstones"] += 1
                self.lost |= set(range(gap["gap_from"], gap["gap_to"] + 1))
            for record in records:
                assert record["$seq"] not in self.seen | self.lost
                self.seen.add(record["$seq"])

    async def scenario() -> None:
        app = Fairway(tmp_path, topics=TopicsConfig(hot_bytes=256 * 1024))
        async with serving(tmp_path, app=app) as served:
            api = served.api
            await api.put("/v0/topics/t", {"cap_records": 80})
            deleted: set[int] = set()
            head = 0
            done = asyncio.Event()

            async def write() -> None:
                nonlocal head
                for _ in range(rounds):
                    head = (await api.append("t", *["x" * 1000] * rng.randint(1, 60)))["last_seq"]
                    if rng.random() < 0.1:
                        cut = rng.randint(max(1, head - 60), head)
                        deleted.update(range(1, cut))
                        await api.post("/v0/topics/t/delete", {"before_seq": cut})
                head += 1  # one more, for whoever has caught up and waits
                done.set()
                assert (await api.append("t", "end"))["last_seq"] == head

            def over(books: Books) -> bool:
                return done.is_set() and books.cursor >= head

            async def consume(books: Books, kinds: tuple[str, ...], pause: int) -> None:
                last_id = None
                while not over(books):
                    until_seq = head + rng.randint(pause // 2, pause)
                    await until(lambda: done.is_set() or head >= until_seq)  # noqa: B023
                    if rng.choice(kinds) == "diff":
                        limit = rng.randint(1, 100)
                        page = await api.diff("t", books.cursor, limit=limit, wait_ms=1000)
                        books.take(page["records"], page["tombstone"])
                        books.cursor = page["next_from_seq"]
                        last_id = f"{page['epoch']}.{books.cursor}"
                        campaign.tally["polls"] += 1
                        continue
                    headers = {"last-event-id": last_id} if last_id else {}
                    stream = await api.watch("t", headers=headers, receive_buffer=4096)
                    for _ in range(rng.randint(1, 10)):
                        event = await stream.next()
                        last_id = event.id
                        books.cursor = int(str(event.id).partition(".")[2])
                        if event.name == "record":
                            books.take(event.data["records"], None)
                        elif event.name == "tombstone":
                            books.take([], event.data)
                        if over(books):
                            break
                    await stream.close()
                    campaign.tally["watches"] += 1

            consumers = [
                (Books(), ("watch",), 0),
                (Books(), ("watch",), 200),
                (Books(), ("diff",), 0),
                (Books(), ("watch", "diff"), 0),
                (Books(), ("diff",), 200),
                (Books(), ("watch", "diff"), 200),
                (Books(), ("watch",), 10**9),  # who comes when all is written
                (Books(), ("diff",), 10**9),
            ]
            async with asyncio.TaskGroup() as group:
                for consumer in consumers:
                    group.create_task(consume(*consumer))
                group.create_task(write())
            for books, kinds, pause in consumers:
                every = set(range(1, head + 1))
                assert books.seen | books.lost | deleted >= every, (kinds, pause)
                assert not books.seen & books.lost
            assert campaign.tally["tombstones"], "nobody was ever slow"

    run(scenario(), within_s=60 + rounds)


def test_9_a_422_and_a_429_never_append_and_a_retry_with_its_key_never_does_twice(
    tmp_path: Path,
) -> None:
    body = {"records": [{"data": "once"}], "idempotency_key": "k"}

    async def first(api: Api) -> None:
        await api.put("/v0/topics/full", {"cap_records": 1, "discard": "reject"})
        await api.append("full", 1)
        for _ in range(3):
            assert (await api.post("/v0/topics/full", body)).status == 422
        assert (await api.state("full"))["next_seq"] == 2
        answers = [await api.post("/v0/topics/t", body) for _ in range(3)]
        assert [answer.json["deduped"] for answer in answers] == [False, True, True]

    async def second(api: Api) -> None:
        again = (await api.post("/v0/topics/t", body)).json
        assert (again["deduped"], again["first_seq"]) == (True, 1), "also across a restart"
        await api.post("/v0/topics/full/delete", {"before_seq": 2})
        kept = (await api.post("/v0/topics/full", body)).json
        assert (kept["deduped"], kept["first_seq"]) == (False, 2), "a refusal uses no key up"

    with server_process(tmp_path) as process:
        run(first(process.api))
        process.kill()
    with server_process(tmp_path) as process:
        run(second(process.api))


def test_9_one_key_at_the_same_time_appends_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            body = {"records": [{"data": 1}], "idempotency_key": "k"}
            async with asyncio.TaskGroup() as group:
                calls = [
                    group.create_task(served.api.post("/v0/topics/t", body)) for _ in range(20)
                ]
            replies = [call.result().json for call in calls]
            assert [reply["deduped"] for reply in replies].count(False) == 1
            assert {reply["first_seq"] for reply in replies} == {1}
            assert (await served.api.state("t"))["head_seq"] == 1

    run(scenario())


def test_11_a_write_between_replay_and_push_is_delivered_at_once(
    campaign: Campaign, tmp_path: Path
) -> None:
    """Upstream's bug: it came with the next write, or the next heartbeat. None of either here."""
    rng = campaign.random()
    rounds = campaign.rounds(share=150, full=3000)

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.append("t", 0)
            session = await api.session(topics={"t": {}})
            head = 1

            async def race(number: int) -> None:
                """One write lands somewhere between the request and the first frame pushed."""
                nonlocal head
                path = "/v0/topics/t/watch" if number % 2 else session
                last_id = {"last-event-id": f"{epoch}.{head}"} if number % 2 else {}
                async with asyncio.TaskGroup() as group:

                    async def after(turns: int, call: Any) -> Any:
                        for _ in range(turns):
                            await asyncio.sleep(0)
                        return await call

                    # A write takes longer than opening a stream, so it mostly begins first.
                    lead = rng.randint(-20, 200)
                    stream_call = api.stream(path, headers=last_id)
                    opening = group.create_task(after(max(lead, 0), stream_call))
                    writing = group.create_task(after(max(-lead, 0), api.append("t", number)))
                head = writing.result()["last_seq"]
                stream = opening.result()
                seen, live = 0, False
                while seen < head:
                    event = await stream.next(within_s=10)  # heartbeats are not due before 15 s
                    if event.name == "caught-up":
                        live = True
                    elif event.name == "record":
                        seen = event.seqs[-1]
                campaign.tally["pushed" if live else "replayed"] += 1
                await stream.close()

            epoch = (await api.state("t"))["epoch"]
            for number in range(rounds):
                await race(number)

    run(scenario(), within_s=60 + rounds)
    assert campaign.tally["pushed"], "it was always replayed"
    assert campaign.tally["replayed"], "it was always pushed"


def test_13_recovery_is_idempotent(tmp_path: Path) -> None:
    """Killed as soon as it is ready, again and again, a server always comes back the same."""

    async def fill(api: Api) -> None:
        for durability in CLASSES:
            config = {"durability": durability, "cap_records": 50}
            await api.put(f"/v0/topics/{durability}", config)
            await api.append(durability, *range(80))
            await api.post(f"/v0/topics/{durability}/delete", {"before_seq": 40})
        await api.put("/v0/routers/r", {"source": "fsync", "dest": "copy"})
        await api.append("fsync", "routed")
        assert (await api.diff("copy", 0, wait_ms=10_000))["head_seq"] == 1

    async def look(api: Api) -> Any:
        found = []
        for name in (*CLASSES, "copy"):
            state = await api.state(name)
            for changing in ("effective_priority", "last_read_ts", "watchers"):
                del state[changing]
            page = await api.diff(name, 0, limit=1000)
            found.append((state, page))
        routers = (await api.get("/v0/routers")).json["routers"]
        for router in routers:
            del router["forwarded_total"]
        return found, routers

    with server_process(tmp_path) as process:
        run(fill(process.api))
        process.kill()
    looks = []
    for _ in range(3):
        with server_process(tmp_path) as process:
            looks.append(run(look(process.api)))
            process.kill()
    assert looks[0] == looks[1] == looks[2]
    whole = {state["topic"]: state for state, _ in looks[0][0]}
    assert whole["fsync"]["head_seq"] == 81
    assert whole["disk"]["count"] == 41, "written before it was acknowledged"
