"""The client without a server: its machines by value, its shells over scripted answers."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway import errors
from fairway.client import (
    AsyncClient,
    Client,
    NewRecord,
    Position,
    Record,
    RetryConfig,
    protocol,
)
from fairway.client.bulk import BATCH_BYTES, Batcher, Bulk
from fairway.client.events import EVENT_BYTES_MAX, EventParser, ServerSentEvent
from fairway.client.following import silence_s
from fairway.client.problems import HttpResponse, NoResponse, refusal_of
from fairway.client.retry import Again, Attempts, Fail, Success, WatchAttempts
from fairway.server.http.problems import problem
from fairway.settings import parse_bytes, parse_duration_ms, read_client_settings
from fairway.wire.topics import AppendReply

SECOND = 1_000_000_000
URL = "http://fairway.test"


# --- server-sent events


def parse_whole(stream: bytes) -> tuple[list[ServerSentEvent], str, int | None]:
    """The dumb twin: the whole stream at once, by the letter of the standard."""
    text = stream.decode(errors="replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\r|\n", text)[:-1]  # the last has no end
    events: list[ServerSentEvent] = []
    kind, data, last_id, seen_id, retry = "", "", "", "", None
    for line in lines:
        if line == "":
            seen_id = last_id
            if data != "":
                events.append(ServerSentEvent(kind or "message", data[:-1], last_id))
            kind = data = ""
        elif line[0] == ":":
            pass
        else:
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "event":
                kind = value
            elif name == "data":
                data += value + "\n"
            elif name == "id" and "\0" not in value:
                last_id = value
            elif name == "retry" and re.fullmatch("[0-9]{1,18}", value):
                retry = int(value)
    return events, seen_id, retry


def parse_cut(chunks: list[bytes]) -> tuple[list[ServerSentEvent], str, int | None]:
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events, parser.last_id, parser.retry_ms


NAMES = st.sampled_from([b"data", b"event", b"id", b"retry", b"", b"dat", b"\xef\xbb\xbfdata"])
VALUES = st.sampled_from(
    [b"", b" ", b"x", b"  two", b"a:b", "ж€😀".encode(), b"\xe2\x82", b"\x00", b"15", b"\xc2\x85"]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b""])
LINES = st.tuples(NAMES, st.sampled_from([b":", b": ", b""]), VALUES, ENDS).map(b"".join)
STREAMS = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb", b"\xef\xbb\xbf\xef\xbb\xbf"]),
    st.lists(st.one_of(LINES, st.binary(max_size=4)), max_size=8).map(b"".join),
).map(b"".join)


@given(STREAMS)
def test_events_are_the_same_however_the_stream_is_cut(stream: bytes) -> None:
    expected = parse_whole(stream)
    assert parse_cut([stream]) == expected
    assert parse_cut([stream[at : at + 1] for at in range(len(stream))]) == expected
    for cut in range(len(stream) + 1):
        assert parse_cut([stream[:cut], b"", stream[cut:]]) == expected


@given(STREAMS, st.data())
def test_events_are_the_same_for_any_number_of_cuts(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert parse_cut(chunks) == parse_whole(stream)


def test_events_by_example() -> None:
    stream = (
        b"retry: 2000\n\n: hb\n\nid: 7.3\nevent: record\ndata: a\ndata: b\n\ndata\n\nid: x\0\n\n"
    )
    events, last_id, retry = parse_cut([stream])
    assert events == [
        ServerSentEvent("record", "a\nb", "7.3"),
        ServerSentEvent("message", "", "7.3"),
    ]
    assert (last_id, retry) == ("7.3", 2000)


def test_one_byte_order_mark_is_passed_over_and_no_more() -> None:
    for start in (b"\xef\xbb\xbfdata: x\n\n", b"data: x\r\r"):
        assert parse_cut([start[at : at + 1] for at in range(len(start))])[0] == [
            ServerSentEvent("message", "x", "")
        ]
    assert parse_cut([b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n"])[0] == []


def test_an_event_without_end_is_not_gathered_for_ever() -> None:
    parser = EventParser()
    chunk = b"x" * (EVENT_BYTES_MAX // 4)
    for _ in range(4):
        assert parser.feed(chunk) == []
    with pytest.raises(errors.Stop, match="no event stream"):
        parser.feed(chunk)


# --- errors, there and back

ROUND_TRIP: list[errors.FairwayError] = [
    errors.NotFound("topic", "orders"),
    errors.NotFound("watch", "wid_1"),
    errors.Conflict("a cycle", code="router_cycle", detail={"cycle": ["a", "b"]}),
    errors.TopicFull("full"),
    errors.InvalidRequest("bad"),
    errors.InvalidRequest("big", code="record_too_large"),
    errors.InvalidRequest("huge", code="payload_too_large"),
    errors.Unauthorized("who"),
    errors.Forbidden("no", detail={"scope": "write"}),
    errors.Throttled("slow", retry_after_ns=7_000_000, limit="topics", maximum=5),
    errors.Closing("bye"),
    errors.Unavailable("wait"),
    errors.ReadOnly("the disk is full"),
    errors.OutcomeUnknown("half-way"),
    errors.WriteFailed("no"),
    errors.Fenced("old"),
]


@pytest.mark.parametrize("error", ROUND_TRIP, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_what_it_was(error: errors.FairwayError) -> None:
    told = problem(error)
    headers = {name.decode(): value.decode() for name, value in told.headers}
    back = refusal_of(HttpResponse(told.status, headers, told.body), mutates=True, where=URL).error
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_backpressure_comes_back_as_throttled() -> None:
    told = problem(errors.Backpressure("7", depth=3, limit="items", retry_after_ns=2_500_000))
    back, after_ns = refusal_of(HttpResponse(429, {}, told.body), mutates=True, where=URL)
    assert isinstance(back, errors.Throttled)
    assert back.retry_after_ns == after_ns == 3_000_000


@pytest.mark.parametrize(
    ("status", "mutates", "kind"),
    [
        (502, True, errors.OutcomeUnknown),
        (504, True, errors.OutcomeUnknown),
        (502, False, errors.Unavailable),
        (503, True, errors.Unavailable),
        (429, True, errors.Throttled),
        (401, True, errors.Unauthorized),
        (403, False, errors.Forbidden),
        (404, False, errors.InvalidRequest),
        (301, False, errors.InvalidRequest),
    ],
)
def test_answers_that_are_not_fairways(status: int, mutates: bool, kind: type) -> None:
    reply = HttpResponse(status, {"retry-after": "3"}, b"<html>nginx</html>")
    error, after_ns = refusal_of(reply, mutates=mutates, where=URL)
    assert type(error) is kind
    assert str(status) in str(error)
    assert after_ns == 3 * SECOND


def test_a_server_that_failed_leaves_a_write_in_doubt() -> None:
    body = b'{"error":{"code":"internal","message":"the server failed"}}'
    assert isinstance(
        refusal_of(HttpResponse(500, {}, body), mutates=True, where=URL).error,
        errors.OutcomeUnknown,
    )
    read = refusal_of(HttpResponse(500, {}, body), mutates=False, where=URL).error
    assert type(read) is errors.FairwayError


# --- trying again


class Steady(random.Random):
    """Chance that is always the same."""

    def __init__(self, chance: float = 0.0) -> None:
        super().__init__(0)
        self._chance = chance

    def random(self) -> float:
        return self._chance


def response_of(error: errors.FairwayError) -> HttpResponse:
    told = problem(error)
    return HttpResponse(told.status, {n.decode(): v.decode() for n, v in told.headers}, told.body)


APPENDED = AppendReply(
    topic="t", epoch=1, first_seq=1, last_seq=1, head_seq=1, count=1, created=False, deduped=False
)
GOOD = HttpResponse(200, {}, msgspec.json.encode(APPENDED))
LOST = NoResponse(True, "reset")
REFUSED = NoResponse(False, "refused")
BUSY = response_of(errors.Throttled("busy", retry_after_ns=100_000_000))


def attempts_at(
    call: Any, *, met: bool = True, chance: float = 0.0, **config: Any
) -> Attempts[Any]:
    return Attempts(call, RetryConfig(**config), Steady(chance), 0, where=URL, met=met)


KEYED = protocol.append("t", [1], key="k")
UNKEYED = protocol.append("t", [1], key=None)
READ = protocol.state("t")


@pytest.mark.parametrize("call", [KEYED, UNKEYED, READ], ids=["keyed", "unkeyed", "read"])
@pytest.mark.parametrize(
    "refusal",
    [
        BUSY,
        response_of(errors.Unavailable("no")),
        response_of(errors.ReadOnly("no")),
        response_of(errors.Closing("no")),
        response_of(errors.WriteFailed("no")),
        REFUSED,
    ],
    ids=["429", "unavailable", "read-only", "closing", "write-failed", "refused"],
)
def test_a_refusal_is_always_tried_again(call: Any, refusal: Any) -> None:
    attempts = attempts_at(call)
    assert isinstance(attempts.decide(refusal, 0), Again)
    assert isinstance(attempts.decide(refusal, SECOND), Again)


@pytest.mark.parametrize("doubt", [LOST, response_of(errors.OutcomeUnknown("half"))])
def test_a_doubt_is_tried_again_only_under_a_key(doubt: Any) -> None:
    keyed = attempts_at(KEYED)
    assert isinstance(keyed.decide(doubt, 0), Again)
    assert keyed.decide(GOOD, 1) == Success(APPENDED)
    decision = attempts_at(UNKEYED).decide(doubt, 0)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, errors.OutcomeUnknown)


def test_a_lost_read_is_no_doubt() -> None:
    attempts = attempts_at(READ)
    assert isinstance(attempts.decide(LOST, 0), Again)
    decision = attempts.decide(LOST, 30 * SECOND)
    assert isinstance(decision, Fail)
    assert type(decision.error) is errors.Unavailable


def test_once_in_doubt_the_end_of_patience_is_outcome_unknown() -> None:
    attempts = attempts_at(KEYED)
    assert isinstance(attempts.decide(LOST, 0), Again)
    decision = attempts.decide(REFUSED, 30 * SECOND)
    assert isinstance(decision, Fail)
    assert type(decision.error) is errors.OutcomeUnknown
    assert "reset" in str(decision.error)
    assert "refused" in str(decision.error)


@pytest.mark.parametrize("error", [errors.TopicFull("full"), errors.NotFound("topic", "t")])
def test_a_definite_answer_ends_it(error: errors.FairwayError) -> None:
    decision = attempts_at(KEYED).decide(response_of(error), 0)
    assert isinstance(decision, Fail)
    assert type(decision.error) is type(error)


def test_deletion_by_tag_alone_is_not_repeated_in_doubt() -> None:
    decision = attempts_at(protocol.delete_records("t", match="x")).decide(LOST, 0)
    assert isinstance(decision, Fail)
    bounded = attempts_at(protocol.delete_records("t", before_seq=9, match="x"))
    assert isinstance(bounded.decide(LOST, 0), Again)


def test_waits_double_up_to_the_cap_and_jitter_takes_away() -> None:
    config = RetryConfig(base_ns=10, cap_ns=70, jitter=0.5)
    waits = [config.wait_ns(failures, Steady()) for failures in (1, 2, 3, 4, 5, 1000)]
    assert waits == [10, 20, 40, 70, 70, 70]
    assert config.wait_ns(3, Steady(1.0)) == 20


@pytest.mark.parametrize(
    "wrong", [{"deadline_ns": -1}, {"base_ns": 0}, {"base_ns": 3, "cap_ns": 2}, {"jitter": 1.5}]
)
def test_a_patience_that_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryConfig(**wrong)


def test_what_the_server_asks_is_the_least_and_spread() -> None:
    config = RetryConfig(base_ns=10, cap_ns=70, jitter=0.5)
    assert config.wait_ns(3, Steady(), asked_ns=1000) == 1000
    assert config.wait_ns(3, Steady(1.0), asked_ns=1000) == 1020


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    hour = errors.Throttled("quota", retry_after_ns=3600 * SECOND, limit="topics", maximum=1)
    decision = attempts_at(KEYED).decide(response_of(hour), 0)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, errors.Throttled)
    assert (decision.error.limit, decision.error.maximum) == ("topics", 1)


def test_a_server_that_never_answered_is_waited_for_or_not() -> None:
    assert isinstance(attempts_at(READ, met=False).decide(REFUSED, 0), Again)
    decision = attempts_at(READ, met=False, wait_for_server=False).decide(REFUSED, 0)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, errors.Unreachable)
    assert isinstance(attempts_at(READ, wait_for_server=False).decide(REFUSED, 0), Again)


def test_a_watch_that_worked_never_gives_up_and_a_new_one_does() -> None:
    attempts = WatchAttempts(RetryConfig(), Steady(), 0)
    gone = errors.Unavailable("gone")
    assert isinstance(attempts.failed(gone, 0, met=True), Again)
    assert isinstance(attempts.failed(gone, 31 * SECOND, met=True), Fail)
    attempts.opened()
    attempts.retry_ms = 100
    waits = [attempts.failed(gone, 3600 * SECOND, met=True) for _ in range(9)]
    assert waits[-1] == Again(100_000_000)
    attempts.worked()
    assert attempts.failed(gone, 7200 * SECOND, met=True) == Again(50_000_000)
    assert isinstance(attempts.failed(errors.Unauthorized("who"), 0, met=True), Fail)


# --- bulk


@given(st.lists(st.integers(1, 12), max_size=40), st.integers(1, 5), st.integers(1, 20))
def test_batches_hold_everything_in_order_within_bounds(
    sizes: list[int], records: int, size: int
) -> None:
    batcher = Batcher(records=records, size=size)
    given_ = [bytes([at % 256]) * length for at, length in enumerate(sizes)]
    batches = [batch for one in given_ if (batch := batcher.add(one)) is not None]
    if rest := batcher.rest():
        batches.append(rest)
    assert [one for batch in batches for one in batch] == given_
    assert all(0 < len(batch) <= records for batch in batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= size for batch in batches)


def test_a_resumed_bulk_uses_the_keys_of_the_run_before() -> None:
    def keys(values: range, start: int) -> list[str]:
        bulk = Bulk("t", batch=3, key="run", start=start)
        calls = []
        for value in values:
            if (call := bulk.add(value)) is not None:
                calls.append(call)
                count = len(json.loads(call.body or b"")["records"])
                bulk.acknowledged(msgspec.structs.replace(APPENDED, count=count))
        if (last := bulk.finish()) is not None:
            calls.append(last)
        return [json.loads(call.body or b"")["idempotency_key"] for call in calls]

    assert keys(range(8), 0) == ["run:0", "run:3", "run:6"]
    assert keys(range(3, 8), 3) == ["run:3", "run:6"]


def test_what_a_key_did_not_store_is_sent_under_the_next() -> None:
    bulk = Bulk("t", batch=3, key="run")
    for value in range(3):
        assert bulk.add(value) is None
    assert bulk.finish() is not None
    progress = bulk.acknowledged(msgspec.structs.replace(APPENDED, count=2, deduped=True))
    assert (progress.records, progress.deduped) == (2, 2)
    rest = bulk.rest()
    assert rest is not None
    assert json.loads(rest.body or b"") == {"records": [{"data": 2}], "idempotency_key": "run:2"}
    assert bulk.acknowledged(APPENDED).records == 3
    assert bulk.rest() is None


# --- requests


def test_an_append_says_only_what_was_given() -> None:
    call = protocol.append(
        "orders",
        [1, NewRecord({"a": 1}, tag="own", node="n", meta={"m": 1}), msgspec.Raw(b"[ 1 ]")],
        tag="all",
        key="k",
        config={"ttl_ms": 5},
    )
    assert (call.method, call.path) == ("POST", "/v0/topics/orders")
    assert json.loads(call.body or b"") == {
        "records": [
            {"data": 1, "tag": "all"},
            {"data": {"a": 1}, "tag": "own", "node": "n", "meta": {"m": 1}},
            {"data": [1], "tag": "all"},
        ],
        "idempotency_key": "k",
        "config": {"ttl_ms": 5},
    }


def test_what_cannot_be_right_is_refused_before_it_is_sent() -> None:
    with pytest.raises(errors.InvalidRequest):
        protocol.append("a/b", [1])
    with pytest.raises(errors.InvalidRequest):
        protocol.append("t", [])
    with pytest.raises(errors.InvalidConfig, match="ttl"):
        protocol.put_topic("t", {"ttl": 5})
    with pytest.raises(errors.InvalidConfig, match="source"):
        protocol.put_router("r", {"dest": "x"})
    with pytest.raises(errors.InvalidRequest):
        protocol.match_text(("tag", "Eq", "x*"))
    with pytest.raises(errors.InvalidRequest):
        protocol.match_text(("tag", "Glob", "x"))


def test_a_star_at_the_end_of_a_match_is_a_prefix_everywhere() -> None:
    decoder: Any = None
    body = json.loads(protocol.diff("t", decoder, match="eu.*").body or b"")
    assert body["match"] == ["tag", "Glob", "eu.*"]
    assert json.loads(protocol.diff("t", decoder, match="eu").body or b"")["match"] == "eu"
    assert protocol.match_text(("tag", "Glob", "eu.*")) == protocol.match_text("eu.*") == "eu.*"


# --- settings


def test_the_environment_names_the_server_unless_told() -> None:
    environ = {"FAIRWAY_URL": "https://h:1/x/", "FAIRWAY_API_KEY": " secret "}
    settings = read_client_settings(environ=environ)
    assert (settings.url, settings.key) == ("https://h:1/x", "secret")
    assert "secret" not in repr(settings)
    told = read_client_settings("http://[::1]:4000", "other", environ=environ)
    assert (told.url, told.key) == ("http://[::1]:4000", "other")
    assert read_client_settings(environ={}).url == "http://127.0.0.1:4000"


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:4000", "ftp://x", "http://", "http://u:p@h", "http://h?q"),
        *("http://a..b", "http://.a", f"http://{'a' * 64}"),
    ],
)
def test_an_url_that_cannot_be_a_server_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidConfig):
        read_client_settings(url, environ={})


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(errors.InvalidConfig):
        Client("http://h:99999")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("1.5s", 1500),
        ("15m", 900_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
    ],
)
def test_durations(text: str, value: int) -> None:
    assert parse_duration_ms(text) == value


@pytest.mark.parametrize(("text", "value"), [("512", 512), ("10MB", 10**7), ("1 GiB", 2**30)])
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "h", "1y", "-1s", "1e3s", "1 2s"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidConfig):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["60", "0", "1.5", " 7 "])
def test_a_duration_without_a_unit_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(errors.InvalidConfig, match=rf"write {text.strip()}s for seconds"):
        parse_duration_ms(text)


# --- the shells, over scripted answers


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in chunks, that may break at its end."""

    def __init__(self, chunks: list[bytes], error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


class FakeClock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 0
        self.waits: list[int] = []

    def now_ns(self) -> int:
        return self.now

    def sleep_ns(self, delay_ns: int) -> None:
        self.now += delay_ns
        self.waits.append(delay_ns)

    async def wait_ns(self, delay_ns: int) -> None:
        self.sleep_ns(delay_ns)


Step = httpx.Response | Exception


class Script:
    """Answers in order, and the requests that they answered."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.requests: list[httpx.Request] = []
        self.clock = FakeClock()
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests if request.content]

    def options(self, **more: Any) -> dict[str, Any]:
        return {"transport": self.transport, "clock": self.clock, "source": Steady(), **more}


class Shell:
    """Either client, driven the same way."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def call(
        self, script: Script, act: Callable[[Any], Any], *, into: list[Any] | None = None
    ) -> Any:
        """`act` gets the client; what it returns is waited for, or read to its end."""
        found = into if into is not None else []
        if self.kind == "async":
            return asyncio.run(self._call_async(script, act, found))
        with Client(URL, "secret", **script.options()) as client:
            result = act(client)
            if not (isinstance(result, Iterator) or _watch(result)):
                return result
            for item in result:
                found.append(item)
            return found

    async def _call_async(self, script: Script, act: Callable[[Any], Any], found: list[Any]) -> Any:
        async with AsyncClient(URL, "secret", **script.options()) as client:
            result = act(client)
            if not (isinstance(result, AsyncIterator) or _watch(result)):
                return await result
            async for item in result:
                found.append(item)
            return found


def _watch(result: Any) -> bool:
    return type(result).__name__ in ("Watch", "AsyncWatch")


@pytest.fixture(params=["sync", "async"])
def shell(request: pytest.FixtureRequest) -> Shell:
    return Shell(request.param)


def answer(message: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=msgspec.json.encode(message))


def refused(error: errors.FairwayError) -> httpx.Response:
    told = problem(error)
    return httpx.Response(told.status, content=told.body, headers=list(told.headers))


def test_an_append_rides_out_refusals_and_a_lost_answer_under_one_key(shell: Shell) -> None:
    script = Script(
        httpx.ConnectError("refused"),
        refused(errors.Throttled("busy", retry_after_ns=250_000_000)),
        httpx.ReadError("reset"),
        refused(errors.OutcomeUnknown("half")),
        answer(APPENDED),
    )
    reply = shell.call(script, lambda client: client.topic("t").append(1))
    assert reply == APPENDED
    keys = {body["idempotency_key"] for body in script.bodies}
    assert len(keys) == 1
    assert len(script.requests) == 5
    assert script.clock.waits[1] == 250_000_000
    assert {request.headers["authorization"] for request in script.requests} == {"Bearer secret"}


def test_two_appends_have_two_keys_and_a_given_key_is_sent(shell: Shell) -> None:
    script = Script(*[answer(APPENDED)] * 2)
    shell.call(script, lambda client: client.topic("t").append_many([1, 2], batch=1))
    first, second = (body["idempotency_key"] for body in script.bodies)
    assert first != second
    script = Script(answer(APPENDED))
    shell.call(script, lambda client: client.topic("t").append(1, key="mine"))
    assert script.bodies[0]["idempotency_key"] == "mine"


def test_without_a_key_a_lost_answer_is_told_at_once(shell: Shell) -> None:
    script = Script(httpx.ReadTimeout("slow"))
    with pytest.raises(errors.OutcomeUnknown):
        shell.call(script, lambda client: client.topic("t").append(1, key=None))
    assert "idempotency_key" not in script.bodies[0]
    assert script.clock.waits == []


def test_patience_ends_at_the_deadline(shell: Shell) -> None:
    busy = errors.Throttled("busy", retry_after_ns=SECOND)
    script = Script(*[refused(busy) for _ in range(40)])
    with pytest.raises(errors.Throttled):
        shell.call(script, lambda client: client.topic("t").append(1))
    assert len(script.requests) == 30
    assert script.clock.now < 30 * SECOND


def test_a_failed_bulk_says_how_much_was_acknowledged(shell: Shell) -> None:
    two = msgspec.structs.replace(APPENDED, count=2, last_seq=2)
    script = Script(answer(two), refused(errors.TopicFull("full")))
    seen: list[int] = []
    with pytest.raises(errors.TopicFull) as failure:
        shell.call(
            script,
            lambda client: client.topic("t").append_many(
                range(5), batch=2, on_progress=lambda progress: seen.append(progress.records)
            ),
        )
    assert seen == [2]
    assert failure.value.__notes__ == ["2 records were acknowledged before this"]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.topic("t").append({"x": NAN}),
        lambda client: client.topic("t").append(1, [None, {"deep": (1.0, -INF)}]),
        lambda client: client.topic("t").append(1, meta={"x": NAN}),
        lambda client: client.topic("t").append(NewRecord(1, meta={"x": INF})),
        lambda client: client.topic("t").append(NewRecord(INF)),
        lambda client: client.topic("t").append_many([1, NAN]),
        lambda client: client.topic("t").append_many([1], meta={"x": NAN}),
        lambda client: client.jobs.enqueue("kind", {"x": NAN}),
        lambda client: client.jobs.enqueue_many([client.jobs.order("kind", {"x": [INF]})]),
        lambda client: client.jobs.signal(1, "name", {"x": NAN}),
        lambda client: client.workflows.start("flow", {"x": NAN}),
        lambda client: client.graphs.push("graph", "source", {"x": NAN}),
        lambda client: client.graphs.push("graph", "source", 1, INF),
        lambda client: client.graphs.fire("graph", {"source": NAN}),
    ],
)
def test_what_json_has_no_number_for_is_refused_and_not_sent_as_null(
    act: Callable[[Any], Any], shell: Shell
) -> None:
    script = Script()
    with pytest.raises(errors.InvalidRequest, match=r"JSON has no number -?(nan|inf)"):
        shell.call(script, act)
    assert script.requests == []


def test_what_is_no_json_is_refused_as_such(shell: Shell) -> None:
    script = Script()
    for wrong in (object(), "\ud800", 2**70j):
        with pytest.raises(errors.InvalidRequest, match="not JSON"):
            shell.call(script, lambda client, wrong=wrong: client.topic("t").append(wrong))
    assert script.requests == []


def test_lists_go_on_page_by_page(shell: Shell) -> None:
    def page(*names: str, **more: Any) -> httpx.Response:
        one = {"epoch": 1, "head_seq": 0, "earliest_seq": 1, "count": 0, "bytes": 0}
        one |= {"durability": "fsync", "effective_priority": 0}
        return answer({"topics": [{"topic": name, **one} for name in names], **more})

    script = Script(page("a", "b", next_cursor="Yg"), page("c"))
    found = shell.call(script, lambda client: client.topics("x"))
    assert [one.topic for one in found] == ["a", "b", "c"]
    assert [dict(request.url.params) for request in script.requests] == [
        {"prefix": "x", "page_size": "1000"},
        {"prefix": "x", "page_size": "1000", "cursor": "Yg"},
    ]


def test_readiness_is_told_even_when_it_is_a_503(shell: Shell) -> None:
    script = Script(answer({"ready": False, "writable": False, "reason": "recovering"}, 503))
    assert shell.call(script, lambda client: client.ready()).reason == "recovering"


def test_an_answer_from_somebody_else_is_not_taken_for_one(shell: Shell) -> None:
    script = Script(httpx.Response(200, content=b"<html>hello</html>"))
    with pytest.raises(errors.Stop, match="TopicState"):
        shell.call(script, lambda client: client.topic("t").state())


# --- reading pages


def page_of(first: int, last: int, head: int, **more: Any) -> httpx.Response:
    records = [{"$seq": seq, "$ts": 1, "data": seq} for seq in range(first, last + 1)]
    return answer(
        {
            "topic": "t",
            "epoch": 1,
            "records": records,
            "next_from_seq": last,
            "head_seq": head,
            "earliest_seq": 1,
            "caught_up": last == head,
            "tombstone": None,
            "lag": head - last,
            **more,
        }
    )


def test_a_read_ends_where_the_head_was_when_it_began(shell: Shell) -> None:
    script = Script(page_of(1, 2, 5), page_of(3, 4, 9), page_of(5, 8, 12))
    found = shell.call(script, lambda client: client.topic("t", int).read())
    assert [record.data for record in found] == [1, 2, 3, 4, 5]
    assert [body["from_seq"] for body in script.bodies] == [0, 2, 4]
    assert [body.get("epoch") for body in script.bodies] == [None, 1, 1]


def test_a_read_of_a_topic_that_is_made_anew_goes_on_with_the_new_one(shell: Shell) -> None:
    gone = {"reason": "recreated", "gap_from": 1, "gap_to": 0, "missed_estimate": 0}
    gone |= {"earliest_seq": 1, "head_seq": 2}
    script = Script(page_of(1, 2, 5), page_of(1, 2, 2, epoch=2, tombstone=gone))
    told: list[Any] = []
    found = shell.call(script, lambda client: client.topic("t").read(on_tombstone=told.append))
    assert [record.position for record in found] == [
        Position(1, 1),
        Position(1, 2),
        Position(2, 1),
        Position(2, 2),
    ]
    assert [(one.topic, one.epoch, one.reason) for one in told] == [("t", 2, "recreated")]


# --- watching


def event(kind: str, data: Any, id: str | None) -> bytes:
    line = f"id: {id}\n" if id is not None else ""
    return f"{line}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def records(first: int, last: int, *, epoch: int = 1, topic: str = "t", id: str = "") -> bytes:
    data = {
        "topic": topic,
        "epoch": epoch,
        "records": [{"$seq": seq, "$ts": 1, "data": seq} for seq in range(first, last + 1)],
        "from_seq": first - 1,
        "to_seq": last,
        "head_seq": last,
    }
    return event("record", data, id or f"{epoch}.{last}")


def tombstone(first: int, last: int, reason: str = "cap", *, epoch: int = 1) -> bytes:
    data = {"topic": "t", "epoch": epoch, "reason": reason, "gap_from": first, "gap_to": last}
    data |= {"missed_estimate": last - first + 1, "earliest_seq": last + 1, "head_seq": last + 9}
    return event("tombstone", data, f"{epoch}.{last}")


DELETED = event("topic-deleted", {"topic": "t", "epoch": 1, "reason": "deleted"}, "1.9")


def stream(*chunks: bytes, error: Exception | None = None) -> httpx.Response:
    return httpx.Response(200, stream=Body(list(chunks), error))


def seqs(found: list[Record[Any]]) -> list[int]:
    return [record.seq for record in found]


def test_a_watch_resumes_by_the_last_id_and_gives_no_record_twice(shell: Shell) -> None:
    script = Script(
        stream(b"retry: 100\n\n", records(1, 2), error=httpx.ReadError("reset")),
        httpx.ConnectError("refused"),
        refused(errors.Closing("restarting")),
        stream(records(2, 4)[:40], error=httpx.RemoteProtocolError("cut")),
        stream(records(2, 4), records(5, 5)),
        stream(records(6, 6), DELETED),
    )
    lost: list[str] = []
    found = shell.call(
        script,
        lambda client: client.topic("t", int).watch(
            on_disconnect=lambda error: lost.append(type(error).__name__)
        ),
    )
    assert seqs(found) == [1, 2, 3, 4, 5, 6]
    ids = [request.headers.get("last-event-id") for request in script.requests]
    assert ids == [None, "1.2", "1.2", "1.2", "1.2", "1.5"]
    assert lost == ["Unavailable", "Unreachable", "Closing", "Unavailable", "Closing"]
    assert max(script.clock.waits) <= 100_000_000, "the server's retry is the longest wait"
    first = script.requests[0]
    assert dict(first.url.params) == {
        "from_seq": "0",
        "include_tags": "true",
        "heartbeat_ms": "15000",
    }
    assert first.extensions["timeout"]["read"] == silence_s(15_000) == 35.0


def test_tombstones_are_told_once_and_in_their_place(shell: Shell) -> None:
    script = Script(
        stream(tombstone(1, 3), records(4, 4), error=httpx.ReadTimeout("silent")),
        stream(tombstone(1, 3), records(4, 5), tombstone(6, 7), DELETED),
    )
    seen: list[Any] = []

    def act(client: Any) -> Any:
        return client.topic("t").watch(
            on_tombstone=lambda gone: seen.append((gone.gap_from, gone.gap_to, gone.reason))
        )

    assert seqs(shell.call(script, act)) == [4, 5]
    assert seen == [(1, 3, "cap"), (6, 7, "cap")]


def test_tombstones_may_be_had_among_the_records(shell: Shell) -> None:
    script = Script(stream(tombstone(1, 3), records(4, 4), tombstone(5, 7), DELETED))
    told: list[Any] = []
    found = shell.call(
        script, lambda client: client.topic("t").watch(on_tombstone=told.append).items()
    )
    assert [getattr(item, "seq", None) or (item.gap_from, item.gap_to) for item in found] == [
        (1, 3),
        4,
        (5, 7),
    ]
    assert told == []


def test_a_topic_made_anew_begins_again(shell: Shell) -> None:
    script = Script(
        stream(records(1, 3), error=httpx.ReadError("reset")),
        stream(tombstone(1, 0, "recreated", epoch=2), records(1, 2, epoch=2), DELETED),
    )
    told: list[Any] = []
    found = shell.call(script, lambda client: client.topic("t").watch(on_tombstone=told.append))
    assert [(record.epoch, record.seq) for record in found] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
    ]
    assert [gone.reason for gone in told] == ["recreated"]


def test_a_tail_is_settled_before_the_stream_is_opened(shell: Shell) -> None:
    state = {"topic": "t", "epoch": 3, "head_seq": 7, "earliest_seq": 1, "evict_floor": 1}
    state |= {"next_seq": 8, "count": 7, "bytes": 0, "config": {}, "effective_priority": 0}
    state |= {"last_write_ts": None, "last_read_ts": None, "watchers": 0}
    script = Script(
        answer(state),
        stream(b": hb\n\n", error=httpx.ReadError("before its first event")),
        stream(records(8, 9, epoch=3), DELETED),
    )
    assert seqs(shell.call(script, lambda client: client.topic("t").watch(tail=True))) == [8, 9]
    for request in script.requests[1:]:
        assert (request.url.params["from_seq"], request.url.params["epoch"]) == ("7", "3")


def test_a_watch_of_nothing_raises_and_one_whose_topic_went_ends(shell: Shell) -> None:
    missing = errors.NotFound("topic", "t")
    with pytest.raises(errors.NotFound):
        shell.call(Script(refused(missing)), lambda client: client.topic("t").watch())
    script = Script(stream(records(1, 1)), refused(missing))
    assert seqs(shell.call(script, lambda client: client.topic("t").watch())) == [1]


def test_a_key_that_was_taken_back_ends_a_watch(shell: Shell) -> None:
    said = {"error": {"code": "unauthorized", "message": "the key is gone"}}
    script = Script(stream(records(1, 1), event("error", said, None)))
    with pytest.raises(errors.Unauthorized, match="the key is gone"):
        shell.call(script, lambda client: client.topic("t").watch())
    script = Script(stream(records(1, 1)), refused(errors.Unauthorized("who")))
    with pytest.raises(errors.Unauthorized):
        shell.call(script, lambda client: client.topic("t").watch())


def test_a_new_watch_gives_up_at_the_deadline(shell: Shell) -> None:
    script = Script(*[refused(errors.Unavailable("no")) for _ in range(60)])
    with pytest.raises(errors.Unavailable):
        shell.call(script, lambda client: client.topic("t").watch())
    assert script.clock.now < 30 * SECOND


def test_a_stream_that_is_no_stream_of_ours_stops(shell: Shell) -> None:
    script = Script(stream(event("record", {"nothing": 1}, "1.1")))
    with pytest.raises(errors.Stop, match="cannot be read"):
        shell.call(script, lambda client: client.topic("t").watch())


def test_events_of_kinds_to_come_are_passed_over(shell: Shell) -> None:
    script = Script(stream(event("fanfare", {"x": 1}, "1.0"), records(1, 1), DELETED))
    assert seqs(shell.call(script, lambda client: client.topic("t").watch())) == [1]


def test_a_record_that_does_not_fit_raises_and_the_next_can_be_had() -> None:
    data = {"topic": "t", "epoch": 1, "from_seq": 0, "to_seq": 3, "head_seq": 3}
    data["records"] = [{"$seq": 1, "$ts": 1, "data": 1}, {"$seq": 2, "$ts": 1, "data": "two"}]
    data["records"].append({"$seq": 3, "$ts": 1, "data": 3})
    script = Script(stream(event("record", data, "1.3")), stream(DELETED))
    with Client(URL, **script.options()) as client:
        watch = client.topic("t", int).watch()
        taken = iter(watch)
        assert next(taken).data == 1
        with pytest.raises(msgspec.ValidationError, match="t 2: "):
            next(taken)
        assert [record.data for record in watch] == [3]
    assert watch.positions == {"t": Position(1, 3)}


def test_leaving_the_loop_closes_the_connection_and_a_second_loop_goes_on() -> None:
    closed: list[bool] = []

    class Noted(Body):
        def close(self) -> None:
            closed.append(True)

    script = Script(
        httpx.Response(200, stream=Noted([records(1, 3)])), stream(records(4, 4), DELETED)
    )
    with Client(URL, **script.options()) as client:
        watch = client.topic("t").watch()
        for record in watch:
            assert record.seq == 1
            break
        assert closed == [True]
        assert seqs(list(watch)) == [2, 3, 4]


# --- watching several


def session(wid: str, **topics: tuple[int, int]) -> httpx.Response:
    places = {
        name: {"from_seq": seq, "epoch": epoch, "head_seq": 9, "earliest_seq": 1}
        for name, (epoch, seq) in topics.items()
    }
    return answer(
        {"wid": wid, "stream_url": f"/v0/watch/{wid}", "session_ttl_ms": 300_000, "topics": places}
    )


def test_several_topics_resume_by_their_session(shell: Shell) -> None:
    script = Script(
        session("w1", a=(1, 0), b=(2, 5)),
        stream(records(1, 1, topic="a", id="AA"), records(6, 6, epoch=2, topic="b", id="BB")),
        stream(
            records(2, 2, topic="a", id="CC"),
            event("topic-deleted", {"topic": "a", "epoch": 1}, None),
        ),
        stream(event("topic-deleted", {"topic": "b", "epoch": 2}, None)),
    )
    found = shell.call(script, lambda client: client.watch({"a": 0, "b": Position(2, 5)}))
    assert [(one.topic, one.seq) for one in found] == [("a", 1), ("b", 6), ("a", 2)]
    assert script.bodies[0]["topics"] == {
        "a": {"from_seq": 0, "epoch": None, "tail": False},
        "b": {"from_seq": 5, "epoch": 2, "tail": False},
    }
    ids = [request.headers.get("last-event-id") for request in script.requests[1:]]
    assert ids == [None, "BB", "CC"]


def test_a_forgotten_session_is_made_anew_and_newcomers_are_read_from_their_start(
    shell: Shell,
) -> None:
    script = Script(
        session("w1", **{"x.a": (1, 4)}),
        stream(records(5, 5, topic="x.a", id="AA")),
        refused(errors.NotFound("watch", "w1")),
        session("w2", **{"x.a": (1, 5), "x.new": (7, 3)}),
        session("w3", **{"x.a": (1, 5), "x.new": (7, 0)}),
        stream(records(1, 3, epoch=7, topic="x.new", id="BB"), records(6, 6, topic="x.a", id="CC")),
        refused(errors.Unauthorized("enough")),
    )
    found: list[Any] = []
    with pytest.raises(errors.Unauthorized):
        shell.call(script, lambda client: client.watch(prefix="x.*"), into=found)
    assert [(one.topic, one.seq) for one in found] == [
        ("x.a", 5),
        ("x.new", 1),
        ("x.new", 2),
        ("x.new", 3),
        ("x.a", 6),
    ]
    assert [body["topics"] for body in script.bodies] == [
        {},
        {"x.a": {"from_seq": 5, "epoch": 1, "tail": False}},
        {
            "x.a": {"from_seq": 5, "epoch": 1, "tail": False},
            "x.new": {"from_seq": 0, "epoch": None, "tail": False},
        },
    ]
    ids = [one.headers.get("last-event-id") for one in script.requests if one.method == "GET"]
    assert ids == [None, "AA", None, "CC"], "an id belongs to its session"
    assert [
        request.url.params.get("lenient") for request in script.requests if request.method == "POST"
    ] == [None, "true", "true"]


def test_a_watch_of_nothing_in_particular_is_refused() -> None:
    with Client(URL) as client, pytest.raises(errors.InvalidRequest):
        client.watch([])


def test_a_batch_fits_into_a_request() -> None:
    assert BATCH_BYTES < 64 * 1024 * 1024
