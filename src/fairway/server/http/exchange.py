"""One HTTP request and its reply, as plain values: all that the routes see of ASGI."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from fairway.errors import InvalidRequest
from fairway.wire.integers import with_integers
from fairway.wire.requests import TRACE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping

    from fairway.server.access.auth import Identity
    from fairway.server.http.response import ResponseStream

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

T = TypeVar("T")

UNCOUNTED: Final = "fairway.uncounted"
"""Where a scope holds what to call once its request is counted as a connection: from then on it is
none under way. Not there if nobody counts."""
JSON: Final = (b"content-type", b"application/json")
TRUE: Final = ("true", "True", "TRUE", "1", "")
QUERY_REMEMBERED: Final = 64
FALSE: Final = ("false", "False", "FALSE", "0")
_FRACTION: Final = "got `float`"
_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """A whole response."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)


def json_reply(
    message: object, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Reply:
    return Reply(status, _encode(message), (JSON, *headers))


class Disconnected(Exception):
    """The client went away before its request was complete; nobody is there to be told."""


class Request:
    """What was asked, and by whom."""

    __slots__ = ("_query", "_receive", "headers", "identity", "method", "path", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.identity: Identity
        self._receive = receive
        self._query: Mapping[str, str] | None = None

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return value.decode("latin-1") if value is not None else None

    @property
    def trace(self) -> str | None:
        """Its `traceparent`, if that is one to keep with a record."""
        if b"traceparent" not in self.headers:
            return None
        trace = self.headers[b"traceparent"]
        return trace.decode("latin-1") if len(trace) <= TRACE_BYTES_MAX else None

    @property
    def response_stream(self) -> ResponseStream | None:
        """The way to stream a response without a task; None on a server that has none."""
        found: ResponseStream | None = self.scope.get("extensions", {}).get("fairway.response")
        return found

    async def body(self) -> bytes:
        """The whole body. Its size is bounded by the protocol below."""
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message["type"] == "http.disconnect":
            raise Disconnected
        if not message.get("more_body"):
            return body
        parts = [body]
        while message.get("more_body"):
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
        return b"".join(parts)

    async def json(self, decoder: msgspec.json.Decoder[T], *, empty: bytes | None = None) -> T:
        """The body as a message of one type; `empty` stands for a body that is not there."""
        body = await self.body()
        if not body and empty is not None:
            body = empty
        else:
            self.require_json()
        return parse(decoder, body)

    def require_json(self) -> None:
        """Refuse a body of another type: a form that a web page can send unasked, above all."""
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and not kind.endswith(b"+json"):
            raise InvalidRequest(
                "the body of this request is JSON: send content-type: application/json",
                code="unsupported_media_type",
            )

    def query(self, known: Collection[str] = ()) -> Mapping[str, str]:
        """The query's parameters; `InvalidRequest` for one that is unknown or given twice."""
        query = self.parameters
        for name in query:
            if name not in known and name != "ticket":
                raise InvalidRequest(
                    f"unknown query parameter {name[:80]!r};"
                    f" known here: {', '.join(sorted(known)) or 'none'}"
                )
        return query

    @property
    def parameters(self) -> Mapping[str, str]:
        """The query's parameters, known or not."""
        if self._query is None:
            raw: bytes = self.scope["query_string"]
            # No secret is kept, however it is spelled.
            cacheable = len(raw) <= QUERY_REMEMBERED and b"ticket" not in raw and b"%" not in raw
            self._query = _remembered_query(raw) if cacheable else _parse_query(raw)
        return self._query


def _parse_query(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            raw.decode("latin-1"), keep_blank_values=True, max_num_fields=100, errors="strict"
        )
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from None
    if len(dict(pairs)) != len(pairs):
        raise InvalidRequest("a query parameter is given twice")
    return dict(pairs)


_remembered_query = lru_cache(maxsize=256)(_parse_query)  # clients repeat themselves


def parse(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a message, or say what is wrong with it."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _FRACTION in str(error):
            # To JSON 1.0 is an integer, and some clients write every number so. Asked for only
            # here, where the request would be refused otherwise.
            with suppress(msgspec.DecodeError, RecursionError):
                return decoder.decode(with_integers(body, decoder.type))
        raise InvalidRequest(str(error)) from None


def flag(text: str | None, name: str, *, default: bool) -> bool:
    """A query parameter that is true or false."""
    if text is None:
        return default
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise InvalidRequest(f"{name} is true or false, not {text[:40]!r}")


def number(
    text: str | None, name: str, *, default: int, least: int = 0, most: int = 2**63 - 1
) -> int:
    """A query parameter that is a whole number."""
    if text is None:
        return default
    digits = text.isascii() and text.isdigit() and len(text) <= 20  # more than any has
    if not digits or not least <= int(text) <= most:
        raise InvalidRequest(f"{name} is a whole number from {least} to {most}, not {text[:40]!r}")
    return int(text)
