"""Journals of format 1, whose effects named no kind, are read as if they were of today."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairway.errors import Corrupt, UnknownFormat
from fairway.graphs.boundary import Stored
from fairway.graphs.checkpoint import (
    FORMAT,
    Began,
    Checkpoint,
    EffectRecord,
    Fired,
    Pushed,
    RetentionLimits,
    Sent,
    decode_checkpoint,
    decode_records,
    encode_checkpoint,
    encode_record,
    encode_records,
)

OLD_EFFECTS = [
    ["", b"a packed job", None],
    ["orders", b'{"id":1}', None],
    ["orders", b"2", 'eu."west"'],
    ["short", b"3"],
]
TODAY = (
    EffectRecord("job", "", b"a packed job"),
    EffectRecord("topic", "orders", b'{"data":{"id":1}}'),
    EffectRecord("topic", "orders", b'{"data":2,"tag":"eu.\\"west\\""}'),
    EffectRecord("topic", "short", b'{"data":3}'),
)


def old_entry(*records: list[Any]) -> bytes:
    return msgspec.msgpack.encode(list(records))


def old_fired(number: int, effects: list[Any]) -> list[Any]:
    return [0, number, 1, 123, "news", [["ticks", {"push": number}, None]], [], effects, None, 0]


def test_records_of_format_1_are_read() -> None:
    fired, sent = decode_records(old_entry(old_fired(7, OLD_EFFECTS), [6, 5]))
    assert isinstance(fired, Fired)
    assert (fired.number, fired.cause, fired.effects) == (7, "news", TODAY)
    assert fired.news[0].marks == {"push": 7}
    assert sent == Sent(5)


def test_records_of_both_formats_may_stand_in_one_entry() -> None:
    today = Fired(2, 1, 123, "news", (), effects=TODAY[:1])
    old = msgspec.msgpack.encode(old_fired(1, OLD_EFFECTS))
    first, second = decode_records(encode_records([old, encode_record(today)]))
    assert isinstance(first, Fired)
    assert first.effects == TODAY
    assert second == today


def test_a_checkpoint_of_format_1_is_read_and_written_as_one_of_today() -> None:
    state = msgspec.msgpack.decode(encode_checkpoint(Checkpoint(number=9, paused=True)))
    state |= {"format": 1, "unsent": {8: [1, OLD_EFFECTS[:1]], 9: [2, OLD_EFFECTS[1:]]}}
    found = decode_checkpoint(msgspec.msgpack.encode(state))
    assert (found.number, found.paused, found.format) == (9, True, FORMAT)
    assert found.unsent == {8: (1, TODAY[:1]), 9: (2, TODAY[1:])}
    assert decode_checkpoint(encode_checkpoint(found)) == found
    found.apply(Sent(8), RetentionLimits({}, 0))
    assert list(found.unsent) == [9]


def test_a_later_format_is_refused_with_its_number() -> None:
    data = encode_checkpoint(Checkpoint(format=FORMAT + 1))
    with pytest.raises(UnknownFormat, match="of format 3, this release reads 2 and 1"):
        decode_checkpoint(data)


def test_records_of_a_later_format_are_refused_where_their_life_begins() -> None:
    """They may fit all the same: what was added at the end of a record is left out unread."""
    later = [[4, 7, "host:1", 123, FORMAT + 1], [1, "ticks", 1, [1, b"5"], [], "added since"]]
    with pytest.raises(UnknownFormat, match="entry 12 is of format 3, this release reads 2 and 1"):
        decode_records(old_entry(*later), "entry 12")
    began, pushed = decode_records(old_entry([*later[0][:4], FORMAT], later[1]))
    assert (began, pushed) == (Began(7, "host:1", 123, FORMAT), Pushed("ticks", 1, Stored(1, b"5")))
    assert decode_records(old_entry(later[0][:4])) == [Began(7, "host:1", 123)], "as they were"


MISFITS = [
    *([99, 1, 2], [0, "not a number"], [], ["0"], 7, None, "text", {"number": 1}),
    old_fired(1, [7]),
    old_fired(1, [["only a topic"]]),
    [*old_fired(1, [])[:7], None],
]


@pytest.mark.parametrize("entry", [*([[6, 5], record] for record in MISFITS), 7, "text", {"a": 1}])
def test_what_is_of_neither_format_is_refused_and_says_where_it_stands(entry: Any) -> None:
    with pytest.raises(UnknownFormat, match="entry 12 is of no format that this release knows"):
        decode_records(msgspec.msgpack.encode(entry), "entry 12")


def test_what_nobody_wrote_is_corrupt() -> None:
    entry = encode_records([encode_record(Sent(5))])
    with pytest.raises(Corrupt, match="entry 12: it holds no records"):
        decode_records(entry[:-1], "entry 12")
    state = encode_checkpoint(Checkpoint(number=9))
    misfit = msgspec.msgpack.encode({**msgspec.msgpack.decode(state), "number": "nine"})
    for data in (state[:-1], misfit, b"\x07", msgspec.msgpack.encode({"number": 9})):
        with pytest.raises(Corrupt, match="checkpoint 12: it holds no state"):
            decode_checkpoint(data, "checkpoint 12")
