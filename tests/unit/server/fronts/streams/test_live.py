"""Event streams and long polls, without sockets, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from fairway.testing import run
from tests.support.streams import CLOSE, HOUR_NS, Live, streams_on


def test_events_go_on_until_the_close() -> None:
    async def scenario() -> None:
        async with streams_on() as client, asyncio.TaskGroup() as group:
            await client("PUT", "j", b"[1]", content_type="application/json")
            live = Live(client, "j?offset=-1&live=sse")
            group.create_task(live.run())
            await live.until(lambda a: a.data == ["[1]"])
            await live.until(lambda a: a.control.get("upToDate"))
            await client("POST", "j", b"[2,3]", content_type="application/json")
            await live.until(lambda a: a.data == ["[1]", "[2,3]"])
            last = await client("POST", "j", b"4", content_type="application/json", **CLOSE)
            await live.until(lambda a: a.ended)
            assert live.answer.data == ["[1]", "[2,3]", "[4]"]
            assert live.answer.control == {
                "streamNextOffset": last.offset,
                "upToDate": True,
                "streamClosed": True,
            }
            kinds = [name for name, _ in live.answer.events]
            for at, kind in enumerate(kinds):
                assert kind == "control" or kinds[at + 1] == "control"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_close_without_data_is_told_at_once(live: str) -> None:
    async def scenario() -> None:
        async with streams_on() as client, asyncio.TaskGroup() as group:
            offset = (await client.put("a", "x")).offset
            reader = Live(client, f"a?offset={offset}&live={live}")
            task = group.create_task(reader.run())
            await asyncio.sleep(1)
            assert not task.done()
            await client.post("a", **CLOSE)
            await asyncio.sleep(0.1)
            assert task.done()
            if live == "sse":
                assert reader.answer.control["streamClosed"]
            else:
                assert reader.answer.status == 204
                assert reader.answer.headers["stream-closed"] == "true"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_characters_cut_by_an_append_are_sent_whole() -> None:
    async def scenario() -> None:
        euro = "€".encode()
        async with streams_on() as client, asyncio.TaskGroup() as group:
            await client.put("t", b"a" + euro[:1])
            live = Live(client, "t?offset=-1&live=sse")
            group.create_task(live.run())
            await client.post("t", euro[1:2])
            await live.until(lambda a: a.status == 200)
            assert live.answer.data == []
            await client.post("t", euro[2:] + b"b")
            await live.until(lambda a: a.data == ["a€b"])
            await client.post("t", b"\xe2", **CLOSE)
            await live.until(lambda a: a.ended)
            assert live.answer.data == ["a€b", "\ufffd"]

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_an_event_stream_ends_after_its_cycle_and_says_where_it_is_meanwhile() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            offset = (await client.put("a", "x")).offset
            began = asyncio.get_running_loop().time()
            answer = await client.get("a?offset=now&live=sse")
            assert 59 < asyncio.get_running_loop().time() - began < 61
            assert [name for name, _ in answer.events] == ["control"] * 4
            assert answer.control["streamNextOffset"] == offset
            assert answer.ended

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("how", ["leave", "delete", "stop"])
def test_live_readers_go_when_there_is_no_reason_to_stay(live: str, how: str) -> None:
    async def scenario() -> None:
        async with streams_on() as client, asyncio.TaskGroup() as group:
            await client.put("a")
            reader = Live(client, f"a?offset=now&live={live}")
            task = group.create_task(reader.run())
            await asyncio.sleep(1)
            if how == "leave":
                reader.leave.set()
            elif how == "delete":
                await client("DELETE", "a")
            else:
                client.topics.stop_admitting()
            await asyncio.sleep(1)
            assert task.done()

    run(scenario, limit_ns=HOUR_NS, quiet=True)
