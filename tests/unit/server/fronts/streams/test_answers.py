"""What may be cached, and what a tag stands for."""

from __future__ import annotations

from fairway.server.fronts.streams.live import StreamsFrontConfig
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.wire.topics import TopicPatch
from tests.support.streams import CLOSE, HOUR_NS, Answer, streams_on


def test_a_range_that_is_over_may_be_cached_and_the_tail_may_not() -> None:
    async def scenario() -> None:
        async with streams_on(config=StreamsFrontConfig(chunk_bytes=1)) as client:
            await client.put("a", "x")
            await client.post("a", "y")
            part = await client.get("a")
            assert (part.body, part.headers["cache-control"][:7]) == (b"x", "private")
            assert "stream-up-to-date" not in part.headers
            tail = await client.get(f"a?offset={part.offset}")
            assert (tail.body, tail.headers["cache-control"]) == (b"y", "no-cache")
            cached = await client.get("a", if_none_match=part.headers["etag"])
            assert (cached.status, cached.body) == (304, b"")
            same = await client.get(f"a?offset={part.offset}", if_none_match=tail.headers["etag"])
            assert same.status == 304
            await client.post("a", **CLOSE)
            again = await client.get(f"a?offset={part.offset}", if_none_match=tail.headers["etag"])
            assert again.status == 200

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_tag_changes_with_what_is_lost_or_deleted_and_with_nothing_else() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            for path in ("lost", "deleted"):
                await client.put(path)
                for text in "1234":
                    await client.post(path, text)

            async def asked_again(path: str, before: Answer) -> Answer:
                return await client.get(f"{path}?offset=-1", if_none_match=before.headers["etag"])

            whole = await client.get("lost?offset=-1")
            assert (await asked_again("lost", whole)).status == 304
            await client.topics.put("ds:lost", TopicPatch(cap_records=3))
            three = await asked_again("lost", whole)
            assert (three.status, three.body, three.headers["stream-gap-to"]) == (200, b"234", "1")
            await client.topics.put("ds:lost", TopicPatch(cap_records=1))
            one = await asked_again("lost", three)
            assert (one.status, one.body, one.headers["stream-gap-to"]) == (200, b"4", "3")
            assert (await asked_again("lost", one)).status == 304

            whole = await client.get("deleted?offset=-1")
            await client.topics.delete_records("ds:deleted", before_seq=3)
            rest = await asked_again("deleted", whole)
            assert (rest.status, rest.body) == (200, b"34")
            assert (await asked_again("deleted", rest)).status == 304

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_tag_survives_a_restart_and_what_happens_elsewhere() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "1")
            await client.post("a", "2")
            await client.topics.delete_records("ds:a", before_seq=2)
            before = await client.get("a?offset=-1")
            rest = await client.get(f"a?offset={before.offset}")
            killed = wal.kill()
        async with streams_on(killed) as client:
            tag = before.headers["etag"]
            assert (await client.get("a?offset=-1", if_none_match=tag)).status == 304
            await client.topics.delete_records("ds:a", before_seq=3)  # nothing of what follows
            tag = rest.headers["etag"]
            again = await client.get(f"a?offset={before.offset}", if_none_match=tag)
            assert again.status == 304

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_tag_says_whether_more_is_there() -> None:
    async def scenario() -> None:
        async with streams_on(config=StreamsFrontConfig(chunk_bytes=1)) as client:
            await client.put("a", "x")
            tail = await client.get("a")
            assert tail.headers["stream-up-to-date"] == "true"
            await client.post("a", "y")
            again = await client.get("a", if_none_match=tail.headers["etag"])
            assert (again.status, again.body) == (200, b"x")
            assert "stream-up-to-date" not in again.headers

    run(scenario, limit_ns=HOUR_NS, quiet=True)
