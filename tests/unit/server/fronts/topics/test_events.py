"""Event ids and frames: what they say is read back, and no record breaks a line of a stream."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidRequest
from fairway.server.fronts.topics.events import (
    SHARED,
    EventEncoder,
    MultiStream,
    pack_id,
    pack_position,
    parse_id,
    parse_positions,
)
from fairway.server.http.connection import Connection
from fairway.topics.batch import VERSION, Projection, RecordBatch
from fairway.topics.reading import EVERYTHING, select
from fairway.topics.topic import Gap, Topic
from fairway.topics.watching import SharedView, Watcher
from fairway.wire.records import parse_records
from fairway.wire.topics import TopicConfig

NUMBERS = st.integers(0, 2**63 - 1)
EPOCHS = st.dictionaries(NUMBERS, NUMBERS, max_size=40)


def topic(name: str = "orders", epoch: int = 7, head: int = 9) -> Topic:
    made = Topic(name, epoch, TopicConfig())
    made.head = made.assigned = made.drained = head
    return made


@given(EPOCHS)
def test_an_id_of_several_topics_is_read_back(cursors: dict[int, int]) -> None:
    packed = pack_id(pack_position(epoch, seq) for epoch, seq in cursors.items())
    assert packed.isascii()
    assert b"=" not in packed
    assert parse_positions(packed.decode()) == cursors


@given(st.text(max_size=60))
def test_any_other_text_is_refused_or_means_something(text: str) -> None:
    for parse in (parse_positions, parse_id):
        with suppress(InvalidRequest):
            found = parse(text)
            numbers = [*found.keys(), *found.values()] if isinstance(found, dict) else found
            assert all(0 <= number < 10**19 for number in numbers)


@pytest.mark.parametrize(
    "text", ["", "7", "7.", ".7", "7.8.9", "-1.2", "1.-2", "1.2e3", "٣.٤", "9" * 20 + ".1"]
)
def test_what_is_no_id_of_one_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no event id"):
        parse_id(text)


@pytest.mark.parametrize("text", ["!", "AQ", "gA", "_" * 24, "AQL_", "é", "A" * 5])
def test_what_is_no_id_of_several_topics_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no event id"):
        parse_positions(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"data": JSON_VALUES},
        optional={
            "tag": st.text(max_size=20),
            "node": st.text(max_size=20),
            "meta": st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3),
        },
    ),
    min_size=1,
    max_size=4,
)


@given(RECORDS, st.sampled_from([None, 1, "\t"]), st.booleans(), st.text(max_size=20))
def test_no_record_breaks_a_line(
    records: list[dict[str, object]], indent: int | str | None, ascii_only: bool, trace: str
) -> None:
    with suppress(UnicodeEncodeError):  # half a surrogate, which a client cannot even send
        body = json.dumps(records, indent=indent, ensure_ascii=ascii_only).encode()
        try:
            parsed = parse_records(body)
        except InvalidRequest:
            return
        batch = RecordBatch(VERSION, 1, parsed.count, 5, 0, parsed.raw, None, trace)
        held = topic(head=parsed.count)
        found, _ = select(held, [batch], 0, held.head, 100, 1 << 20, EVERYTHING)
        view = SharedView(SHARED, projection=Projection(tags=True))
        event = SHARED.records(held, found, 0, held.head, view).bare
        lines = event.split(b"\n")
        assert b"\r" not in event
        assert [line.partition(b": ")[0] for line in lines] == [b"id", b"event", b"data", b"", b""]
        shown = json.loads(lines[2].partition(b": ")[2])["records"]
        assert [record["data"] for record in shown] == [record["data"] for record in records]
        assert [record.get("$tag") for record in shown] == [one.get("tag") for one in records]
        assert [record.get("meta") for record in shown] == [one.get("meta") for one in records]


@given(st.binary(max_size=60))
def test_what_is_accepted_as_records_is_one_line_of_json(tail: bytes) -> None:
    with suppress(InvalidRequest):
        records = parse_records(b'[{"data":' + tail)
        assert b"\n" not in records.raw
        assert b"\r" not in records.raw
        assert len(json.loads(records.raw)) == records.count


def test_events_of_one_topic_carry_their_id_and_those_of_several_do_not() -> None:
    held = topic()
    held.evict_floor = 4
    plain = EventEncoder(ids=False)
    gap = Gap(1, 3, "cap")
    for shared, bare in (
        (SHARED.gap(held, gap), plain.gap(held, gap)),
        (SHARED.caught_up(held), plain.caught_up(held)),
        (SHARED.deleted(held), plain.deleted(held)),
    ):
        first, _, rest = shared.bare.partition(b"\n")
        assert rest == bare.bare
        assert first in (b"id: 7.3", b"id: 7.9")
        assert shared.chunk == Connection.chunk(shared.bare)
    facts = msgspec.json.decode(plain.gap(held, gap).bare.split(b"data: ")[1])
    assert facts == {
        "topic": "orders",
        "epoch": 7,
        "reason": "cap",
        "gap_from": 1,
        "gap_to": 3,
        "missed_estimate": 3,
        "earliest_seq": 1,
        "head_seq": 9,
    }


def test_an_event_of_several_topics_encodes_the_position_that_moved_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Upstream encoded those of all topics anew for each event, up to 256."""
    sent: list[bytes] = []
    encoded: list[tuple[int, int]] = []

    def pack(epoch: int, seq: int) -> bytes:
        encoded.append((epoch, seq))
        return pack_position(epoch, seq)

    monkeypatch.setattr("fairway.server.fronts.topics.events.pack_position", pack)
    connection: Any = SimpleNamespace(
        chunked=False, ownership=None, write=lambda data: sent.append(data) or True
    )
    stream = MultiStream(connection, lambda: None)
    for epoch in range(1, 257):
        stream.place(epoch, 1000)
    encoded.clear()
    held = topic(epoch=7, head=1001)
    watcher = Watcher(held, SharedView(EventEncoder(ids=False)), stream, 1000)
    assert stream.write(watcher, EventEncoder(ids=False).caught_up(held), 1001)
    assert encoded == [(7, 1001)]
    name, _, value = sent[0].partition(b"\n")[0].partition(b": ")
    assert name == b"id"
    assert parse_positions(value.decode()) == {**dict.fromkeys(range(1, 257), 1000), 7: 1001}
    assert len(value) < 5 * 256, "and it is short: less than five letters for each"
