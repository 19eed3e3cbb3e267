"""Records as their writer gives them: what may be in them, and what they count for.

They are stored as they were spelled, so a batch is gone through once, when it comes in, and nothing
is kept of that but a few sums.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from fairway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDS_MAX: Final = 10_000
RECORD_BYTES_MAX: Final = 1024 * 1024
META_BYTES_MAX: Final = 16 * 1024
META_KEYS_MAX: Final = 64
DOUBLE_DIGITS_MAX: Final = 309
"""Digits of the largest double: no integer with fewer is too large for one."""
FIELD_SHOWN_MAX: Final = 64
TAG_BYTES_MAX: Final = 256
NODE_BYTES_MAX: Final = 128
LEVELS_SAFE: Final = 128
"""Nesting that nobody has trouble with."""
SHALLOW_BYTES: Final = 2 * LEVELS_SAFE
"""Nothing as short is nested any deeper."""
LEVELS_MAX: Final = 600
"""More than this is refused, or a few levels more: what one Python takes, every other can read."""
LEVELS_TRIED_MAX: Final = 100_000
LEVELS_SPARE: Final = 256
"""Levels that a reader may be further down the stack than the writer was, or wrap a record in."""
RECORD_OVERHEAD: Final = 24
"""Bytes each record counts against `cap_bytes` beside its own: its seq, its time, its place."""


class RecordInput(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One record as its writer gives it. `data` and `meta` stay as they were spelled."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw = Raw()
    """An object, or empty or null if there is none (msgspec has no optional `Raw`)."""


class _DataRecord(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A `RecordInput` with nothing but data, as most are."""

    data: Raw


class Records(Struct, frozen=True, gc=False):
    """A JSON array of `RecordInput` that was checked, and what a topic counts it for."""

    raw: bytes
    count: int
    own_size: int
    """Bytes of their data, tags, nodes and meta."""
    nodeless: int
    """How many have no node of their own, and take that of the append."""
    tagged: bool
    """Whether any has a tag."""

    @classmethod
    def of(cls, raw: bytes, records: Sequence[RecordInput]) -> Records:
        """`records` is what `raw` says."""
        size = nodeless = 0
        tagged = False
        for record in records:
            size += len(record.data) + len(record.meta)
            if record.tag is not None:
                size += len(record.tag)
                tagged = True
            if record.node is not None:
                size += len(record.node)
            else:
                nodeless += 1
        return cls(raw, len(records), size, nodeless, tagged)

    def size(self, node: str | None) -> int:
        """What they count against `cap_bytes` if they are appended under `node`."""
        size = RECORD_OVERHEAD * self.count + self.own_size
        return size + self.nodeless * len(node) if node is not None else size


NO_RECORDS: Final = Records(b"[]", 0, 0, 0, False)
NULL: Final = Raw(b"null")
_DATA_RECORDS = msgspec.json.Decoder(list[_DataRecord])
_RECORDS = msgspec.json.Decoder(list[RecordInput])
_VALUE = msgspec.json.Decoder(Raw)
_ANY = msgspec.json.Decoder()
# All of it, not only its keys: unlike data, meta is read by every reader, whatever its type.
_META = msgspec.json.Decoder(dict[str, Any])
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_find_long_number = re.compile(rb"[0-9]{%d}" % DOUBLE_DIGITS_MAX).search


def parse_records(raw: bytes) -> Records:
    """Check a JSON array of records. It is kept without line breaks.

    Raises `InvalidRequest`, whose `code` says which limit was passed.
    """
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"records are not UTF-8: {error}") from None
    if b"\n" in raw or b"\r" in raw:
        # A stored record goes out in one line of an event stream.
        raw = reformat(raw)
    try:
        records = _DATA_RECORDS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _parse_any(raw)
    sizes = [len(record.data) for record in records]
    count = len(sizes)
    longest = max(sizes, default=0)
    if not 0 < count <= RECORDS_MAX or longest > RECORD_BYTES_MAX:
        return _parse_any(raw)  # which says why not
    if longest > SHALLOW_BYTES and _levels_max(raw) > LEVELS_SAFE:
        for at, record in enumerate(records):
            _check_levels(at, record.data)
    return Records(raw, count, sum(sizes), count, False)


def _parse_any(raw: bytes) -> Records:
    try:
        records = _RECORDS.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"records: {error}") from None
    if not records:
        raise InvalidRequest("records is empty: an append has 1 to 10,000 records")
    if len(records) > RECORDS_MAX:
        raise InvalidRequest(
            f"{len(records):,} records in one append, at most {RECORDS_MAX:,}",
            code="batch_too_large",
        )
    for at, record in enumerate(records):
        _check_record(at, record)
    if _levels_max(raw) > LEVELS_SAFE:
        for at, record in enumerate(records):
            _check_levels(at, record.data)
            _check_levels(at, record.meta)
    return Records.of(raw, records)


def decode_records(raw: bytes) -> list[RecordInput]:
    """The records of an array that was checked before."""
    return _RECORDS.decode(raw)


def _check_record(at: int, record: RecordInput) -> None:
    size = len(record.data)
    if record.meta and record.meta != NULL:
        _check_meta(at, record.meta)
        size += len(record.meta)
    if size > RECORD_BYTES_MAX:
        raise InvalidRequest(
            f"records[{at}] has {size:,} bytes, at most {RECORD_BYTES_MAX:,}",
            code="record_too_large",
        )
    for name, text, most in (
        ("tag", record.tag, TAG_BYTES_MAX),
        ("node", record.node, NODE_BYTES_MAX),
    ):
        if text is not None and len(text.encode()) > most:
            raise InvalidRequest(
                f"records[{at}].{name} has more than {most} bytes", code="record_too_large"
            )


def check_tag(tag: object) -> None:
    """Raises `InvalidRequest` for what cannot be the tag of a record."""
    if tag is None:
        return
    if not isinstance(tag, str):
        raise InvalidRequest(f"a tag is a text, not a {type(tag).__name__}")
    try:
        size = len(tag.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("a tag holds half a character: a lone surrogate") from None
    if size > TAG_BYTES_MAX:
        raise InvalidRequest(f"a tag has {size:,} bytes, at most {TAG_BYTES_MAX}")


def _levels_max(raw: bytes) -> int:
    """How deep `raw` can be nested at most."""
    return raw.count(b"[") + raw.count(b"{")


def _check_levels(at: int, part: Raw) -> None:
    if too_deep(part):
        raise InvalidRequest(f"records[{at}] is nested too deeply")


def too_deep(value: bytes | Raw) -> bool:
    """Whether JSON that can be read here cannot be by others: whoever calls from further down the
    stack, finds it in a message, or has a Python that follows fewer levels."""
    if len(value) <= SHALLOW_BYTES or _levels_max(raw := bytes(value)) <= LEVELS_SAFE:
        return False
    spare = _levels_to_spare()
    try:
        _VALUE.decode(b"[" * spare + raw + b"]" * spare)
    except RecursionError:
        return True
    return False


@cache
def _levels_to_spare() -> int:
    """How many levels leave `LEVELS_MAX` of what this interpreter follows.

    That is near 1,000 up to Python 3.12 and near 10,000 in 3.13, so it is tried out.
    """

    def fails(levels: int) -> bool:
        try:
            _VALUE.decode(b"[" * levels + b"]" * levels)
        except RecursionError:
            return True
        return False

    follows = bisect_left(range(LEVELS_TRIED_MAX), True, lo=LEVELS_MAX, key=fails) - 1
    return max(LEVELS_SPARE, follows - LEVELS_MAX)


def _check_meta(at: int, meta: Raw) -> None:
    if len(meta) > META_BYTES_MAX:
        raise InvalidRequest(
            f"records[{at}].meta has more than {META_BYTES_MAX} bytes", code="record_too_large"
        )
    try:
        keys = _META.decode(meta)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(_unreadable(at, meta)) from None
    if len(keys) > META_KEYS_MAX:
        raise InvalidRequest(
            f"records[{at}].meta has {len(keys)} keys, at most {META_KEYS_MAX}",
            code="record_too_large",
        )
    if len(meta) > DOUBLE_DIGITS_MAX and _find_long_number(meta) is not None:
        for key, value in keys.items():
            if not _fits_doubles(value):
                raise InvalidRequest(f"{_field(at, key)} has an integer that fits no double")


def _unreadable(at: int, meta: Raw) -> str:
    """Why `meta` cannot be read: it is no object, or which of its fields it is for."""
    try:
        fields = _FIELDS.decode(meta)
    except (msgspec.DecodeError, RecursionError):
        return f"records[{at}].meta is an object with string keys"
    for key, value in fields.items():
        try:
            _ANY.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"{_field(at, key)} cannot be read: {error}"
    return f"records[{at}].meta cannot be read"  # a key came twice, and only the last is right


def _field(at: int, key: str) -> str:
    return f"records[{at}].meta.{key[:FIELD_SHOWN_MAX]}"


def _fits_doubles(value: Any) -> bool:
    waiting = [value]  # and no recursion: how deep it is nested is looked at later
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, int):
            try:
                float(one)
            except OverflowError:
                return False
    return True


def reformat(raw: bytes) -> bytes:
    """The same JSON on one line; `InvalidRequest` if it is not JSON."""
    try:
        compact = msgspec.json.format(raw, indent=-1)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    if b"\n" in compact or b"\r" in compact:
        raise InvalidRequest("not JSON: a line break inside a string")
    return compact
