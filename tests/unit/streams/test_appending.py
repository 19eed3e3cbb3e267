"""Appends of producers and closes, side by side and through failures."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from fairway.testing import run
from fairway.topics.operations import ProducerPosition
from tests.support.streams import CLOSE, HOUR_NS, Ill, producer, recovered, streams_on

if TYPE_CHECKING:
    from fairway.topics.topic import Topic


def test_a_failed_append_is_not_remembered_of_its_producer(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a")
            assert (await client.post("a", "1", **producer(0, 0))).status == 200
            ill.full = True
            async with asyncio.TaskGroup() as group:
                tries = [
                    group.create_task(client.post("a", str(n + 1), **producer(0, n)))
                    for n in (1, 2)
                ]
            assert all(one.result().status != 200 for one in tries)
            ill.full = False
            await recovered(client)
            assert (await client.post("a", "2", **producer(0, 1))).status == 200
            assert (await client.post("a", "3", **producer(0, 2))).status == 200
            assert (await client.post("a", "2", **producer(0, 1))).status == 204
            assert await client.read_all("a") == b"123"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_no_append_overtakes_a_failed_one_of_its_producer() -> None:
    """Else the retry of the failed one would be taken for a repetition, and lost."""

    async def scenario() -> None:
        ill = Ill()
        random = Random(asyncio.get_running_loop().clock.wall_ns())  # type: ignore[attr-defined]
        async with streams_on(ill.wal) as client:
            await client.put("a")

            async def send(number: int) -> None:
                while True:
                    answer = await client.post("a", chr(97 + number), **producer(0, number))
                    if answer.status in (200, 204):
                        return
                    assert answer.status in (409, 503)
                    await asyncio.sleep(random.random() * 0.01)

            async def fail_now_and_then() -> None:
                for _ in range(3):
                    await asyncio.sleep(random.random() * 0.02)
                    ill.fail_once()

            async with asyncio.TaskGroup() as group:
                group.create_task(fail_now_and_then())
                for number in range(12):
                    group.create_task(send(number))
                    await asyncio.sleep(random.random() * 0.002)
            assert await client.read_all("a") == bytes(range(97, 109))

    for seed in range(60):
        run(scenario, limit_ns=HOUR_NS, quiet=True, seed=seed, shuffle=True)


def test_a_failure_in_the_last_moment_before_the_verdict_counts() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a")
            await client.post("a", "1", **producer(0, 0))
            writing, active = (
                client.topics.writing,
                client.topics.activate(client.topics.get("ds:a")),
            )
            real, name = writing.position_of, "ds:p"

            async def failing_behind_its_back(topic: Topic, producer: str) -> Any:
                active.producers.begin(ProducerPosition(name, 0, 1))  # an append under way ...
                known = await real(topic, producer)
                active.producers.forget(name)  # ... which has failed when this is looked at
                writing.position_of = real  # type: ignore[method-assign]
                return known

            writing.position_of = failing_behind_its_back  # type: ignore[method-assign]
            answer = await client.post("a", "3", **producer(0, 2))
            assert (answer.status, answer.headers["producer-expected-seq"]) == (409, "1")

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_repeated_append_is_done_only_when_the_first_one_is() -> None:
    async def scenario() -> None:
        ill = Ill()
        async with streams_on(ill.wal) as client:
            await client.put("a")
            ill.fail_once()
            async with asyncio.TaskGroup() as group:
                twins = [
                    group.create_task(client.post("a", "x", **producer(0, 0))) for _ in range(2)
                ]
            done = [one.result().status for one in twins if one.result().status in (200, 204)]
            assert len(await client.read_all("a")) == min(1, len(done))

    for seed in range(20):
        run(scenario, limit_ns=HOUR_NS, quiet=True, seed=seed, shuffle=True)


def test_nothing_is_appended_behind_a_close_that_is_under_way() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a", "1")
            async with asyncio.TaskGroup() as group:
                close = group.create_task(client.post("a", "2", **CLOSE))
                late = group.create_task(client.post("a", "3"))
                later = group.create_task(client.post("a", "2", **CLOSE))
            assert close.result().status == 204
            assert (late.result().status, later.result().status) == (409, 409)
            assert late.result().headers["stream-closed"] == "true"
            assert late.result().offset == close.result().offset
            assert await client.read_all("a") == b"12"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_failed_append_does_not_use_up_its_stream_seq(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a")
            ill.fail_once()
            assert (await client.post("a", "9", stream_seq="9")).status == 503
            await recovered(client)
            assert (await client.post("a", "1", stream_seq="1")).status == 204

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_failed_close_leaves_the_stream_open(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a")
            ill.full = True
            assert (await client.post("a", "last", stream_seq="9", **CLOSE)).status == 503
            assert "stream-closed" not in (await client("HEAD", "a")).headers
            ill.full = False
            await recovered(client)
            assert (await client.post("a", "first", stream_seq="1")).status == 204
            assert await client.read_all("a") == b"first"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_appends_of_one_producer_may_come_in_any_order_and_at_once() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a")
            random = Random(7)
            left = list(range(20))

            async def send(n: int) -> None:
                while True:
                    answer = await client.post("a", chr(97 + n), **producer(0, n))
                    if answer.status in (200, 204):
                        return
                    assert answer.status == 409
                    assert int(answer.headers["producer-expected-seq"]) <= n
                    await asyncio.sleep(0.001)

            random.shuffle(left)
            async with asyncio.TaskGroup() as group:
                for n in left + left[:5]:
                    group.create_task(send(n))
            assert await client.read_all("a") == bytes(range(97, 117))

    for seed in range(10):
        run(scenario, limit_ns=HOUR_NS, quiet=True, seed=seed, shuffle=True)
