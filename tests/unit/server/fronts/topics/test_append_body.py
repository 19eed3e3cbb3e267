"""The short way through the body of an append finds what the long way finds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidRequest
from fairway.server.fronts.topics.api import _APPEND, _RECORDS_ONLY, _parse_records_only
from fairway.server.http.exchange import parse
from fairway.wire.records import parse_records
from fairway.wire.topics import AppendRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=5,
)
RECORD = st.fixed_dictionaries(
    {"data": JSON},
    optional={"tag": st.text(max_size=3), "node": st.text(max_size=3), "more": JSON},
)
BODIES = st.builds(
    lambda records, fields, spaces: json.dumps(
        {"records": records, **fields}, separators=(",", ":") if not spaces else None
    ).encode(),
    st.lists(RECORD, max_size=4),
    st.sampled_from([{}, {"node": "n"}, {"create": True}, {"unknown": 1}]),
    st.booleans(),
)
ENDS = st.sampled_from([b"]}", b"]}", b"]", b"]]", b"]x", b"] ", b"}", b"]}}", b""])
PIECES = st.lists(
    st.sampled_from(
        [
            b'{"data":1}',
            b",",
            b"]",
            b"[",
            b"}",
            b"{",
            b'"records"',
            b":",
            b" ",
            b"\n",
            b'"',
            b"\xff",
        ]
    ),
    max_size=8,
).map(lambda pieces: b'{"records":[' + b"".join(pieces) + b"]}")
TORN = st.builds(lambda whole, end: whole[:-2] + end, PIECES | BODIES, ENDS)


@given(BODIES | PIECES | TORN)
def test_what_is_read_the_short_way_is_the_same_the_long_way(body: bytes) -> None:
    short = _parse_records_only(body)
    if short is None:
        return
    message = parse(_APPEND, body)
    assert short == parse_records(bytes(message.records))
    for field in AppendRequest.__struct_fields__:
        if field != "records":
            assert getattr(message, field) == getattr(_RECORDS_ONLY, field)


def test_the_short_way_is_taken_by_a_plain_body_and_by_no_other() -> None:
    assert _parse_records_only(b'{"records":[{"data":1},{"data":"]}"}]}') is not None
    for other in (
        b'{"records":[{"data":1}],"node":"n"}',
        b'{"node":"n","records":[{"data":1}]}',
        b'{"records":[{"data":1}],"node":["n"]}',
        b'{"records": [{"data":1}]}',
        b'{"records":[{"data":1}]} ',
        b'{"records":[{"data":1}]]',
        b'{"records":[{"data":1}] ',
        b'{"records":[{"data":1}]',
        b'{"records":[]}',
        b'{"records":[]]}',
    ):
        assert _parse_records_only(other) is None, other


@pytest.mark.parametrize("body", [b'{"records":[{"data":1}],"records":[]}', b'{"records":[}]}'])
def test_what_is_wrong_is_said_by_the_long_way(body: bytes) -> None:
    assert _parse_records_only(body) is None
    with pytest.raises(InvalidRequest):
        parse_records(bytes(parse(_APPEND, body).records))
