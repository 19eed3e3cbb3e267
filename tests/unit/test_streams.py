"""Durable Streams without sockets: the protocol's values, the verdicts, and the store on virtual
time with crashes, caps, forks and expiry."""

from __future__ import annotations

import asyncio
import base64
import json
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import (
    Conflict,
    FairwayError,
    InvalidRequest,
    NotFound,
    Throttled,
    Unauthorized,
)
from fairway.server.auth import ANYONE, Identity
from fairway.server.streams import events, protocol
from fairway.server.streams.app import StreamsApp
from fairway.server.streams.content import PIECE_BYTES, joined, piece_of, records_of
from fairway.server.streams.live import StreamsConfig
from fairway.server.streams.protocol import AppendRequest, Offset, Producer
from fairway.server.streams.stored import StreamMeta, decode_meta
from fairway.server.streams.stream import Denied, Repeat, Stream, as_of_fork, judge_producer
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics.engine import TopicsConfig
from fairway.topics.retention import RetentionConfig
from fairway.topics.topic import Topic
from fairway.wire.records import decode_records
from fairway.wire.topics import TopicConfig, TopicPatch
from tests.support.streams import Answer, Client, streams_on
from tests.support.topics import new, topics_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

SECOND_NS = 1_000_000_000


def simulated(scenario: Callable[[], Coroutine[Any, Any, None]], **options: Any) -> None:
    run(scenario, limit_ns=3600 * SECOND_NS, quiet=True, **options)


# --- names and offsets


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("chat", "ds:chat"),
        ("chat/room-1", "ds:chat:room-1"),
        ("a//b", "ds:a::b"),
        ("v1.2_x", "ds:v1.2_x"),
    ],
)
def test_readable_paths_are_topic_names(path: str, name: str) -> None:
    assert protocol.topic_name(path) == name


@given(st.sets(st.text(min_size=1), min_size=2, max_size=8))
def test_no_two_paths_share_a_topic(paths: set[str]) -> None:
    paths = {path for path in paths if path.isprintable()}
    assert len({protocol.topic_name(path) for path in paths}) == len(paths)


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**15)), min_size=2))
def test_offsets_sort_as_text_like_positions(pairs: list[tuple[int, int]]) -> None:
    offsets = [Offset(*pair) for pair in pairs]
    assert sorted(offsets) == sorted(offsets, key=str)
    assert [Offset.parse(str(offset)) for offset in offsets] == offsets


@pytest.mark.parametrize("text", ["", "0,1", "1_2", "0" * 16, f"{'0' * 16}_{'0' * 15}x", "NOW"])
def test_malformed_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        protocol.parse_read(f"offset={text}".encode())


@pytest.mark.parametrize(
    "path",
    ["/v1/stream/", "/v1/stream", "/other/x", "/v1/stream/a\x00b", "/v1/stream/" + "x" * 3000],
)
def test_impossible_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        protocol.stream_path(path)


def test_reserved_paths_are_not_streams() -> None:
    with pytest.raises(NotFound):
        protocol.stream_path("/v1/stream/__ds/subscriptions/x")


# --- headers and queries


@pytest.mark.parametrize(
    "headers",
    [
        {b"stream-ttl": b"01"},
        {b"stream-ttl": b"-1"},
        {b"stream-ttl": b"1.5"},
        {b"stream-ttl": b"1e3"},
        {b"stream-ttl": b"9" * 17},
        {b"stream-ttl": b"\xb2"},
        {b"stream-ttl": b"1", b"stream-expires-at": b"2030-01-01T00:00:00Z"},
        {b"stream-expires-at": b"tomorrow"},
        {b"stream-expires-at": b"2030-01-01"},
        {b"stream-expires-at": b"2030-13-01T00:00:00Z"},
        {b"stream-fork-sub-offset": b"0"},
        {b"stream-forked-from": b"/v1/stream/a", b"stream-fork-sub-offset": b"+1"},
        {b"stream-forked-from": b"/v1/stream/a", b"stream-fork-offset": b"now"},
        {b"stream-forked-from": b"a"},
        {b"content-type": b"nonsense"},
    ],
)
def test_malformed_create_is_refused(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidRequest):
        protocol.parse_create(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {b"producer-id": b"p"},
        {b"producer-id": b"", b"producer-epoch": b"0", b"producer-seq": b"0"},
        {b"producer-id": b"p", b"producer-epoch": b"x", b"producer-seq": b"0"},
        {b"producer-id": b"p", b"producer-epoch": b"0", b"producer-seq": b"9007199254740992"},
        {b"producer-id": b"p" * 257, b"producer-epoch": b"0", b"producer-seq": b"0"},
    ],
)
def test_malformed_append_is_refused(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidRequest):
        protocol.parse_append(headers)


@pytest.mark.parametrize(
    "query",
    [b"offset=&x=1", b"offset=-1&offset=-1", b"live=sse", b"offset=-1&live=no", b"offset=%ff"],
)
def test_malformed_read_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidRequest):
        protocol.parse_read(query)


def test_unknown_query_parameters_are_left_alone() -> None:
    assert protocol.parse_read(b"offset=-1&x=1&cursor=abc") == ("-1", None, None)


def test_only_true_closes() -> None:
    for value, closes in ((b"true", True), (b"TRUE", True), (b"yes", False), (b"1", False)):
        assert protocol.parse_append({b"stream-closed": value}).closes is closes


def test_cursor_never_stands_still() -> None:
    now_s = protocol.CURSOR_EPOCH_S + 100 * protocol.CURSOR_INTERVAL_S + 3
    random = Random(1)
    assert protocol.next_cursor(now_s, None, random) == 100
    assert protocol.next_cursor(now_s, 99, random) == 100
    for echoed in (100, 101, 5000):
        assert protocol.next_cursor(now_s, echoed, random) > echoed


def test_tags_match_as_http_says() -> None:
    tag = protocol.etag(5, Offset(5, 0), Offset(5, 2), records=2)
    assert tag != protocol.etag(5, Offset(5, 0), Offset(5, 2), records=2, closed=True)
    assert protocol.matches(tag.encode(), tag)
    assert protocol.matches(b'"other", W/' + tag.encode(), tag)
    assert protocol.matches(b"*", tag)
    assert not protocol.matches(None, tag)
    assert not protocol.matches(b'"other"', tag)


# --- events


@given(st.text())
def test_no_payload_leaves_its_event(payload: str) -> None:
    spelled = events.event("data", payload).decode()
    head, _, rest = spelled.partition("\n")
    lines = rest.removesuffix("\n\n").split("\n")
    assert head == "event: data"
    assert spelled.endswith("\n\n")
    assert all(line.startswith("data:") for line in lines)
    assert "\r" not in spelled
    joined_lines = "\n".join(line.removeprefix("data:") for line in lines)
    assert joined_lines == payload.replace("\r\n", "\n").replace("\r", "\n")


@given(st.text(min_size=1), st.data())
def test_pieces_are_cut_only_between_characters(text: str, data: st.DataObject) -> None:
    body = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body)), max_size=6)) | {len(body)})
    pieces = [body[a:b] for a, b in zip([0, *cuts], cuts, strict=False) if b > a]
    assert events.whole_characters(pieces) == len(pieces)
    for upto in range(1, len(pieces)):
        whole = events.whole_characters(pieces[:upto])
        b"".join(pieces[:whole]).decode()


def test_what_is_not_utf8_is_not_waited_for_for_ever() -> None:
    assert events.whole_characters([b"caf\xe9"]) == 0
    assert events.whole_characters([b"\xe9", b"\xe9"]) == 2


# --- content


@given(st.binary(min_size=1, max_size=100))
def test_bytes_come_back_as_they_were(body: bytes) -> None:
    content = records_of(body, json=False)
    assert json.loads(content.raw) == [{"data": base64.b64encode(body).decode()}]
    pieces = [piece_of(bytes(record.data), json=False) for record in decode_records(content.raw)]
    assert joined(pieces, json=False) == body


def test_a_large_body_is_several_records_of_one_append() -> None:
    body = bytes(range(256)) * (PIECE_BYTES // 100)
    content = records_of(body, json=False)
    assert content.count == 3
    pieces = [piece_of(bytes(record.data), json=False) for record in decode_records(content.raw)]
    assert joined(pieces, json=False) == body


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b'{"a": 1}', ['{"a": 1}']),
        (b"[1, [2, 3], null]", ["1", "[2, 3]", "null"]),
        (b"[[1]]", ["[1]"]),
        (b"[]", []),
        (b'  "x"  ', ['"x"']),
        (b'{\n"a":\r\n[1]}', ['{"a":[1]}']),
    ],
)
def test_json_is_flattened_one_level(body: bytes, messages: list[str]) -> None:
    content = records_of(body, json=True)
    assert [bytes(record.data).decode() for record in decode_records(content.raw)] == messages


@pytest.mark.parametrize("body", [b"{", b"1 2", b'1},{"data":2', b"[1,]", b'"\xff"', b'"a\nb"'])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        records_of(body, json=True)


def test_too_many_messages_are_a_payload_too_large() -> None:
    with pytest.raises(InvalidRequest) as refused:
        records_of(b"[" + b"1," * 10_000 + b"1]", json=True)
    assert refused.value.code == "payload_too_large"


@pytest.mark.parametrize("data", [b'{"a":1}', b'"not base64!"', b'"\\u0041"', b"null"])
def test_records_appended_past_the_protocol_are_given_as_json(data: bytes) -> None:
    assert piece_of(data, json=False) == data


# --- verdicts


@pytest.mark.parametrize(
    ("known", "epoch", "seq", "verdict"),
    [
        (None, 0, 0, None),
        (None, 7, 0, None),
        (None, 0, 1, Denied.GAP),
        ((1, 3), 1, 4, None),
        ((1, 3), 1, 3, Repeat(3)),
        ((1, 3), 1, 0, Repeat(3)),
        ((1, 3), 1, 5, Denied.GAP),
        ((1, 3), 0, 9, Denied.STALE_EPOCH),
        ((1, 3), 2, 0, None),
        ((1, 3), 2, 1, Denied.EPOCH_START),
    ],
)
def test_producer_verdicts(
    known: tuple[int, int] | None, epoch: int, seq: int, verdict: object
) -> None:
    assert judge_producer(Producer("p", epoch, seq), known) == verdict


def stream(**changes: Any) -> Stream:
    meta = StreamMeta(1, "s", "text/plain", 0, None, None, **changes)
    return Stream(meta, Topic("ds:s", 5, TopicConfig()), touched_ms=0)


def asked(
    *, kind: str = "text/plain", closes: bool = False, seq: str | None = None, producer: Any = None
) -> AppendRequest:
    return AppendRequest(kind, closes, seq, Producer(*producer) if producer else None)


def test_closed_is_said_before_anything_else() -> None:
    closed = stream(closed=True, closed_by=("p", 1, 2))
    assert closed.judge(asked(kind="text/html"), None, empty=False) is Denied.CLOSED
    assert closed.judge(asked(closes=True), None, empty=True) == Repeat(None)
    assert closed.judge(asked(producer=("p", 1, 2)), (1, 2), empty=False) == Repeat(2)
    assert closed.judge(asked(producer=("p", 1, 1)), (1, 2), empty=False) is Denied.CLOSED
    assert closed.judge(asked(producer=("p", 0, 9)), (1, 2), empty=False) is Denied.STALE_EPOCH


def test_verdicts_of_an_open_stream() -> None:
    open_ = stream(seq="b")
    assert open_.judge(asked(), None, empty=False) is None
    assert open_.judge(asked(kind="Text/Plain; charset=utf-8"), None, empty=False) is None
    assert open_.judge(asked(kind="text/html"), None, empty=False) is Denied.CONTENT_TYPE
    assert open_.judge(asked(kind="text/html", closes=True), None, empty=True) is None
    assert open_.judge(asked(seq="b"), None, empty=False) is Denied.SEQ
    assert open_.judge(asked(seq="B"), None, empty=False) is Denied.SEQ
    assert open_.judge(asked(seq="ba"), None, empty=False) is None
    assert open_.judge(asked(seq="a", producer=("p", 0, 0)), (0, 0), empty=False) == Repeat(0)


def test_ttl_slides_and_a_date_does_not() -> None:
    idle = Stream(
        StreamMeta(1, "s", "text/plain", 0, 10, None), Topic("ds:s", 5, TopicConfig()), touched_ms=0
    )
    assert not idle.expired(9_999)
    assert idle.expired(10_000)
    idle.readers = 1
    assert not idle.expired(10_000)
    idle.readers = 0
    assert idle.touch(9_000)
    assert not idle.expired(18_999)
    dated = stream()
    dated.meta = StreamMeta(1, "s", "text/plain", 0, None, "1970-01-01T00:00:10Z")
    dated.touch(9_999)
    dated.readers = 1
    assert not dated.expired(9_999)
    assert dated.expired(10_000)


def test_an_offset_of_a_former_stream_is_gone() -> None:
    now = stream()
    now.topic.head = 3
    assert now.place_of(Offset(5, 3)) == (0, 3)
    with pytest.raises(InvalidRequest) as gone:
        now.place_of(Offset(4, 1))
    assert gone.value.code == "gone"
    for wrong in (Offset(5, 4), Offset(6, 0)):
        with pytest.raises(InvalidRequest) as refused:
            now.place_of(wrong)
        assert refused.value.code == "invalid_request"


# --- over the engine: what survives


CLOSE = {"stream_closed": "true"}


def producer(epoch: int, seq: int, name: str = "p") -> dict[str, str]:
    return {"producer_id": name, "producer_epoch": str(epoch), "producer_seq": str(seq)}


def test_everything_survives_a_kill() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "one ", stream_expires_at="2090-01-01T00:00:00Z")
            await client.post("a", "two ", stream_seq="5")
            await client.post("a", "three ", **producer(3, 0))
            await client("PUT", "j", b"[1,2]", content_type="application/json")
            await client.post("a", "four", **producer(3, 1), **CLOSE)
            before = await client("HEAD", "a")
            killed = wal.kill()
        async with streams_on(killed) as client:
            after = await client("HEAD", "a")
            assert after == before
            assert await client.read_all("a") == b"one two three four"
            assert (await client.post("a", "no")).status == 409
            again = await client.post("a", "four", **producer(3, 1), **CLOSE)
            assert (again.status, again.headers["producer-seq"]) == (204, "1")
            assert (await client.post("a", "x", **producer(2, 0))).status == 403
            assert await client.read_all("j") == b"[1,2]"
            await client("POST", "j", b"3", content_type="application/json", stream_seq="1")
        async with streams_on(killed.reopened()) as client:
            repeated = await client(
                "POST", "j", b"4", content_type="application/json", stream_seq="1"
            )
            assert repeated.status == 409
            assert await client.read_all("j") == b"[1,2,3]"

    simulated(scenario)


def test_a_stream_is_a_topic_that_shows_its_bytes_as_base64() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client("PUT", "b/in", b"\x00\xff", content_type="application/octet-stream")
            diff = await client.topics.reading.diff("ds:b:in", 0)
            assert [json.loads(record.data) for record in diff.page.records] == ["AP8="]
            await client.topics.delete("ds:b:in")
            assert (await client.get("b/in")).status == 404

    simulated(scenario)


def test_an_offset_from_before_a_delete_is_gone() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            offset = (await client.put("a", "old")).offset
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404
            await client.put("a", "new")
            assert (await client.get(f"a?offset={offset}")).status == 410
            assert await client.read_all("a") == b"new"

    simulated(scenario)


def test_a_topic_that_is_no_stream_is_left_alone() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.topics.append("ds:a", new(1))
            assert (await client.get("a")).status == 404
            assert (await client.put("a")).status == 409
            await client.topics.create("ds:b")
            assert (await client.put("b", "adopted")).status == 201

    simulated(scenario)


# --- caps and gaps


def small_chunks() -> TopicsConfig:
    return TopicsConfig(retention=RetentionConfig(chunk=1), hot_bytes=1)


async def capped(client: Client, path: str, appends: int, keep: int) -> list[str]:
    """A stream of single letters, of which the last few are kept; the offset after each."""
    await client.put(path)
    await client.topics.put(f"ds:{path}", TopicPatch(cap_records=keep))
    return [(await client.post(path, chr(97 + n))).offset for n in range(appends)]


async def settle_retention() -> None:
    await asyncio.sleep(2)


def test_what_a_cap_took_is_answered_410_and_where_to_go_on() -> None:
    async def scenario() -> None:
        async with streams_on(topics_config=small_chunks()) as client:
            offsets = await capped(client, "a", 6, keep=2)
            await settle_retention()
            for live in ("", "&live=long-poll", "&live=sse"):
                lost = await client.get(f"a?offset={offsets[0]}{live}")
                assert (lost.status, lost.offset) == (410, offsets[3])
                assert lost.headers["stream-gap-from"] == "2"
                assert lost.headers["stream-gap-to"] == "4"
                assert await client.read_all("a", lost.offset) == b"ef"

    simulated(scenario)


@pytest.mark.parametrize(
    "query", ["", "?offset=-1", "?offset=-1&live=long-poll", "?offset=-1&live=sse"]
)
def test_a_reader_from_the_start_is_told_what_a_cap_took(query: str) -> None:
    async def scenario() -> None:
        async with streams_on(topics_config=small_chunks()) as client:
            await capped(client, "a", 6, keep=2)
            await settle_retention()
            await client.post("a", **CLOSE)  # so that an event stream ends, too
            whole = await client.get(f"a{query}")
            assert whole.status == 200
            assert (whole.headers["stream-gap-from"], whole.headers["stream-gap-to"]) == ("1", "4")
            assert ("".join(whole.data).encode() if "sse" in query else whole.body) == b"ef"

    simulated(scenario)


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

    simulated(scenario)


def test_a_fork_of_a_trimmed_source_says_what_it_never_had() -> None:
    async def scenario() -> None:
        async with streams_on(topics_config=small_chunks()) as client:
            offsets = await capped(client, "a", 6, keep=2)
            await settle_retention()
            await client("PUT", "f", stream_forked_from="/v1/stream/a")
            whole = await client.get("f")
            assert (whole.body, whole.headers["stream-gap-to"]) == (b"ef", "4")
            assert (await client.get(f"f?offset={offsets[0]}")).status == 410

    simulated(scenario)


async def told(client: Client, path: str, offset: str = "-1") -> list[Any]:
    """What a reader from `offset` on gets, bodies and losses, up to the end."""
    found: list[Any] = []
    while True:
        answer = await client.get(f"{path}?offset={offset}")
        if "stream-gap-from" in answer.headers:
            lost = answer.headers["stream-gap-from"], answer.headers["stream-gap-to"]
            found.append(tuple(map(int, lost)))
        if answer.status == 410:
            found.append(json.loads(answer.body)["error"]["detail"]["reason"])
        else:
            assert answer.status == 200, answer
            if answer.body:
                found.append(answer.body)
        if "stream-up-to-date" in answer.headers:
            return found
        assert answer.offset > offset
        offset = answer.offset


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
                assert await told(client, path) == [(1, 2), b"efgh"]
                assert await told(client, path, offsets[0]) == [(2, 2), "cap", b"efgh"]
                assert await told(client, path, offsets[1]) == [b"efgh"]
                assert await told(client, path, offsets[5]) == [b"gh"]
            assert await told(client, "deleted") == [(1, 2)]
            assert await told(client, "deleted", offsets[1]) == []
            assert await told(client, "lost") == [(1, 1)]

    simulated(scenario)


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
                assert await told(client, path) == [b"12", (3, last - 1), "crash", b"3"]
                assert await told(client, path, offsets[0]) == [b"2", (3, last - 1), "crash", b"3"]
                assert await told(client, path, inside) == [(last - 1, last - 1), "crash", b"3"]
            assert await told(client, "inside") == [b"12", (3, last - 2), "crash"]
            assert await told(client, "before") == [b"12"]
            assert await told(client, "late") == [(1, last), b"4"]
            assert await told(client, "late", offsets[1]) == [(3, last), "mixed", b"4"]
            assert (await told(client, "a", offsets[1]))[:3] == [(3, last), "mixed", b"4"]

    simulated(scenario)


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

    simulated(scenario)


def test_a_fork_stored_before_segments_told_how_they_lost_things_is_read() -> None:
    stored = [1, "f", "text/plain", 0, None, None, ["a", 5, "x", 0, [["ds:a", 5, 9, 3]], True]]
    fork = decode_meta(msgspec.msgpack.encode(stored)).fork
    assert fork is not None
    past = as_of_fork(Topic("ds:a", 5, TopicConfig()), fork.segments[0])
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
        simulated(scenario, seed=seed, shuffle=True)


# --- forks


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

    simulated(scenario)


def test_offsets_of_a_fork_rise_and_the_shared_ones_are_its_sources() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            first = (await client.put("a", "1")).offset
            second = (await client.post("a", "2")).offset
            fork = await client(
                "PUT", "f", stream_forked_from="/v1/stream/a", stream_fork_offset=first
            )
            assert fork.offset == first
            own = (await client.post("f", "x")).offset
            assert first < own
            assert await client.read_all("f", first) == b"x"
            assert (await client.get(f"f?offset={second}")).status == 400
            assert (await client.get(f"f?offset={own}")).body == b""

    simulated(scenario)


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

    simulated(scenario)


def test_a_fork_that_a_crash_left_half_made_holds_nothing() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "data")
            streams = client.app.start()
            source = await streams.get("a")
            topic, _ = await client.topics.create("ds:f")
            await streams._pin(source, topic, 1)  # and no further
            killed = wal.kill()
        async with streams_on(killed) as client:
            assert client.topics.get("ds:a").pin == 1
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404

    simulated(scenario)


def test_a_source_whose_last_fork_died_with_the_process_goes_too() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "data")
            await client("PUT", "f", stream_forked_from="/v1/stream/a")
            await client("DELETE", "a")
            client.topics.deleted.clear()  # nobody is told of what comes now
            await client.topics.delete("ds:f")
            killed = wal.kill()
        async with streams_on(killed) as client:
            client.app.start()
            await settle_retention()
            assert client.topics.find("ds:a") is None

    simulated(scenario)


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
                client.app.start()
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
        assert set(client.app.start()._streams) == {"ds:a"}
        await client.topics.delete("ds:a")
        assert client.app.start()._streams == {}

    simulated(scenario)


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

    simulated(scenario)


def test_a_stream_deleted_as_a_topic_before_it_is_known_is_not_remembered() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            append = client.topics.writing.append

            async def lose_at_once(topic: Topic, new: Any) -> Any:
                appended = await append(topic, new)
                await client.topics.delete(topic.name)
                return appended

            client.topics.writing.append = lose_at_once  # type: ignore[method-assign]
            assert (await client.put("a", "x")).status == 201
            assert client.app.start()._streams == {}
            assert (await client.get("a")).status == 404

    simulated(scenario)


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

    simulated(scenario)


# --- expiry


def test_idle_streams_go_by_themselves_and_used_ones_stay() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("idle", stream_ttl="10")
            await client.put("used", stream_ttl="10")
            await client.put("kept")
            for _ in range(4):
                await asyncio.sleep(6)
                assert (await client.get("used")).status == 200
                await client("HEAD", "idle")
            assert client.topics.find("ds:idle") is None
            assert client.topics.find("ds:used") is not None
            assert client.topics.find("ds:kept") is not None

    simulated(scenario)


def test_a_restart_never_shortens_a_life() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", stream_ttl="80")
            await asyncio.sleep(50)
            await client.get("a")
            await asyncio.sleep(5)
            await client.get("a")
            killed = wal.kill()
        async with streams_on(killed) as client:
            await asyncio.sleep(75)
            assert (await client("HEAD", "a")).status == 200
            await asyncio.sleep(20)
            assert client.topics.find("ds:a") is None

    simulated(scenario)


def test_a_live_reader_keeps_a_stream_alive() -> None:
    async def scenario() -> None:
        config = StreamsConfig(long_poll_ns=30 * SECOND_NS)
        async with streams_on(config=config) as client:
            await client.put("a", stream_ttl="5")
            answer = await client.get("a?offset=now&live=long-poll")
            assert answer.status == 204
            assert (await client("HEAD", "a")).status == 200
            await asyncio.sleep(7)
            assert (await client("HEAD", "a")).status == 404

    simulated(scenario)


# --- live


class Live:
    """An event stream that is being read."""

    def __init__(self, client: Client, path: str) -> None:
        self.client, self.path = client, path
        self.answer = Answer()
        self.leave = asyncio.Event()

    async def run(self) -> None:
        await self.client.follow(self.answer, self.leave, "GET", self.path)

    async def until(self, condition: Callable[[Answer], object]) -> None:
        async with asyncio.timeout(30):
            while not condition(self.answer):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


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

    simulated(scenario)


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

    simulated(scenario)


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

    simulated(scenario)


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

    simulated(scenario)


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

    simulated(scenario)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_what_lands_between_reading_and_waiting_is_pushed(live: str) -> None:
    """Readers come and go while single letters are appended; none misses or repeats one."""

    async def scenario() -> None:
        letters = "abcdefghijklmnop"
        config = StreamsConfig(long_poll_ns=SECOND_NS, sse_cycle_ns=SECOND_NS // 50)
        async with streams_on(config=config) as client:
            await client.put("a")
            random = Random(asyncio.get_running_loop().clock.now_ns())  # type: ignore[attr-defined]

            async def write() -> None:
                for letter in letters:
                    await asyncio.sleep(random.random() * 0.01)
                    await client.post("a", letter)
                await client.post("a", **CLOSE)

            async def read() -> None:
                found, offset, closed = "", "-1", False
                while not closed:
                    answer = await client.get(f"a?offset={offset}&live={live}")
                    if live == "sse":
                        found += "".join(answer.data)
                        offset = answer.control["streamNextOffset"]
                        closed = answer.control.get("streamClosed", False)
                    else:
                        found += answer.body.decode()
                        offset = answer.offset
                        closed = "stream-closed" in answer.headers
                assert found == letters

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                for _ in range(3):
                    group.create_task(read())

    for seed in range(150):
        simulated(scenario, seed=seed, shuffle=True)


# --- failures


class Ill:
    """A store whose next writes fail."""

    def __init__(self) -> None:
        self.full = False
        self.fails_in = 0
        """The write that fails, counted from the next as 1; 0 if none does."""
        self.wal = MemoryWal(before_write=self._check)

    def _check(self) -> None:
        self.fails_in = max(0, self.fails_in - 1)
        if self.full or self.fails_in == 1:
            raise OSError(28, "no space left on device")

    def fail_once(self, after: int = 0) -> None:
        self.fails_in = after + 2


@pytest.fixture
def ill() -> Ill:
    return Ill()


async def recovered(client: Client) -> None:
    """Wait until the engine takes writes again."""
    async with asyncio.timeout(60):
        while True:
            try:
                client.topics.check_admits()
                return
            except FairwayError:
                await asyncio.sleep(0.1)


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

    simulated(scenario)


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
        simulated(scenario, seed=seed, shuffle=True)


def test_a_failure_in_the_last_moment_before_the_verdict_counts() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a")
            await client.post("a", "1", **producer(0, 0))
            writing, live = client.topics.writing, client.topics.live(client.topics.get("ds:a"))
            real, name = writing.position_of, "ds:p"

            async def failing_behind_its_back(topic: Topic, producer: str) -> Any:
                live.producers[name] = (0, 1)  # an append under way ...
                known = await real(topic, producer)
                del live.producers[name]  # ... which has failed when this is looked at
                writing.position_of = real  # type: ignore[method-assign]
                return known

            writing.position_of = failing_behind_its_back  # type: ignore[method-assign]
            answer = await client.post("a", "3", **producer(0, 2))
            assert (answer.status, answer.headers["producer-expected-seq"]) == (409, "1")

    simulated(scenario)


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
        simulated(scenario, seed=seed, shuffle=True)


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

    simulated(scenario)


def test_a_failed_append_does_not_use_up_its_stream_seq(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a")
            ill.fail_once()
            assert (await client.post("a", "9", stream_seq="9")).status == 503
            await recovered(client)
            assert (await client.post("a", "1", stream_seq="1")).status == 204

    simulated(scenario)


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

    simulated(scenario)


def test_a_failed_create_leaves_nothing_behind(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a", "x")
            ill.full = True
            assert (await client.put("b", "y")).status == 503
            assert (await client("PUT", "f", stream_forked_from="/v1/stream/a")).status == 503
            assert (await client("DELETE", "a")).status == 503
            ill.full = False
            await recovered(client)
            assert (await client.get("b")).status == 404
            assert await client.read_all("a") == b"x"
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404

    simulated(scenario)


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

    simulated(scenario)


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
                assert await told(client, path) == [b"1", (2, 2), "crash"]

    simulated(scenario)


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
        simulated(scenario, seed=seed, shuffle=True)


# --- who may


def test_a_key_reaches_only_its_own_paths() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("team/a", "x")
            await client.put("other/b", "y")
            client.identity = Identity(
                name="k", scopes=frozenset({"read", "write"}), prefixes=("ds:team:",), id="k"
            )
            assert (await client.get("team/a")).status == 200
            assert (await client.get("other/b")).status == 403
            assert (await client.post("other/b", "z")).status == 403
            assert (await client("DELETE", "team/a")).status == 403
            fork = await client("PUT", "team/f", stream_forked_from="/v1/stream/other/b")
            assert fork.status == 403
            assert (await client.put("team/ü", "hashed")).status == 201
            assert client.topics.get(protocol.topic_name("team/ü")).owner == "k"

    simulated(scenario)


class Gate:
    """A meter that lets one reader in at a time, and can turn it away."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, int]] = []
        self.ends: list[Callable[[FairwayError], None]] = []

    def charge(self, identity: Identity, topic: str, *, records: int, size: int) -> None:
        self.charged.append((topic, records))

    def connect(self, identity: Identity, end: Callable[[FairwayError], None]) -> object:
        if self.ends:
            raise Throttled("one at a time", retry_after_ns=1, limit="connections", maximum=1)
        self.ends.append(end)
        return end

    def disconnect(self, guest: Any) -> None:
        self.ends.remove(guest)


def test_what_a_key_uses_is_counted() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with topics_on() as topics:
            client = Client(StreamsApp(topics, meter=gate), topics)
            await client("PUT", "j", content_type="application/json")
            await client("PUT", "j", content_type="application/json")
            await client("POST", "j", b"[1,2,3]", content_type="application/json")
            await client("PUT", "k", b"[1,2]", content_type="application/json")
            await client("PUT", "k", b"[1,2]", content_type="application/json")
            assert topics.get("ds:j").owner == ANYONE.name
            assert gate.charged == [
                *(("ds:j", 0), ("ds:j", 0), ("ds:j", 3)),
                *(("ds:k", 2), ("ds:k", 0)),  # the second one appended nothing
            ]

    simulated(scenario)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_reader_whose_key_is_withdrawn_is_turned_away(live: str) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with topics_on() as topics, asyncio.TaskGroup() as group:
            client = Client(StreamsApp(topics, meter=gate), topics)
            await client.put("a")
            reader = Live(client, f"a?offset=now&live={live}")
            task = group.create_task(reader.run())
            await asyncio.sleep(1)
            assert (await client.get(f"a?offset=now&live={live}")).status == 429
            gate.ends[0](Unauthorized("the key is gone"))
            await asyncio.sleep(0.1)
            assert task.done()
            assert reader.answer.status == (200 if live == "sse" else 401)
            assert gate.ends == []

    simulated(scenario)


# --- answers


@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "HEAD", "DELETE", "OPTIONS", "PATCH"])
def test_every_answer_is_safe_for_browsers(method: str) -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a", "x")
            for path in ("a", "missing"):
                answer = await client(method, path)
                assert answer.status < 500
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert (
                    "stream-next-offset" in answer.headers["access-control-expose-headers"].lower()
                )
                if method == "HEAD":
                    assert answer.body == b""

    simulated(scenario)


def test_the_trace_of_a_request_is_stored_with_what_it_appends() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            await client.put("a", "1", traceparent=trace)
            await client.post("a", "2", traceparent=trace)
            await client.put("b", "1", traceparent="x" * 257)
            await client.post("b", "2", traceparent="x" * 257)
            for path, stored in (("a", trace), ("b", None)):
                topic = client.topics.get(protocol.topic_name(path))
                batches = [await client.topics.reading.batch_at(topic, seq) for seq in (1, 2)]
                assert [batch.trace for batch in batches if batch is not None] == [stored] * 2

    simulated(scenario)


def test_a_range_that_is_over_may_be_cached_and_the_tail_may_not() -> None:
    async def scenario() -> None:
        async with streams_on(config=StreamsConfig(chunk_bytes=1)) as client:
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

    simulated(scenario)


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

    simulated(scenario)


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

    simulated(scenario)


def test_a_tag_says_whether_more_is_there() -> None:
    async def scenario() -> None:
        async with streams_on(config=StreamsConfig(chunk_bytes=1)) as client:
            await client.put("a", "x")
            tail = await client.get("a")
            assert tail.headers["stream-up-to-date"] == "true"
            await client.post("a", "y")
            again = await client.get("a", if_none_match=tail.headers["etag"])
            assert (again.status, again.body) == (200, b"x")
            assert "stream-up-to-date" not in again.headers

    simulated(scenario)
