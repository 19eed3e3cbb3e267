"""Bodies become records and come back."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidRequest
from fairway.streams.content import PIECE_BYTES, joined, piece_of, records_of
from fairway.wire.records import decode_records


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
