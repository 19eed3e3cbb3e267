"""Forks: what they inherit, what they hold, and when they let go."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from fairway.errors import Conflict, InvalidRequest
from fairway.storage.wals.memory import MemoryWal
from fairway.streams.forks import NO_ROWS, cut, cut_within, floor_of
from fairway.streams.offset import Offset
from fairway.streams.pins import ForkPins
from fairway.streams.stored import Segment, decode_meta
from fairway.testing import run
from fairway.topics.engine import TopicsConfig
from fairway.topics.port import TopicsPort
from fairway.topics.retention import RetentionConfig
from fairway.topics.topic import Topic
from fairway.wire.topics import TopicConfig, TopicPatch
from tests.support.streams import (
    HOUR_NS,
    Client,
    Ill,
    capped,
    read_parts,
    recovered,
    settle_retention,
    small_chunks,
    streams_on,
)


def test_a_fork_keeps_its_range_while_its_source_is_trimmed() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal, topics_config=small_chunks()) as client:
            offsets = await capped(client, "a", 4, keep=4)
            fork = {"stream_forked_from": "/v1/stream/a", "stream_fork_offset": offsets[2]}
            assert (await client("PUT", "f", **fork)).status == 201
            for letter in "efghij":
                await client.post("a", letter)
            await settle_retention()
            assert await client.read_all("a") == b"ghij"
            assert await client.read_all("f") == b"abc"
            with pytest.raises(Conflict):
                await client.topics.delete("ds:a")
            killed = wal.kill()
        async with streams_on(killed, topics_config=small_chunks()) as client:
            await client.post("a", "k")
            await settle_retention()
            await client.post("f", "!")
            assert await client.read_all("f") == b"abc!"
            assert await client.read_all("a") == b"hijk"
            assert (await client("DELETE", "f")).status == 204
            await settle_retention()
            assert client.topics.get("ds:a").pin == 0
            log = client.topics._log
            assert log.floor(client.topics.get("ds:a").epoch) >= 7

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_fork_of_a_trimmed_source_says_what_it_never_had() -> None:
    async def scenario() -> None:
        async with streams_on(topics_config=small_chunks()) as client:
            offsets = await capped(client, "a", 6, keep=2)
            await settle_retention()
            await client("PUT", "f", stream_forked_from="/v1/stream/a")
            whole = await client.get("f")
            assert (whole.body, whole.headers["stream-gap-to"]) == (b"ef", "4")
            assert (await client.get(f"f?offset={offsets[0]}")).status == 410

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_fork_is_silent_about_what_was_deleted_on_request_as_its_source_is() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal, topics_config=small_chunks()) as client:
            offsets = await capped(client, "a", 8, keep=6)
            await settle_retention()
            await client.topics.delete_records("ds:a", before_seq=5)
            await settle_retention()
            for path, upto in (("whole", 7), ("deleted", 3), ("lost", 0)):
                fork = {"stream_forked_from": "/v1/stream/a", "stream_fork_offset": offsets[upto]}
                assert (await client("PUT", path, **fork)).status == 201
            assert client.topics.get("ds:a").pin == 2  # of the fork that has nothing
            await client("PUT", "again", stream_forked_from="/v1/stream/whole")
            killed = wal.kill()
        async with streams_on(killed, topics_config=small_chunks()) as client:
            for path in ("a", "whole", "again"):
                assert await read_parts(client, path) == [(1, 2), b"efgh"]
                assert await read_parts(client, path, offsets[0]) == [(2, 2), "cap", b"efgh"]
                assert await read_parts(client, path, offsets[1]) == [b"efgh"]
                assert await read_parts(client, path, offsets[5]) == [b"gh"]
            assert await read_parts(client, "deleted") == [(1, 2)]
            assert await read_parts(client, "deleted", offsets[1]) == []
            assert await read_parts(client, "lost") == [(1, 1)]

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_fork_tells_of_what_a_crash_took_of_its_source() -> None:
    """Whatever becomes of the source later: what it loses then is not lost to the fork."""

    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.topics.put("ds:a", TopicPatch(durability="disk"))
            offsets = [(await client.put("a", "1")).offset]
            offsets.append((await client.post("a", "2")).offset)
            await settle_retention()  # written by then, though a crash cannot be sure of it
            killed = wal.crash(keep=1_000)  # the power went, and spared it
        async with streams_on(killed) as client:
            offsets.append((await client.post("a", "3")).offset)
            last = Offset.parse(offsets[2]).seq
            assert last > 4  # seqs that were reserved are lost
            inside = str(Offset.parse(offsets[2])._replace(seq=last - 2))
            for path, upto in (("whole", offsets[2]), ("inside", inside), ("before", offsets[1])):
                fork = {"stream_forked_from": "/v1/stream/a", "stream_fork_offset": upto}
                assert (await client("PUT", path, **fork)).status == 201
            await client("PUT", "again", stream_forked_from="/v1/stream/whole")
            await client.topics.put("ds:a", TopicPatch(cap_records=1))
            await client.post("a", "4")
            await settle_retention()
            await client("PUT", "late", stream_forked_from="/v1/stream/a")
            killed = killed.kill()
        async with streams_on(killed) as client:
            for path in ("whole", "again"):
                assert await read_parts(client, path) == [b"12", (3, last - 1), "crash", b"3"]
                assert await read_parts(client, path, offsets[0]) == [
                    b"2",
                    (3, last - 1),
                    "crash",
                    b"3",
                ]
                assert await read_parts(client, path, inside) == [
                    (last - 1, last - 1),
                    "crash",
                    b"3",
                ]
            assert await read_parts(client, "inside") == [b"12", (3, last - 2), "crash"]
            assert await read_parts(client, "before") == [b"12"]
            assert await read_parts(client, "late") == [(1, last), b"4"]
            assert await read_parts(client, "late", offsets[1]) == [(3, last), "mixed", b"4"]
            assert (await read_parts(client, "a", offsets[1]))[:3] == [(3, last), "mixed", b"4"]

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_an_ephemeral_stream_has_nothing_that_a_fork_could_keep() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.topics.put("ds:a", TopicPatch(durability="ephemeral"))
            assert (await client.put("a", "x")).status == 201
            refused = await client("PUT", "f", stream_forked_from="/v1/stream/a")
            assert refused.status == 409
            assert json.loads(refused.body)["error"]["code"] == "stream_ephemeral"
            assert client.topics.find("ds:f") is None
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_fork_stored_before_segments_told_how_they_lost_things_is_read() -> None:
    stored = [1, "f", "text/plain", 0, None, None, ["a", 5, "x", 0, [["ds:a", 5, 9, 3]], True]]
    fork = decode_meta(msgspec.msgpack.encode(stored)).fork
    assert fork is not None
    past = Topic("ds:a", 5, TopicConfig()).as_of(fork.segments[0])
    assert (past.head, past.evict_floor, past.delete_floor, past.holes) == (9, 3, 1, ())


def test_a_source_is_held_from_the_moment_it_is_forked() -> None:
    async def scenario() -> None:
        eager = RetentionConfig(chunk=1, period_ns=200_000)
        async with streams_on(topics_config=TopicsConfig(retention=eager, hot_bytes=1)) as client:
            await client.put("a")
            await client.topics.put("ds:a", TopicPatch(cap_records=3))

            async def write() -> None:
                for number in range(1, 41):
                    await client.post("a", f"{number} ")

            async def fork(number: int) -> None:
                await asyncio.sleep(number * 0.005)
                await client("PUT", f"f{number}", stream_forked_from="/v1/stream/a")

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                for number in range(8):
                    group.create_task(fork(number))
            await settle_retention()
            for number in range(8):
                whole = await client.get(f"f{number}")
                found = [int(one) for one in whole.body.split()]
                first = int(whole.headers.get("stream-gap-to", "0")) + 1
                upto = Offset.parse(whole.offset).seq
                assert found == list(range(first, upto + 1))

    for seed in range(20):
        run(scenario, limit_ns=HOUR_NS, quiet=True, seed=seed, shuffle=True)


def test_forks_of_forks_read_through_all_of_them() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "A")
            await client("PUT", "b", stream_forked_from="/v1/stream/a")
            await client.post("b", "B")
            await client("PUT", "c", stream_forked_from="/v1/stream/b")
            await client.post("c", "C")
            await client.post("a", "-")
            await client.post("b", "-")
            assert await client.read_all("c") == b"ABC"
            assert (await client("DELETE", "a")).status == 204
            assert (await client("DELETE", "b")).status == 204
            killed = wal.kill()
        async with streams_on(killed) as client:
            assert (await client.get("a")).status == 410
            assert (await client.post("b", "x")).status == 410
            assert (await client("DELETE", "a")).status == 410
            assert (await client.put("a")).status == 409
            assert await client.read_all("c") == b"ABC"
            again = await client("PUT", "d", stream_forked_from="/v1/stream/b")
            assert again.status == 409
            assert (await client("DELETE", "c")).status == 204
            await settle_retention()
            for path in "abc":
                assert (await client.get(path)).status == 404
                assert client.topics.find(f"ds:{path}") is None

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize(
    ("sub_offset", "found"), [(0, b"ab"), (1, b"abc"), (3, b"abcde"), (4, None)]
)
def test_a_sub_offset_cuts_an_append(sub_offset: int, found: bytes | None) -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            anchor = (await client.put("a", "ab")).offset
            await client.post("a", "cde")
            await client.post("a", "fgh")
            made = await client(
                "PUT",
                "f",
                stream_forked_from="/v1/stream/a",
                stream_fork_offset=anchor,
                stream_fork_sub_offset=str(sub_offset),
            )
            if found is None:
                assert made.status == 400
                assert (await client.get("f")).status == 404
            else:
                assert await client.read_all("f") == found

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_fork_that_a_crash_left_half_made_holds_nothing() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "data")
            topics = TopicsPort(client.topics)
            topic, _ = await topics.create("ds:f", owner="")
            source = await client.streams.store.get("a")
            await ForkPins(topics).pin(source, topic, 1)  # and no further
            killed = wal.kill()
        async with streams_on(killed) as client:
            assert client.topics.get("ds:a").pin == 1
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_source_whose_last_fork_died_with_the_process_goes_too() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "data")
            await client("PUT", "f", stream_forked_from="/v1/stream/a")
            await client("DELETE", "a")
            client.topics.deleted.clear()  # nobody is notified of what comes now
            await client.topics.delete("ds:f")
            killed = wal.kill()
        async with streams_on(killed) as client:
            await settle_retention()
            assert client.topics.find("ds:a") is None

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_fork_deleted_as_a_topic_lets_go_of_its_source(restarted: bool) -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "data")
            await client("PUT", "f", stream_forked_from="/v1/stream/a")
            await client("PUT", "g", stream_forked_from="/v1/stream/a")
            if not restarted:
                await lose_both_forks(client)
            killed = wal.kill()
        if restarted:  # and nobody has asked for the forks since
            async with streams_on(killed) as client:
                await settle_retention()
                await lose_both_forks(client)

    async def lose_both_forks(client: Client) -> None:
        await client.topics.delete("ds:f")
        await settle_retention()
        assert await client.read_all("g") == b"data"
        assert client.topics.get("ds:a").pin == 1
        await client.topics.delete("ds:g")
        await settle_retention()
        assert client.topics.get("ds:a").pin == 0
        assert [one.topic.name for one in client.streams.store] == ["ds:a"]
        await client.topics.delete("ds:a")
        assert not list(client.streams.store)

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("path_taken_again", [False, True])
def test_a_source_that_lived_for_a_fork_ends_when_that_is_deleted_as_a_topic(
    path_taken_again: bool,
) -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a", "data")
            await client("PUT", "f", stream_forked_from="/v1/stream/a")
            assert (await client("DELETE", "a")).status == 204
            assert (await client.put("a", "new")).status == 409
            await client.topics.delete("ds:f")
            if path_taken_again:
                await client.topics.create("ds:f")
                assert (await client.put("f", "other")).status == 201
            await settle_retention()
            assert client.topics.find("ds:a") is None
            assert (await client.put("a", "new")).status == 201
            assert await client.read_all("a") == b"new"
            if path_taken_again:
                assert await client.read_all("f") == b"other"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_refused_fork_changes_nothing() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client("PUT", "j", b"[1]", content_type="application/json")
            fork = {"stream_forked_from": "/v1/stream/j"}
            assert (await client("PUT", "f", b"{", **fork)).status == 400
            assert (await client("PUT", "f", content_type="text/plain", **fork)).status == 409
            assert client.topics.find("ds:f") is None
            assert client.topics.get("ds:j").pin == 0
            assert (await client("DELETE", "j")).status == 204
            assert (await client.get("j")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_create_that_fails_half_way_leaves_nothing_behind(ill: Ill, after: int) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a", "x")
            ill.fail_once(after)
            assert (await client("PUT", "f", stream_forked_from="/v1/stream/a")).status == 503
            await recovered(client)
            assert client.topics.find("ds:f") is None
            assert client.topics.get("ds:a").pin == 0
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_fork_knows_what_could_not_be_written_of_its_source(ill: Ill) -> None:
    """Of a class that shows records first and writes them then."""

    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.topics.put("ds:a", TopicPatch(durability="memory"))
            await client.put("a", "1")
            await settle_retention()
            ill.fail_once()
            assert (await client.post("a", "2")).status == 204
            # It waits for what was shown, which fails, and then nothing can be made for a while.
            assert (await client("PUT", "f", stream_forked_from="/v1/stream/a")).status == 503
            await recovered(client)
            assert (await client("PUT", "f", stream_forked_from="/v1/stream/a")).status == 201
            for path in ("a", "f"):
                assert await read_parts(client, path) == [b"1", (2, 2), "crash"]

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_cut_leaves_nothing_above_it() -> None:
    whole = Segment("t", 5, 20, 4, 6, "cap", ((8, 9, "crash"), (12, 15, "crash")))
    assert cut(whole, 20) == whole
    assert cut(whole, 13).holes == ((8, 9, "crash"), (12, 13, "crash"))
    assert cut(whole, 10).holes == ((8, 9, "crash"),)
    low = cut(whole, 2)
    assert (low.upto, low.floor, low.delete_floor, low.holes) == (2, 3, 3, ())


@pytest.mark.parametrize(
    ("sub_offset", "found"),
    [(1, (4, (b"c",))), (2, (5, ())), (3, (5, (b"e",))), (5, (6, ())), (6, None)],
)
def test_an_append_is_cut_between_its_bytes(
    sub_offset: int, found: tuple[int, tuple[bytes, ...]] | None
) -> None:
    data = [b'"YWI="', b'"Y2Q="', b'"ZWZn"']  # ab, cd, efg: seqs 4 to 6, of which 4 is past
    if found is None:
        with pytest.raises(InvalidRequest):
            cut_within(4, data, 4, 6, sub_offset, json=False)
    else:
        assert cut_within(4, data, 4, 6, sub_offset, json=False) == found


def test_an_append_of_messages_is_cut_between_them() -> None:
    data = [b"1", b"[2]", b"3"]
    assert cut_within(4, data, 3, 6, 2, json=True) == (5, ())
    with pytest.raises(InvalidRequest):
        cut_within(4, data, 3, 5, 3, json=True)  # the third one is not of the source any more


def test_a_fork_that_needs_nothing_of_its_source_holds_on_to_it_all_the_same() -> None:
    inherited = (Segment("r", 1, 3, 1), Segment("a", 2, 5, 2, 4))
    assert floor_of(inherited, 2) == 4
    assert floor_of(inherited, 1) == 1
    assert floor_of(inherited, 3) == NO_ROWS
