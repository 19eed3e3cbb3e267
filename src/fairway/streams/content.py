"""Bodies and records: how what a client sends becomes records of a topic, and comes back. Pure.

A JSON stream has a record for each message. Any other stream has one for each body, its bytes as
base64 in a JSON string; a large body has several, which are written together or not at all.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from fairway.errors import InvalidRequest
from fairway.wire.records import NO_RECORDS, Records, parse_records, reformat

if TYPE_CHECKING:
    from collections.abc import Sequence

OCTETS: Final = "application/octet-stream"
JSON: Final = "application/json"
BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""A body is one operation of the log, and grows by a third on the way."""
PIECE_BYTES: Final = 750 * 1024
"""Bytes in one record: as base64 they stay below what a record may have."""

_ELEMENTS = msgspec.json.Decoder(list[Raw])
_VALUE = msgspec.json.Decoder(Raw)


def media_type(content_type: str) -> str:
    """The type alone, in lower case: what counts when two are compared."""
    return content_type.partition(";")[0].strip().lower()


def same_type(content_type: str | None, own: str) -> bool:
    """Whether bodies of a type belong into a stream of type `own`."""
    return media_type(content_type or "") == media_type(own)


def is_json(content_type: str) -> bool:
    """Whether a stream of this type has messages, and not only bytes."""
    return media_type(content_type) == JSON


def pieces_of(body: bytes, *, json: bool) -> list[bytes]:
    """The messages of a JSON body, or a body cut into what fits a record."""
    if not json:
        return [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]
    if b"\n" in body or b"\r" in body:
        body = reformat(body)  # a message goes out in one line of an event stream
    body = body.strip(b" \t")
    try:
        body.decode()
        if body.startswith(b"["):
            return [bytes(message).strip(b" \t") for message in _ELEMENTS.decode(body)]
        return [bytes(_VALUE.decode(body))]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"not JSON: {error}") from None


def records_of(body: bytes, *, json: bool, prefix: Sequence[bytes] = ()) -> Records:
    """A body as records; `prefix` are pieces that go before it."""
    pieces = [*prefix, *(pieces_of(body, json=json) if body else ())]
    if not pieces:
        return NO_RECORDS
    data = pieces if json else [b'"%b"' % b64encode(piece) for piece in pieces]
    raw = b"[%b]" % b",".join([b'{"data":%b}' % one for one in data])
    if not json:
        return Records(raw, len(data), sum(map(len, data)), len(data), tagged=False)
    try:
        return parse_records(raw)
    except InvalidRequest as error:
        if error.code in ("record_too_large", "batch_too_large"):
            raise InvalidRequest(str(error), code="payload_too_large") from None
        raise


def piece_of(data: bytes, *, json: bool) -> bytes:
    """What a record holds. One that was appended past this protocol, as JSON, is given as JSON."""
    if json:
        return data
    try:
        return b64decode(data[1:-1], validate=True) if data[:1] == b'"' else data
    except Base64Error:
        return data


def joined(pieces: Sequence[bytes], *, json: bool) -> bytes:
    """Pieces as the body of an answer."""
    return b"[%b]" % b",".join(pieces) if json else b"".join(pieces)
