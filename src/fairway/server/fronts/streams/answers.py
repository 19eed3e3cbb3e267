"""Answers of the protocol: the status and headers that tell a client what became of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairway.errors import InvalidRequest
from fairway.server.fronts.streams.protocol import EXPOSED_HEADERS, METHODS, REQUEST_HEADERS
from fairway.server.http.exchange import Reply
from fairway.server.http.problems import reply
from fairway.streams.content import BODY_BYTES_MAX
from fairway.streams.verdict import Denied

if TYPE_CHECKING:
    from fairway.server.http.exchange import Request, Send
    from fairway.streams.appending import StreamAppended
    from fairway.streams.offset import Offset
    from fairway.streams.port import TopicGap
    from fairway.streams.requests import StreamAppend
    from fairway.streams.stream import Stream

    Headers = list[tuple[bytes, bytes]]

COMMON: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
)
PREFLIGHT: Final = Reply(
    204,
    b"",
    (
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-allow-headers", REQUEST_HEADERS.encode()),
        (b"access-control-max-age", b"600"),
    ),
)
NO_STORE: Final = (b"cache-control", b"no-store")
REVALIDATE: Final = (b"cache-control", b"no-cache")
IMMUTABLE: Final = (b"cache-control", b"private, max-age=60, stale-while-revalidate=300")
CLOSED: Final = (b"stream-closed", b"true")
UP_TO_DATE: Final = (b"stream-up-to-date", b"true")

STATUS: Final = {
    Denied.CLOSED: (409, "stream_closed"),
    Denied.CONTENT_TYPE: (409, "content_type"),
    Denied.STALE_EPOCH: (403, "stale_epoch"),
    Denied.EPOCH_START: (400, "epoch_start"),
    Denied.GAP: (409, "producer_gap"),
    Denied.SEQ: (409, "stream_seq"),
}


async def respond(send: Send, answer: Reply, *, head_only: bool = False) -> None:
    """Send a whole answer."""
    headers = [*answer.headers, *COMMON]
    if answer.status not in (204, 304) and not head_only:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head_only else answer.body})


async def bounded_body(request: Request) -> bytes:
    """The body; `InvalidRequest` if it is larger than one append may be."""
    declared = request.headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) <= BODY_BYTES_MAX:
        body = await request.body()
        if len(body) <= BODY_BYTES_MAX:
            return body
    raise InvalidRequest(f"a body has at most {BODY_BYTES_MAX:,} bytes", code="payload_too_large")


def next_offset(offset: Offset) -> tuple[bytes, bytes]:
    return b"stream-next-offset", str(offset).encode()


def location(request: Request) -> bytes:
    """The stream's own URL."""
    scope = request.scope
    path: bytes = scope.get("raw_path") or request.path.encode()
    host = request.headers.get(b"host", b"localhost")
    return str(scope.get("scheme", "http")).encode() + b"://" + host + path


def described(stream: Stream) -> Headers:
    """What every answer about a whole stream says of it."""
    headers = [
        (b"content-type", stream.meta.content_type.encode("latin-1")),
        next_offset(stream.offset_of(stream.tail)),
    ]
    if stream.meta.closed:
        headers.append(CLOSED)
    return headers


def gap_headers(gap: TopicGap) -> Headers:
    return [(b"stream-gap-from", b"%d" % gap.first), (b"stream-gap-to", b"%d" % gap.last)]


def lost_reply(gap: TopicGap, behind: Offset) -> Reply:
    """What follows the offset is lost; reading can go on behind the gap."""
    made = reply(
        410,
        "gone",
        f"records {gap.first} to {gap.last} are lost ({gap.reason}); {behind} is behind them",
        {"gap_from": gap.first, "gap_to": gap.last, "reason": gap.reason},
    )
    return made._replace(headers=(*made.headers, next_offset(behind), *gap_headers(gap), NO_STORE))


def append_reply(
    stream: Stream, request: StreamAppend, written: StreamAppended, *, empty: bool
) -> Reply:
    """What a producer, or whoever appended, is told."""
    headers: Headers = [next_offset(written.offset)]
    if stream.meta.closed:
        headers.append(CLOSED)
    producer, verdict = request.producer, written.verdict
    if isinstance(verdict, Denied):
        headers += _why(verdict, request, written)
        status, code = STATUS[verdict]
        return reply(status, code, verdict.value, headers=tuple(headers))
    if producer is None:
        return Reply(204, b"", tuple(headers))
    seq = producer.seq
    if verdict is not None and verdict.seq is not None:
        seq = verdict.seq
    headers.append((b"producer-epoch", b"%d" % producer.epoch))
    headers.append((b"producer-seq", b"%d" % seq))
    return Reply(204 if empty or verdict is not None else 200, b"", tuple(headers))


def _why(verdict: Denied, request: StreamAppend, written: StreamAppended) -> Headers:
    """What a refused producer needs to know to go on."""
    producer, known = request.producer, written.known
    if verdict is Denied.STALE_EPOCH and known is not None:
        return [(b"producer-epoch", b"%d" % known[0])]
    if verdict is Denied.GAP and producer is not None:
        expected = known[1] + 1 if known is not None else 0
        return [
            (b"producer-expected-seq", b"%d" % expected),
            (b"producer-received-seq", b"%d" % producer.seq),
        ]
    return []
