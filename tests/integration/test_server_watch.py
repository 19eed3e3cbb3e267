"""Streams over real sockets: event streams of one topic and of several, and how they resume."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from tests.support.server import (
    Api,
    Ended,
    Events,
    Site,
    run,
    server_process,
    serving,
    shared_site,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with shared_site(tmp_path_factory.mktemp("data")) as made:
        yield made


# --- one topic


def test_a_plain_event_source_replays_then_follows(site: Site) -> None:
    async def scenario(api: Api) -> None:
        epoch = (await api.append("plain", 1, 2))["epoch"]
        stream = await api.watch("plain")
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        page = await stream.next()
        assert stream.retry == 2000
        for record in page.data["records"]:
            del record["$ts"]
        assert (page.name, page.id) == ("record", f"{epoch}.2")
        assert page.data == {
            "topic": "plain",
            "epoch": epoch,
            "records": [{"$seq": 1, "data": 1}, {"$seq": 2, "data": 2}],
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
        }
        live = await stream.next()
        assert (live.name, live.id) == ("caught-up", f"{epoch}.2")
        assert live.data == {"topic": "plain", "epoch": epoch, "head_seq": 2}
        await api.append("plain", 3, 4)
        frames = [await stream.next(), await stream.next()]
        assert [frame.seqs for frame in frames] == [[3], [4]], "each record its own frame"
        assert [frame.id for frame in frames] == [f"{epoch}.3", f"{epoch}.4"]
        assert (await api.state("plain"))["watchers"] == 1
        await stream.close()
        topic = site.served.app.topics.get("plain")
        await until(lambda: topic.active is None or not topic.active.subscribers)

    site.run(scenario(site.api))


def test_where_a_watch_begins(site: Site) -> None:
    async def scenario(api: Api) -> None:
        epoch = (await api.append("begin", *range(1, 6)))["epoch"]
        starts: list[tuple[str, str | None, list[int]]] = [
            ("", None, [1, 2, 3, 4, 5]),
            ("?from_seq=3", None, [4, 5]),
            (f"?from_seq=3&epoch={epoch}", None, [4, 5]),
            ("?tail=true", None, []),
            ("?from_seq=5", None, []),
            ("", f"{epoch}.4", [5]),
            ("?tail=true&from_seq=1", f"{epoch}.2", [3, 4, 5]),
            (f"?last_event_id={epoch}.3", None, [4, 5]),
        ]
        for query, last_id, expected in starts:
            headers = {"last-event-id": last_id} if last_id is not None else {}
            stream = await api.watch("begin", query, headers=headers)
            event = await stream.next()
            if expected:
                assert event.seqs == expected, query
                event = await stream.next()
            assert event.name == "caught-up"
            await stream.close()

    site.run(scenario(site.api))


def test_a_watch_of_another_incarnation_is_told_recreated_exactly_once(site: Site) -> None:
    async def scenario(api: Api) -> None:
        old = (await api.append("reborn", 1, 2, 3))["epoch"]
        await api.delete("/v0/topics/reborn")
        await api.put("/v0/topics/reborn", {"cap_records": 2})
        new = (await api.append("reborn", 4, 5, 6, 7))["epoch"]
        for query, headers in (
            ("", {"last-event-id": f"{old}.2"}),
            (f"?from_seq=1&epoch={old}", {}),
            ("?from_seq=99", {}),
        ):
            stream = await api.watch("reborn", query, headers=headers)
            told = await stream.next()
            assert told.name == "tombstone"
            assert told.id == f"{new}.2"
            assert told.data == {
                "topic": "reborn",
                "epoch": new,
                "reason": "recreated",
                "gap_from": 1,
                "gap_to": 2,
                "missed_estimate": 2,
                "earliest_seq": 3,
                "head_seq": 4,
            }
            assert (await stream.next()).seqs == [3, 4], "and no second tombstone"
            await stream.close()

    site.run(scenario(site.api))


def test_a_deleted_topic_ends_its_stream_after_saying_so(site: Site) -> None:
    async def scenario(api: Api) -> None:
        epoch = (await api.append("ends", 1))["epoch"]
        stream = await api.watch("ends", "?tail=1")
        await stream.named("caught-up")
        await api.delete("/v0/topics/ends")
        events = await stream.ended()
        assert [event.name for event in events] == ["topic-deleted"]
        facts = {"topic": "ends", "epoch": epoch, "head_seq": 1, "reason": "deleted"}
        assert events[0].data == facts
        assert (await api.get("/v0/topics/ends/watch")).code == "topic_not_found"

    site.run(scenario(site.api))


def test_filters_and_projections_of_a_watch(site: Site) -> None:
    async def scenario(api: Api) -> None:
        records = [
            {"data": 1, "tag": "a.1", "node": "me", "meta": {"k": 1}},
            {"data": 2, "tag": "a.2", "node": "you"},
            {"data": 3, "tag": "b", "node": "you"},
            {"data": 4},
        ]
        await api.post("/v0/topics/filtered", {"records": records})
        for query, expected in (
            ("?match=b", [3]),
            ("?match=a.*", [1, 2]),
            ("?node=me", [2, 3, 4]),
            ("?node=you&match=a.*", [1]),
        ):
            stream = await api.watch("filtered", query)
            assert (await stream.next()).seqs == expected, query
            caught_up = await stream.next()
            assert caught_up.data["head_seq"] == 4, "what was left out is passed over"
            assert str(caught_up.id).endswith(".4")
            await stream.close()
        stream = await api.watch("filtered", "?include_tags=1&include_data=0&include_meta=false")
        first = (await stream.next()).data["records"][0]
        assert first.keys() == {"$seq", "$ts", "$node", "$tag"}
        await stream.close()
        await api.put("/v0/topics/filtered", {"dedupe_node": False})
        stream = await api.watch("filtered", "?node=me")
        assert (await stream.next()).seqs == [1, 2, 3, 4]
        await stream.close()

    site.run(scenario(site.api))


def test_frames_keep_to_their_limits(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("limits", *["x" * 100] * 10)
        stream = await api.watch("limits", "?limit=4")
        assert [(await stream.next()).seqs for _ in range(3)] == [
            [1, 2, 3, 4],
            [5, 6, 7, 8],
            [9, 10],
        ]
        await stream.close()
        stream = await api.watch("limits", f"?max_batch_bytes=250&limit={10**15}")
        assert [len((await stream.next()).seqs) for _ in range(5)] == [2] * 5
        await stream.close()
        # Whoever has nothing else to send takes a frame whole: it is bounded as its buffer is.
        await api.append("large", *["x" * 10_000] * 100)
        stream = await api.watch("large", f"?max_batch_bytes={2**40}&limit=1000")
        assert [len((await stream.next()).seqs) for _ in range(4)] == [26, 26, 26, 22]
        await stream.close()

    site.run(scenario(site.api))


@pytest.mark.parametrize("touch", [True, False])
def test_a_watch_that_does_not_touch_leaves_the_priority_alone(site: Site, touch: bool) -> None:
    async def scenario(api: Api) -> None:
        name = f"touch.{touch}"
        await api.append(name, 1)
        query = "" if touch else "?touch=false"
        body = {} if touch else {"touch": False}
        streams = [
            await api.watch(name, query),
            await api.stream(await api.session(topics={name: {}}, **body)),
        ]
        for stream in streams:
            await stream.seqs(1)
        await api.append(name, 2)
        for stream in streams:
            await stream.seqs(1)
            await stream.close()
        async with connect(f"ws://127.0.0.1:{api.port}/v0/ws", proxy=None) as socket:
            await socket.send(json.dumps({"op": "subscribe", "topic": name, **body}))
            while json.loads(await socket.recv())["op"] != "caught-up":
                pass
        state = await api.state(name)
        assert (state["last_read_ts"] is not None) is touch
        assert (state["effective_priority"] > 0) is touch

    site.run(scenario(site.api))


def test_a_loss_is_a_tombstone_in_its_place(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.put("/v0/topics/lossy", {"cap_records": 2})
        await api.append("lossy", *range(5))
        stream = await api.watch("lossy", "?from_seq=1")
        gap = await stream.next()
        assert (gap.name, gap.data["reason"]) == ("tombstone", "cap")
        assert (gap.data["gap_from"], gap.data["gap_to"]) == (2, 3)
        assert (await stream.next()).seqs == [4, 5]
        await stream.close()

    site.run(scenario(site.api))


def test_heartbeats_come_when_nothing_else_does(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.put("/v0/topics/quiet")
        path = await api.session(topics={"quiet": {}}, heartbeat_ms=1)
        one, several = await api.watch("quiet", "?heartbeat_ms=1"), await api.stream(path)
        for stream in (one, several):
            await stream.named("caught-up")
        began = time.monotonic()
        for stream in (one, several):
            await stream.comment()
            await stream.comment()
        assert time.monotonic() - began >= 1.0, "clamped to one in a second"
        assert one.last_id is not None, "a heartbeat has no id and changes none"
        for stream in (one, several):
            await stream.close()

    site.run(scenario(site.api))


def test_caught_up_is_sent_at_each_end_of_a_backlog(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("change", 1)
        stream = await api.watch("change")
        names = [(await stream.next()).name for _ in range(2)]
        assert names == ["record", "caught-up"]
        await api.append("change", 2)
        assert (await stream.next()).name == "record", "caught up: not sent again"
        [watchers] = site.served.app.topics.get("change").active.subscribers.by_view.values()  # type: ignore[union-attr]
        watcher = watchers[0]
        watcher.caught_up, watcher.stalled = False, True  # as if its buffer had been full
        await api.append("change", 3)
        watcher.resume()
        names = [(await stream.next()).name for _ in range(2)]
        assert names == ["record", "caught-up"]
        await stream.close()

    site.run(scenario(site.api))


def test_an_http_1_0_client_gets_a_stream_without_chunks(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("ancient", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(b"GET /v0/topics/ancient/watch HTTP/1.0\r\nhost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert await reader.readuntil(b"\n\n") == b"retry: 2000\n\n"
        assert (await reader.readuntil(b"\n\n")).startswith(b"id: ")
        writer.close()
        await writer.wait_closed()

    site.run(scenario(site.api))


# --- several topics


def test_a_session_says_where_everything_is(site: Site) -> None:
    async def scenario(api: Api) -> None:
        a, b = [(await api.append(f"s1.{name}", 1, 2, 3))["epoch"] for name in "ab"]
        body = {"topics": {"s1.a": {"from_seq": 1}, "s1.b": {"tail": True}, "s1.none": {}}}
        assert (await api.post("/v0/watch", body)).code == "topic_not_found"
        made = await api.post("/v0/watch?lenient=true", body)
        assert made.status == 200
        assert len(made.json["wid"]) >= 4 + 128 // 6, "128 random bits at least"
        assert made.json == {
            "wid": made.json["wid"],
            "stream_url": f"/v0/watch/{made.json['wid']}",
            "session_ttl_ms": 300_000,
            "topics": {
                "s1.a": {"from_seq": 1, "epoch": a, "head_seq": 3, "earliest_seq": 1},
                "s1.b": {"from_seq": 3, "epoch": b, "head_seq": 3, "earliest_seq": 1},
            },
        }
        stream = await api.stream(made.json["stream_url"])
        events = {}
        for _ in range(3):
            event = await stream.next()
            events.setdefault(event.data["topic"], []).append(event)
        assert [event.name for event in events["s1.a"]] == ["record", "caught-up"]
        assert events["s1.a"][0].seqs == [2, 3]
        assert [event.name for event in events["s1.b"]] == ["caught-up"]
        await stream.close()

    site.run(scenario(site.api))


async def drained(stream: Events, topics: int) -> dict[str, list[int]]:
    """Every seq by topic, until each of so many topics has caught up."""
    seen: dict[str, list[int]] = {}
    live: set[str] = set()
    while len(live) < topics:
        event = await stream.next()
        if event.name == "record":
            seen.setdefault(event.data["topic"], []).extend(event.seqs)
        elif event.name == "caught-up":
            live.add(event.data["topic"])
    return seen


def test_the_id_of_any_event_resumes_every_topic_of_a_session(site: Site) -> None:
    async def scenario(api: Api) -> None:
        names = [f"s2.{name}" for name in "abc"]
        for name in names:
            await api.append(name, *range(5))
        path = await api.session(topics={name: {} for name in names}, limit=2)
        stream = await api.stream(path)
        events = [await stream.next() for _ in range(12)]
        await stream.close()
        for at, event in enumerate(events):
            seen: dict[str, list[int]] = {name: [] for name in names}
            for earlier in events[: at + 1]:
                if earlier.name == "record":
                    seen[earlier.data["topic"]] += earlier.seqs
            for how in ("header", "query"):
                query = f"?last_event_id={event.id}" if how == "query" else ""
                headers = {"last-event-id": str(event.id)} if how == "header" else {}
                again = await api.stream(path + query, headers=headers)
                rest = await drained(again, 3)
                for name in names:
                    assert seen[name] + rest.get(name, []) == [1, 2, 3, 4, 5]
                await again.close()

    site.run(scenario(site.api))


def test_without_an_id_a_session_begins_where_it_was_defined_to(site: Site) -> None:
    """As when a connection broke before its first event: what was sent has not arrived."""

    async def scenario(api: Api) -> None:
        await api.append("s3.all", 1, 2)
        await api.append("s3.some", 1, 2)
        await api.append("s3.tail", 1)
        wanted = {"s3.all": {}, "s3.some": {"from_seq": 1}, "s3.tail": {"tail": True}}
        path = await api.session(topics=wanted, prefix="s3.*")
        await api.append("s3.tail", 2)
        await api.append("s3.new", 1)
        for _ in range(2):
            stream = await api.stream(path)
            seen = await drained(stream, 4)
            assert seen == {"s3.all": [1, 2], "s3.some": [2], "s3.tail": [2], "s3.new": [1]}
            await stream.close()

    site.run(scenario(site.api))


def test_a_prefix_follows_topics_as_they_come_also_while_nobody_reads(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("p1.old", "before")
        path = await api.session(prefix="p1.*")
        stream = await api.stream(path)
        assert await drained(stream, 1) == {}, "what was there begins at its head"
        await api.append("p1.new", 1, 2)
        await api.append("p2.other", 1)
        assert [record["$seq"] for record in await stream.records(2)] == [1, 2]
        last_id = str(stream.last_id)
        await stream.close()
        await api.append("p1.away", 1)
        await api.append("p1.new", 3)
        stream = await api.stream(path, headers={"last-event-id": last_id})
        assert await drained(stream, 3) == {"p1.away": [1], "p1.new": [3]}
        await stream.close()

    site.run(scenario(site.api))


def test_two_streams_of_one_session_do_not_disturb_each_other_or_writers(site: Site) -> None:
    async def scenario(api: Api) -> None:
        path = await api.session(prefix="twin.")
        streams = [await api.stream(path), await api.stream(path)]
        for number in range(3):
            assert (await api.append(f"twin.{number}", 1))["created"] is True
        for stream in streams:
            seen = {(await stream.named("record")).data["topic"] for _ in range(3)}
            assert seen == {"twin.0", "twin.1", "twin.2"}
            await stream.close()

    site.run(scenario(site.api))


def test_deleting_and_making_anew_is_exact_for_a_session(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("s4.a", *range(50))
        await api.append("s4.b", 1)
        path = await api.session(topics={"s4.a": {}, "s4.b": {}})
        stream = await api.stream(path)
        assert len((await drained(stream, 2))["s4.a"]) == 50
        old_id = str(stream.last_id)
        await api.delete("/v0/topics/s4.a")
        gone = await stream.named("topic-deleted")
        assert (gone.data["topic"], gone.data["reason"]) == ("s4.a", "deleted")
        await api.append("s4.b", 2)
        assert (await stream.next()).data["topic"] == "s4.b", "the stream goes on without it"
        await stream.close()

        stream = await api.stream(path, headers={"last-event-id": old_id})
        told = await stream.named("topic-deleted")
        assert told.data["topic"] == "s4.a", "also who was away is told"
        await stream.close()

        await api.append("s4.a", *range(60))
        for _ in range(2):
            # Twice, as if the connection had broken before anything arrived: seqs 1 to 50 of the
            # new incarnation are not those that the client has.
            stream = await api.stream(path, headers={"last-event-id": old_id})
            told = await stream.named("tombstone")
            assert told.data["reason"] == "recreated"
            seen = await drained(stream, 2)
            assert seen == {"s4.a": list(range(1, 61)), "s4.b": [2]}
            await stream.close()
        new_id = str(stream.last_id)
        await api.append("s4.a", 61)
        stream = await api.stream(path, headers={"last-event-id": new_id})
        assert await drained(stream, 2) == {"s4.a": [61]}, "told once, it is an id like any other"
        await stream.close()

    site.run(scenario(site.api))


def test_the_first_id_of_a_stream_knows_every_topic_of_its_session(site: Site) -> None:
    async def scenario(api: Api) -> None:
        for name in ("s5.a", "s5.b"):
            await api.append(name, *range(20))
        path = await api.session(topics={"s5.a": {}, "s5.b": {}})
        stream = await api.stream(path)
        await drained(stream, 2)
        last_id = str(stream.last_id)
        await stream.close()
        await api.delete("/v0/topics/s5.a")
        await api.append("s5.a", 1)

        stream = await api.stream(path, headers={"last-event-id": last_id})
        first = await stream.next()
        assert (first.name, first.data["topic"]) == ("tombstone", "s5.a")
        await stream.close()
        stream = await api.stream(path, headers={"last-event-id": str(first.id)})
        assert await drained(stream, 2) == {"s5.a": [1]}, "nothing comes twice"
        await stream.close()

    site.run(scenario(site.api))


def test_a_topic_made_anew_under_a_prefix_is_followed_at_once(site: Site) -> None:
    async def scenario(api: Api) -> None:
        path = await api.session(prefix="again.*")
        stream = await api.stream(path)
        for number in range(3):
            await api.append("again.x", number)
            record = await stream.named("record")
            assert record.data["records"][0]["data"] == number
            await api.delete("/v0/topics/again.x")
            await stream.named("topic-deleted")
        await stream.close()

    site.run(scenario(site.api))


def test_a_watch_has_at_most_256_topics_and_says_what_it_leaves_out(site: Site) -> None:
    async def scenario(api: Api) -> None:
        names = [f"many.{number:03}" for number in range(256)]
        for name in names:
            await api.put(f"/v0/topics/{name}")
        path = await api.session(prefix="many.")
        stream = await api.stream(path)
        await drained(stream, 256)
        await api.append("many.999", 1)
        told = await stream.named("error")
        assert told.data["error"]["code"] == "watch_full"
        assert told.data["error"]["detail"] == {"topic": "many.999"}
        await api.delete("/v0/topics/many.000")
        await stream.named("topic-deleted")
        await api.append("many.998", 1)
        assert (await stream.named("record")).data["topic"] == "many.998", "there is room again"
        await stream.close()
        assert (await api.post("/v0/watch", {"prefix": "many."})).code == "invalid_request"

    site.run(scenario(site.api))


def test_a_session_filters_by_node_and_match_and_respects_dedupe_node(site: Site) -> None:
    async def scenario(api: Api) -> None:
        records = [{"data": n, "node": f"n{n}", "tag": f"t{n}"} for n in range(3)]
        await api.post("/v0/topics/f.one", {"records": records})
        await api.post("/v0/topics/f.two", {"records": records, "config": {"dedupe_node": False}})
        topics: dict[str, Any] = {"f.one": {}, "f.two": {}}
        for more, one, two in (
            ({"node": "n0"}, [2, 3], [1, 2, 3]),
            ({"node": ["n0", "n1"]}, [3], [1, 2, 3]),
            ({"match": "t1"}, [2], [2]),
            ({"match": ["tag", "Glob", "t*"]}, [1, 2, 3], [1, 2, 3]),
        ):
            stream = await api.stream(await api.session(topics=topics, **more))
            assert await drained(stream, 2) == {"f.one": one, "f.two": two}, more
            await stream.close()

    site.run(scenario(site.api))


# --- slow readers


def test_a_deletion_reaches_a_reader_that_had_stopped_reading(site: Site) -> None:
    async def scenario(api: Api) -> None:
        for name in ("stuck", "stuck.too"):
            await api.append(name, "x" * 1000)
        path = await api.session(topics={"stuck": {}, "stuck.too": {}})
        streams = [
            await api.watch("stuck", receive_buffer=4096),
            await api.stream(path, receive_buffer=4096),
        ]
        topic = site.served.app.topics.get("stuck")

        def stalled() -> bool:
            assert topic.active is not None
            watchers = [one for group in topic.active.subscribers.by_view.values() for one in group]
            return len(watchers) == 2 and all(one.stalled for one in watchers)

        while not stalled():
            await api.append("stuck", *["y" * 100_000] * 10)
        await api.delete("/v0/topics/stuck")
        events = await streams[0].ended()
        assert events[-1].name == "topic-deleted"
        assert (await streams[1].named("topic-deleted")).data["topic"] == "stuck"
        await api.append("stuck.too", 1)
        assert (await streams[1].named("record")).data["topic"] == "stuck.too"
        await streams[1].close()

    site.run(scenario(site.api))


def test_a_slow_reader_is_told_of_every_topic_that_was_made_anew(tmp_path: Path) -> None:
    """All of that at once is more than the buffer of a stream holds."""

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            served.app.kernel.catalog._next = 2**42  # long ids, as after many topics
            names = [f"anew.{number:03}" for number in range(256)]
            for name in names:
                await api.append(name, 1)
            path = await api.session(topics={name: {"from_seq": 1} for name in names})
            for name in names[:-1]:
                await api.delete(f"/v0/topics/{name}")
                await api.append(name, 1, 2)
            await api.delete(f"/v0/topics/{names[-1]}")
            stream = await api.stream(path, receive_buffer=4096)
            told: dict[str, list[str]] = {name: [] for name in names}
            while any("caught-up" not in told[name] for name in names[:-1]):
                event = await stream.next()
                told[event.data["topic"]].append(event.name)
            await stream.close()
            assert told.pop(names[-1]) == ["topic-deleted"]
            assert all(events[:2] == ["tombstone", "record"] for events in told.values())

    run(scenario())


# --- across a restart


def test_14_streams_resume_across_kill_9_and_restart_of_the_server(tmp_path: Path) -> None:
    """Checklist 14: restart keeps watch cursors, since ids describe themselves."""

    async def first(api: Api) -> tuple[str, str, str]:
        await api.append("r.one", 1, 2)
        await api.append("r.two", 1)
        plain.append(await api.session(topics={"r.two": {}}))
        path = await api.session(topics={"r.one": {}, "r.two": {}}, prefix="r.*")
        single, several = await api.watch("r.one"), await api.stream(path)
        await single.named("caught-up")
        assert await drained(several, 2) == {"r.one": [1, 2], "r.two": [1]}
        await api.append("r.new", 1)
        await several.named("record")
        return path, str(single.last_id), str(several.last_id)

    async def second(api: Api, path: str, single_id: str, several_id: str) -> None:
        await api.append("r.one", 3)
        await api.append("r.new", 2)
        await api.append("r.newer", 1)
        single = await api.watch("r.one", headers={"last-event-id": single_id})
        assert await drained(single, 1) == {"r.one": [3]}
        several = await api.stream(path, headers={"last-event-id": several_id})
        assert await drained(several, 4) == {"r.one": [3], "r.new": [2], "r.newer": [1]}
        assert await drained(await api.stream(plain[0]), 1) == {"r.two": [1]}

    plain: list[str] = []
    with server_process(tmp_path) as process:
        told = run(first(process.api))
        process.kill()
    with server_process(tmp_path) as process:
        run(second(process.api, *told))
        process.kill()
    with server_process(tmp_path) as process:
        run(third(process.api, *told))


async def third(api: Api, path: str, single_id: str, several_id: str) -> None:
    await api.delete("/v0/topics/r.one")
    await api.append("r.one", "anew")
    single = await api.watch("r.one", headers={"last-event-id": single_id})
    assert (await single.next()).data["reason"] == "recreated"
    several = await api.stream(path, headers={"last-event-id": several_id})
    assert (await several.named("tombstone")).data["reason"] == "recreated"


def test_a_server_that_is_recovering_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            host, served.server._http.host = served.server._http.host, None
            api = served.api
            for path in ("/v0/topics", "/v0/topics/x", "/metrics"):
                answer = await api.get(path)
                assert (answer.status, answer.code) == (503, "not_ready"), path
                assert "replay_progress" in answer.error["detail"]
                assert answer.header("retry-after") == "1"
            ready = await api.get("/readyz")
            assert (ready.status, ready.json["ready"]) == (503, False)
            assert (await api.get("/healthz")).status == 200
            assert (await api.get("/openapi.json")).status == 200
            served.server._http.host = host

    run(scenario())


def test_a_stream_ends_properly_when_the_server_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await served.api.append("t", 1)
            stream = await served.api.watch("t")
            await stream.named("caught-up")
        with pytest.raises(Ended, match="properly"):
            await stream.next()

    run(scenario())
