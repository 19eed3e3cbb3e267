"""A server among rude clients: what is accepted goes on, refusing has its share, memory its bound.

The crowd is in a thread of its own. Nothing here is timed: answers are counted against answers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway.core.lanes import LaneLimits
from fairway.server.fronts.topics import api as topics_api
from fairway.server.http import gate
from fairway.server.http.limits import HttpLimits
from fairway.settings import KeyEntry
from fairway.streams import reading as streams_reading
from tests.support.crowd import Crowd, Group, Manner, request
from tests.support.server import WAIT_S, Served, Wire, run, serving, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SECRET = "s3cret-of-ann"
ANN = KeyEntry(
    name="ann", digest=hashlib.sha256(SECRET.encode()).digest(), scopes=frozenset({"admin"})
)
APPEND = b'{"records":[{"data":1}]}'
READ = "/v0/topics/t?touch=false"


@pytest.fixture
def short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that a few hundred clients fill."""
    monkeypatch.setattr(gate, "WAITING_MAX", 64)
    monkeypatch.setattr(gate, "LIMITS", LaneLimits(items=64, size=64))
    monkeypatch.setattr(gate, "KEPT_MAX", 16, raising=False)


@asynccontextmanager
async def crowded(
    served: Served, *groups: Group, enough: Callable[[], bool] = lambda: False
) -> AsyncIterator[asyncio.Task[None]]:
    """The groups at the server's door, until it is `enough` or the block is left."""
    left = False

    def attend() -> None:
        with Crowd(served.server.port, groups) as crowd:
            crowd.begin()
            crowd.run(WAIT_S, lambda: left or enough())

    async with asyncio.TaskGroup() as tasks:
        attending = tasks.create_task(asyncio.to_thread(attend))
        try:
            yield attending
        finally:
            left = True


@pytest.mark.usefixtures("short_line")
def test_those_who_do_not_wait_when_refused_do_not_starve_what_was_accepted(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await served.api.append("t", 0)
            impatient = Group(Manner.IMPATIENT, 300, request("POST", "/v0/topics/t", APPEND))
            got = impatient.outcome

            def enough() -> bool:
                nonlocal got
                got = impatient.outcome
                return got.statuses[200] >= 3000 or got.statuses[429] >= 30_000

            async with crowded(served, impatient, enough=enough) as attending:
                await attending
            assert set(got.statuses) == {200, 429}
            assert got.statuses[429] <= got.statuses[200] / 2
            # Not over HTTP: what the crowd left behind may still stand in the line.
            assert served.app.topics.get("t").head >= got.statuses[200]

    run(scenario())


@pytest.mark.usefixtures("short_line")
def test_whoever_waits_as_it_was_told_is_mostly_let_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await served.api.append("t", 0)
            patient = Group(Manner.PATIENT, 300, request("POST", "/v0/topics/t", APPEND))
            got = patient.outcome

            def enough() -> bool:
                nonlocal got
                got = patient.outcome
                return got.returned.total() >= 500

            async with crowded(served, patient, enough=enough) as attending:
                await attending
            assert got.returned[200] >= 0.8 * got.returned.total(), got

    run(scenario())


def test_strangers_do_not_take_the_turns_of_those_who_have_a_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, api_keys=(ANN,)) as served:
            await served.api.using(SECRET).append("t", 0)
            # There are enough known ones that hardly a turn passes in which none of them has
            # something to ask, however seldom the crowd gets to send: then strangers are heard.
            strangers = Group(Manner.IMPATIENT, 1250, request("GET", READ))
            wrong = Group(Manner.IMPATIENT, 250, request("GET", READ, key="guessed"))
            known = Group(Manner.IMPATIENT, 100, request("GET", READ, key=SECRET))
            groups = (strangers, wrong, known)

            def enough() -> bool:
                return known.outcome.statuses[200] >= 4000

            async with crowded(served, *groups, enough=enough) as attending:
                await attending
            refused = strangers.outcome.statuses[401] + wrong.outcome.statuses[401]
            assert set(known.outcome.statuses) == {200}
            assert set(strangers.outcome.statuses) <= {401}
            assert refused <= 2 * known.outcome.statuses[200]

    run(scenario())


@pytest.mark.usefixtures("short_line")
def test_health_is_told_and_watches_hear_their_heartbeats_among_strangers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, api_keys=(ANN,)) as served:
            api = served.api.using(SECRET)
            await api.append("t", 0)
            await api.append("quiet", 0)
            stream = await api.watch("quiet", "?tail=true&heartbeat_ms=1000")
            await stream.named("caught-up")
            strangers = Group(Manner.IMPATIENT, 300, request("GET", READ))
            busy = Group(Manner.IMPATIENT, 100, request("POST", "/v0/topics/t", APPEND, key=SECRET))
            async with crowded(served, strangers, busy):
                await until(lambda: strangers.outcome.statuses[401] > 1500)
                for path in ("/healthz", "/readyz", "/metrics"):
                    before = strangers.outcome.statuses[401]
                    assert (await api.get(path)).status == 200
                    assert strangers.outcome.statuses[401] - before < 1000
                await stream.comment()

    run(scenario())


def test_silent_strangers_make_room_for_whoever_has_a_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = HttpLimits(connections_max=40, connections_reserved=20)
        async with serving(tmp_path, limits=limits, api_keys=(ANN,)) as served:
            await served.api.using(SECRET).append("t", 0)
            holder = await Wire.open(served.server.port)
            bearer = {"authorization": f"Bearer {SECRET}"}
            holder.send("GET", READ, headers=bearer)
            assert (await holder.answer()).status == 200
            for _ in range(3):
                async with crowded(served, Group(Manner.SILENT, 60)):
                    holder.send("GET", READ, headers=bearer)
                    assert (await holder.answer()).status == 200
                    # Who comes anew is not known until it was read: now and then twenty of those
                    # who come back at once are accepted meanwhile, and it is the eldest of all.
                    tries = [(await served.api.using(SECRET).get(READ)).status]
                    while tries[-1] == 503 and len(tries) < 5:
                        tries.append((await served.api.using(SECRET).get(READ)).status)
                    assert tries[-1] == 200

    run(scenario())


def test_one_address_has_its_bound(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = HttpLimits(connections_per_address=3)
        async with serving(tmp_path, limits=limits) as served:
            wires = [await Wire.open(served.server.port) for _ in range(3)]
            over = await Wire.open(served.server.port)
            answer = await over.answer()
            assert (answer.status, answer.header("retry-after")) == (429, "1")
            await over.close()
            await wires[0].close()
            answered = []

            async def again() -> int:
                wire = await Wire.open(served.server.port)
                wire.send("GET", "/healthz")
                status = (await wire.answer()).status
                await wire.close()
                return status

            while 200 not in answered:  # until the server has seen the close
                answered.append(await again())
            assert set(answered) <= {200, 429}

    run(scenario())


def test_one_key_has_its_bound(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = HttpLimits(connections_per_key=2)
        async with serving(tmp_path, limits=limits, api_keys=(ANN,)) as served:
            bearer = {"authorization": f"Bearer {SECRET}"}
            wires = [await Wire.open(served.server.port) for _ in range(3)]
            statuses = []
            for wire in wires:
                wire.send("GET", "/v0/topics", headers=bearer)
                answer = await wire.answer()
                statuses.append(answer.status)
            assert statuses == [200, 200, 429]
            assert answer.error["detail"]["limit"] == "connections_per_key"

    run(scenario())


def test_slow_and_deaf_clients_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    most = 4 * 2**20

    async def scenario() -> None:
        limits = HttpLimits(held_bytes_max=most)
        async with serving(tmp_path, limits=limits) as served:
            for _ in range(2):
                await served.api.append("t", "x" * 900_000)
            held = served.server.held
            page = request("POST", "/v0/topics/t/diff", b'{"from_seq":0}')
            deaf = Group(Manner.DEAF, 8, page)
            body = b'{"records":[{"data":"%b"}]}' % (b"x" * 2_000_000)
            slow = Group(Manner.SLOW_WRITER, 8, request("POST", "/v0/topics/t", body), piece=65_536)
            seen: list[int] = []

            async def watch() -> None:
                while True:
                    seen.append(held.used)
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            try:
                async with crowded(served, deaf, slow):
                    await until(lambda: slow.outcome.statuses[429] > 0)
                    assert (await served.api.append("t", 1))["last_seq"] > 2, "small ones go on"
            finally:
                watching.cancel()
            assert most // 2 < max(seen) <= most + 2**20  # a page is written before it is counted
            await until(lambda: held.used == 0)

    run(scenario())


LARGE = b'{"max_batch_bytes":8388608,"limit":1000}'


async def fill(served: Served, topic: str) -> None:
    """Records of 10 KB, 4 MiB of them."""
    for _ in range(14):
        await served.api.append(topic, *["x" * 10_000] * 30)


def test_large_pages_are_refused_before_they_are_read_and_small_reads_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 9 * 2**20
    built = Counter[bool]()

    def counting(answer: Any, *more: Any) -> Any:
        reply = diff_reply(answer, *more)
        built[len(reply.body) > 2**20] += 1
        return reply

    diff_reply = topics_api.diff_reply
    monkeypatch.setattr(topics_api, "diff_reply", counting)

    async def scenario() -> None:
        async with serving(tmp_path, limits=HttpLimits(held_bytes_max=most)) as served:
            await fill(served, "t")
            held = served.server.held
            deaf = Group(Manner.DEAF, 12, request("POST", "/v0/topics/t/diff", LARGE) * 4)
            seen: list[int] = []

            async def watch() -> None:
                while True:
                    seen.append(held.used)
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            try:
                async with crowded(served, deaf):
                    refused = 'throttled_total{cause="held_bytes_max"}'
                    await until(lambda: built[True] > 0)
                    text = ""
                    while refused not in text:
                        text = (await served.api.get("/metrics")).body.decode()
                    assert max(seen) > most // 2
                    page = await served.api.diff("t", 419, limit=1)
                    assert [record["$seq"] for record in page["records"]] == [420]
                    # What a page has that is written is in the kernel too; none waits uncounted.
                    assert built[True] <= 12
                    assert max(seen) <= most
                await until(lambda: held.used == 0)
            finally:
                watching.cancel()
            whole = await served.api.diff("t", 0, max_batch_bytes=8 * 2**20, limit=1000)
            assert len(whole["records"]) == 420, "there is room again, and a turn"

    run(scenario())


def test_readers_that_leave_while_pages_are_built_for_them_leave_no_room_taken(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await fill(served, "t")
        async with serving(tmp_path) as served:  # from the store, where it takes turns of the loop
            held = served.server.held
            for left in range(8):
                wires = [await Wire.open(served.server.port) for _ in range(8)]
                for wire in wires:
                    wire.send(
                        "POST", "/v0/topics/t/diff", LARGE, {"content-type": "application/json"}
                    )
                await until(lambda: held.used > 0)
                for _ in range(left):
                    await asyncio.sleep(0)
                for wire in wires:
                    wire.abort()
                await until(lambda: held.used == 0)
            whole = await served.api.diff("t", 0, max_batch_bytes=8 * 2**20, limit=1000)
            assert len(whole["records"]) == 420

    run(scenario())


def test_a_durable_stream_is_read_only_if_there_is_room_for_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = streams_reading.StreamReader.read, 0

    async def counting(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*arguments)

    monkeypatch.setattr(streams_reading.StreamReader, "read", counting)

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            kind = {"content-type": "text/plain"}
            for name, size in (("large", 500_000), ("small", 5_000)):
                made = await served.api.call(
                    "PUT", f"/v1/stream/{name}", raw=b"x" * size, headers=kind
                )
                assert made.status == 201
            held = served.server.held
            others = held.most - 100_000
            assert held.take(others)
            refused = await served.api.get("/v1/stream/large")
            assert (refused.status, refused.error["detail"]["limit"]) == (429, "held_bytes_max")
            assert reads == 0
            assert len((await served.api.get("/v1/stream/small")).body) == 5_000
            held.give(others)
            assert len((await served.api.get("/v1/stream/large")).body) == 500_000
            assert held.used == 0

    run(scenario())


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_a_page_that_is_read_in_steps_is_what_was_asked_for(tmp_path: Path, stored: bool) -> None:
    sizes = [10, 700_000, 30_000, 250_000, 1_000_000, 5, 120_000] * 3

    async def make(served: Served) -> None:
        for at in range(0, len(sizes), 2):
            await served.api.append("t", *["x" * size for size in sizes[at : at + 2]])

    async def look(served: Served) -> None:
        for most, limit in ((8 * 2**20, 1000), (2 * 2**20, 1000), (8 * 2**20, 4), (300_000, 9)):
            after, seen = 0, 0
            while seen < len(sizes):
                page = await served.api.diff("t", after, max_batch_bytes=most, limit=limit)
                got = [len(record["data"]) for record in page["records"]]
                assert got == sizes[seen : seen + len(got)]
                # Until the next one does not fit, or as many as were asked for.
                data = sum(size + 2 for size in got)
                assert data <= most or len(got) == 1
                following = sizes[seen + len(got) : seen + len(got) + 1]
                assert (
                    len(got) == limit or not following or data + following[0] + 2 > min(most, 2**18)
                )
                seen += len(got)
                after = page["next_from_seq"]
                assert page["caught_up"] == (seen == len(sizes))

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await make(served)
            if not stored:
                await look(served)
        if stored:
            async with serving(tmp_path) as served:
                await look(served)

    run(scenario())


def test_a_refusal_names_what_was_full_and_is_counted(tmp_path: Path, short_line: None) -> None:
    async def scenario() -> Any:
        async with serving(tmp_path) as served:
            await served.api.append("t", 0)
            impatient = Group(Manner.IMPATIENT, 200, request("POST", "/v0/topics/t", APPEND))
            async with crowded(served, impatient):
                await until(lambda: impatient.outcome.statuses[429] > 0)
            text = (await served.api.get("/metrics")).body.decode()
            assert 'fairway_requests_throttled_total{cause="waiting_requests"}' in text

    run(scenario())
