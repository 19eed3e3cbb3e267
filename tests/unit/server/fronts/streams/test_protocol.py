"""The protocol as values: headers and queries, cursors and tags."""

from __future__ import annotations

from random import Random

import pytest

from fairway.errors import InvalidRequest, NotFound
from fairway.server.fronts.streams import protocol
from fairway.streams.offset import Offset


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
