"""What a client may cost before an app sees its request, and how it is told that it cost more."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fairway.core.amounts import WHOLE_MAX
from fairway.errors import InvalidConfig
from fairway.runtime.amounts import check_amounts

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one client, and all of them together, may cost before an app is asked."""

    head_bytes_max: int = 32 * 1024
    """Request line and headers together. Raising it admits larger cookies and tokens and costs
    that much memory for each connection that sends one."""
    header_count_max: int = 128
    """Headers of one request. Raising it admits chattier proxies; every header costs time."""
    url_bytes_max: int = 8 * 1024
    """The request target. Raising it admits longer queries, out of `head_bytes_max`."""
    body_bytes_max: int = 64 * 1024 * 1024
    """A request's body. Raising it admits larger batches; an app that collects the body holds
    that much memory for each request."""
    pipeline_max: int = 16
    """Requests a client may send ahead of the answers. Raising it helps clients that pipeline and
    costs about 3 KB each; past it the rest is dropped and the connection closed after them."""
    connections_max: int = 10_000
    """Open connections, WebSockets included. Raising it costs a file descriptor and some 10 KB
    each; one more takes the place of a stranger, or is answered 503 if there is none."""
    connections_per_address: int = 9_000
    """Of these, those from one address. Programs on one machine, or behind one proxy, share it.
    Lowering it keeps one address from taking the places of others; one more is answered 429."""
    connections_per_key: int = 9_000
    """Of these, those that show the same key; one more is answered 429. Lowering it keeps one key
    from taking the places of others."""
    connections_reserved: int = 1_000
    """Of these, those that strangers cannot have: whoever has shown no key that is good (without
    keys: was not served yet). At most half. Raising it keeps more places for known clients."""
    held_bytes_max: int = 256 * 1024 * 1024
    """Bytes of all connections together: bodies that are being received or wait for their turn,
    answers that are being built, and those that clients do not read. Each connection has 16 KiB of
    either that are not counted.
    Raising it serves more large requests at once and costs that much memory; a request that does
    not fit is answered 429."""
    first_byte_ns: int = 10 * SECOND_NS
    """From the connection to its first byte. Raising it lets browsers keep spare connections."""
    idle_ns: int = 75 * SECOND_NS
    """From an answer to the next request. Raising it saves reconnecting, and keeps idle
    connections; it should exceed what clients and proxies believe, or they meet a closed one."""
    head_ns: int = 10 * SECOND_NS
    """From a request's first byte to its last header. Raising it forgives bad networks and lets
    a slowloris hold a connection for longer."""
    body_ns: int = 30 * SECOND_NS
    """From the last header to the end of the body, plus what `body_rate_min` grants. Raising it
    forgives stalls and lets a client that trickles hold a request for longer."""
    body_rate_min: int = 16 * 1024
    """Bytes a second: every so many received extend the deadline by one second. Raising it is
    stricter with slow uploads."""
    stall_ns: int = 30 * SECOND_NS
    """How long a client may take in nothing of an answer. Raising it forgives sleeping clients
    and keeps their unsent answers in memory. Streams are not subject to it."""
    half_closed_ns: int = 5 * SECOND_NS
    """For answering a client that has closed its sending side. Raising it serves slow requests of
    such clients and notices later that a client has left altogether."""
    linger_ns: int = SECOND_NS
    """How long we go on reading after an error, so that the client sees it rather than a reset,
    and how long a stalled stream may hold up a shutdown."""
    stream_buffer_bytes: int = 256 * 1024
    """Unsent and unacknowledged bytes of one stream. Raising it rides out longer stalls without
    catching up from the log, and costs that much memory for each stalled watcher."""
    kernel_buffer_bytes: int = 64 * 1024
    """SO_SNDBUF of a stream, which Linux doubles: the kernel's part of the above. Raising it is
    faster over long distances (about this much every round trip) and hides lag in the kernel."""

    def __post_init__(self) -> None:
        check_amounts(self, count_max=WHOLE_MAX, **dict.fromkeys(self.__slots__, 1))
        if self.url_bytes_max > self.head_bytes_max:
            raise InvalidConfig("url_bytes_max is part of head_bytes_max and cannot exceed it")
        if self.stream_buffer_bytes <= 2 * self.kernel_buffer_bytes:
            raise InvalidConfig("stream_buffer_bytes must exceed twice kernel_buffer_bytes")


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """An error answered by the protocol itself, before or instead of an app."""

    status: int
    code: str
    message: str
    retry_after_s: int = 0
    limit: str | None = None
    """The limit that was reached, if it is one over several connections."""
    maximum: int = 0

    def render(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """The whole response."""
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.limit is not None:
            error["detail"] = {
                "retry_after_ms": self.retry_after_s * 1000,
                "limit": self.limit,
                "max": self.maximum,
            }
        body = msgspec.json.encode({"error": error})
        lines = [STATUS_LINE[self.status]]
        for name, value in default_headers:
            lines += (name, b": ", value, b"\r\n")
        if self.retry_after_s:
            lines.append(b"retry-after: %d\r\n" % self.retry_after_s)
        lines += (b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),)
        lines += (b"connection: close\r\n\r\n", body)
        return b"".join(lines)


MALFORMED = HttpRefusal(400, "invalid_request", "the request is not valid HTTP/1.1")
HEAD_LATE = HttpRefusal(408, "request_timeout", "the request's headers took too long")
BODY_LATE = HttpRefusal(408, "request_timeout", "the request's body took too long")
BODY_LARGE = HttpRefusal(413, "payload_too_large", "the request's body is too large")
URL_LONG = HttpRefusal(414, "uri_too_long", "the request's target is too long")
HEAD_LARGE = HttpRefusal(
    431, "headers_too_large", "the request's headers are too large or too many"
)
HELD_FULL = HttpRefusal(
    429,
    "throttled",
    "too many bytes of requests and answers are in memory: come back later",
    1,
    "held_bytes_max",
)
ADDRESS_CROWDED = HttpRefusal(
    429,
    "throttled",
    "there are too many connections from this address already",
    1,
    "connections_per_address",
)
PIPELINE_FULL = HttpRefusal(
    429,
    "throttled",
    "too many requests were sent ahead of their answers: from this one on none was read",
    1,
    "pipeline_max",
)
CROWDED = HttpRefusal(503, "too_many_connections", "the server has no free connection", 1)
