"""Topics as another part stands on them."""

from __future__ import annotations

import asyncio

import pytest

from fairway.errors import NotFound
from fairway.testing import run
from fairway.topics.port import TopicsPort
from fairway.wire.records import NO_RECORDS, parse_records
from tests.support.topics import new, topics_on

ONE = parse_records(b'[{"data":1}]')
TWO = parse_records(b'[{"data":2},{"data":3}]')


def test_what_a_part_keeps_with_a_topic_cannot_be_taken_for_the_topics_own() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            topic, made = await TopicsPort(topics).create("t", owner="me")
            assert (made, topics.get("t").owner) == (True, "me")
            await topic.append(ONE, meta={"s": b"1", "p/x": b"2"})
            assert await topic.meta("") == {"s": b"1", "p/x": b"2"}
            await topic.append(NO_RECORDS, meta={"s": None})
            assert await topic.meta("") == {"p/x": b"2"}
            assert await topic.position_of("x") is None
            assert await topics.extras(topics.get("t"), "u/") == {"u/p/x": b"2"}

    run(scenario, quiet=True)


def test_a_submit_is_done_when_it_is_durable_and_moves_its_producer_at_once() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            topic, _ = await TopicsPort(topics).create("t", owner="")
            done: list[tuple[int | None, BaseException | None]] = []

            def on_done(last_seq: int | None, error: BaseException | None) -> None:
                done.append((last_seq, error))

            topic.submit(TWO, on_done, meta={"a": b"1"}, position=("p", 4, 0))
            assert (done, topic.head, topic.queued_position_of("p")) == ([], 0, (4, 0))
            topic.submit(NO_RECORDS, on_done, meta={}, position=("p", 4, 1))
            await asyncio.sleep(1)
            assert done == [(2, None), (2, None)]
            assert topic.queued_position_of("p") == await topic.position_of("p") == (4, 1)
            page = await topic.page(0, limit=10, max_bytes=1000)
            assert [(one.seq, one.data) for one in page.records] == [(1, b"2"), (2, b"3")]

    run(scenario, quiet=True)


def test_a_deleted_topic_keeps_its_number_and_takes_nothing() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            port = TopicsPort(topics)
            gone: list[tuple[str, int]] = []
            stop = port.when_deleted(lambda name, epoch: gone.append((name, epoch)))
            topic, _ = await port.create("t", owner="")
            number = topic.epoch
            await port.delete("t")
            assert (topic.deleted, topic.epoch, gone) == (True, number, [("t", number)])
            assert port.find("t") is None
            with pytest.raises(NotFound):
                topic.submit(ONE, lambda seq, error: None, meta={})
            stop()
            again, _ = await port.create("t", owner="")
            assert again.epoch > number
            await port.delete("t")
            assert gone == [("t", number)]

    run(scenario, quiet=True)


def test_a_change_is_told_to_whoever_waits() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            topic, _ = await TopicsPort(topics).create("t", owner="")
            with topic.change() as change:
                await topics.append("t", new(1))
                async with asyncio.timeout(5):
                    await change
            with topic.change() as change:
                topic.wake()
                assert change.done()
            with topic.change() as change:
                assert not change.done()
            topic.wake()
            assert not change.done()  # whoever has left is not told

    run(scenario, quiet=True)


def test_a_hold_is_at_once_and_a_pin_is_stored() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            topic, _ = await TopicsPort(topics).create("t", owner="")
            await topic.append(TWO, meta={})
            topic.hold(2)
            topic.hold(5)
            assert topics.get("t").pin == 2
            topic.hold_only(0)
            assert topics.get("t").pin == 0
            await topic.pin(1, {"pin": b"x"})
            assert (topics.get("t").pin, await topic.meta("pin")) == (1, {"pin": b"x"})
            assert await topic.append_at(3) is None
            found = await topic.append_at(2)
            assert found is not None
            assert (found[0], list(found[1])) == (1, [b"2", b"3"])

    run(scenario, quiet=True)
