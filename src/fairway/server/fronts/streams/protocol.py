"""The Durable Streams protocol as values: headers and queries in, headers and events out.

Decides only what the text of a request means and how an answer is spelled. Whether a stream exists
and what may be done to it is the part's business; what goes wrong here is an `InvalidRequest`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from fairway.errors import Conflict, InvalidRequest
from fairway.streams.content import JSON, media_type
from fairway.streams.lifetime import Lifetime, milliseconds
from fairway.streams.offset import NOW, START, Offset
from fairway.streams.paths import check_path, keeps_stream, path_in
from fairway.streams.requests import Producer, StreamAppend, StreamCreate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

PREFIX: Final = "/v1/stream/"
PRODUCER_BYTES_MAX: Final = 256
SEQ_BYTES_MAX: Final = 1024
NUMBER_MAX: Final = 2**53 - 1
TTL_S_MAX: Final = 10**12

CURSOR_EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00:00Z, where the intervals of cursors are counted from."""
CURSOR_INTERVAL_S: Final = 20
CURSOR_JITTER_S: Final = 3600

REQUEST_HEADERS: Final = (
    "Authorization, Content-Type, If-None-Match, Producer-Epoch, Producer-Id, Producer-Seq,"
    " Stream-Closed, Stream-Expires-At, Stream-Fork-Offset, Stream-Fork-Sub-Offset,"
    " Stream-Forked-From, Stream-Seq, Stream-TTL, Traceparent"
)
"""What a page of another origin may send, once it is allowed to ask at all."""
EXPOSED_HEADERS: Final = (
    "ETag, Location, Producer-Epoch, Producer-Expected-Seq, Producer-Received-Seq, Producer-Seq,"
    " Retry-After, Stream-Closed, Stream-Cursor, Stream-Expires-At, Stream-Gap-From,"
    " Stream-Gap-To, Stream-Next-Offset, Stream-SSE-Data-Encoding, Stream-TTL, Stream-Up-To-Date"
)
METHODS: Final = "GET, HEAD, PUT, POST, DELETE, OPTIONS"

_WHOLE = re.compile(r"0|[1-9][0-9]*")
_DIGITS = re.compile(r"[0-9]{1,16}")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+\s*(;[\x20-\x7e]*)?", re.ASCII)


# Names


def stream_path(path: str) -> str:
    """The stream's own path, from that of its URL; `InvalidRequest` if it cannot name one."""
    own = path.removeprefix(PREFIX)
    if own == path or not own:
        raise InvalidRequest(f"a stream's path begins with {PREFIX} and goes on")
    check_path(own)
    return own


def refuse_append(topic: str) -> None:
    """Raise `Conflict` for the name of a stream's topic: only the protocol appends there.

    By the name alone, so it costs a comparison and holds for a stream that is yet to be made.
    """
    if not keeps_stream(topic):
        return
    path = path_in(topic)
    raise Conflict(
        f"topic {topic!r} is a Durable Stream's: append to it at {PREFIX}{path or '…'}",
        code="stream_topic",
        detail={"append_at": PREFIX + path} if path else None,
    )


# Requests


class ReadRequest(NamedTuple):
    offset: Offset | str | None
    """A position, `-1`, `now`, or None if none was given."""
    live: str | None
    cursor: int | None


def parse_create(headers: Mapping[bytes, bytes]) -> StreamCreate:
    """What a PUT asks for."""
    ttl, expires_at = _text(headers, b"stream-ttl"), _text(headers, b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise InvalidRequest("a stream has Stream-TTL or Stream-Expires-At, not both")
    if expires_at is not None:
        milliseconds(expires_at)
    source = _text(headers, b"stream-forked-from")
    offset, sub = _text(headers, b"stream-fork-offset"), _text(headers, b"stream-fork-sub-offset")
    if source is None and (offset is not None or sub is not None):
        raise InvalidRequest("Stream-Fork-Offset and its Sub-Offset need Stream-Forked-From")
    return StreamCreate(
        _content_type(headers),
        Lifetime(_whole(ttl, "Stream-TTL", TTL_S_MAX) if ttl is not None else None, expires_at),
        _closed(headers),
        stream_path(unquote(source)) if source is not None else None,
        Offset.parse(offset) if offset is not None else None,
        _whole(sub, "Stream-Fork-Sub-Offset", NUMBER_MAX) if sub is not None else 0,
    )


def parse_append(headers: Mapping[bytes, bytes]) -> StreamAppend:
    """What a POST asks for."""
    seq = _text(headers, b"stream-seq")
    if seq is not None and len(seq) > SEQ_BYTES_MAX:
        raise InvalidRequest(f"Stream-Seq has at most {SEQ_BYTES_MAX} bytes")
    return StreamAppend(_content_type(headers), _closed(headers), seq, _producer(headers))


def parse_read(query_string: bytes) -> ReadRequest:
    """What a GET asks for. Parameters that are not of the protocol are left alone."""
    try:
        query = parse_qs(query_string.decode("latin-1"), keep_blank_values=True, errors="strict")
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from None
    offsets = query.get("offset", [])
    if len(offsets) > 1:
        raise InvalidRequest("offset is given twice")
    offset: Offset | str | None = None
    if offsets:
        offset = offsets[0] if offsets[0] in (START, NOW) else Offset.parse(offsets[0])
    live = query.get("live", [None])[-1]
    if live not in (None, "long-poll", "sse"):
        raise InvalidRequest(f"live is long-poll or sse, not {str(live)[:40]!r}")
    if live is not None and offset is None:
        raise InvalidRequest(f"live={live} needs an offset: -1, now, or where you are")
    cursor = query.get("cursor", [""])[-1]
    return ReadRequest(offset, live, int(cursor) if _DIGITS.fullmatch(cursor) else None)


def is_text(content_type: str) -> bool:
    """Whether its bytes are UTF-8 that an event stream can carry as they are."""
    kind = media_type(content_type)
    return kind.startswith("text/") or kind == JSON


def _content_type(headers: Mapping[bytes, bytes]) -> str | None:
    given = _text(headers, b"content-type")
    if given is None or not given.strip():
        return None
    if len(given) > 256 or not _MEDIA_TYPE.fullmatch(given.strip()):
        raise InvalidRequest(f"{given[:80]!r} is not a media type")
    return given.strip()


def _producer(headers: Mapping[bytes, bytes]) -> Producer | None:
    name = _text(headers, b"producer-id")
    epoch, seq = _text(headers, b"producer-epoch"), _text(headers, b"producer-seq")
    if name is None and epoch is None and seq is None:
        return None
    if name is None or epoch is None or seq is None:
        raise InvalidRequest("Producer-Id, Producer-Epoch and Producer-Seq come together")
    if not 0 < len(name) <= PRODUCER_BYTES_MAX:
        raise InvalidRequest(f"Producer-Id has 1 to {PRODUCER_BYTES_MAX} bytes")
    return Producer(name, _number(epoch, "Producer-Epoch"), _number(seq, "Producer-Seq"))


def _closed(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"stream-closed", b"").strip().lower() == b"true"


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return value.decode("latin-1") if value is not None else None


def _number(text: str, name: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > NUMBER_MAX:
        raise InvalidRequest(f"{name} is a whole number from 0 to 2^53-1")
    return int(text)


def _whole(text: str, name: str, most: int) -> int:
    """A number in its one canonical spelling."""
    if len(text) > 16 or not _WHOLE.fullmatch(text) or int(text) > most:
        raise InvalidRequest(f"{name} is a whole number without sign, fraction or leading zeros")
    return int(text)


# Answers


def next_cursor(now_s: int, echoed: int | None, random: Random) -> int:
    """The number of this interval; past the client's own if that is not behind it.

    A cache in between keys its answers by the cursor, so one that never repeats never loops.
    """
    current = (now_s - CURSOR_EPOCH_S) // CURSOR_INTERVAL_S
    if echoed is None or echoed < current:
        return current
    return echoed + max(1, random.randint(1, CURSOR_JITTER_S) // CURSOR_INTERVAL_S)


def etag(
    epoch: int,
    start: Offset,
    end: Offset,
    *,
    records: int,
    lost_to: int = 0,
    at_tail: bool = False,
    closed: bool = False,
) -> str:
    """Names one answer: another range, incarnation, loss, deletion or end gives another tag.

    What was appended never changes and never comes back, so within a range the number of records
    that are left tells which ones they are.
    """
    end_of = ":c" if closed else ":t" if at_tail else ""
    return f'"{epoch:x}:{start}:{end}:{records:x}:{lost_to:x}{end_of}"'


def matches(if_none_match: bytes | None, tag: str) -> bool:
    """Whether the client already has the answer called `tag`."""
    if if_none_match is None:
        return False
    given = if_none_match.decode("latin-1").split(",")
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in given)
