"""Reads journals of format 1, whose effects were (topic, data, tag) and named no kind. Pure.

An empty topic stood for a job. Each is turned into what is written today, (kind, target, data); the
rest of a record has not changed.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

FORMAT: Final = 1

_FIRED: Final = 0
"""The tag of the only record that has effects, and where they stand in it."""
_EFFECTS: Final = 7

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.json.Encoder().encode


def records_of(entry: bytes) -> list[Any]:
    """The records of an entry, as plain values of today's form."""
    records: list[Any] = _decode(entry)
    for record in records:
        if record[0] == _FIRED and len(record) > _EFFECTS:
            record[_EFFECTS] = [_effect_of(each) for each in record[_EFFECTS]]
    return records


def checkpoint_of(data: bytes, now: int) -> dict[str, Any]:
    """A checkpoint, as plain values of today's form, which is `now`."""
    state: dict[str, Any] = _decode(data)
    state["format"] = now
    for firing, (epoch, effects) in state.get("unsent", {}).items():
        state["unsent"][firing] = (epoch, [_effect_of(each) for each in effects])
    return state


def _effect_of(old: list[Any]) -> tuple[str, str, bytes]:
    topic, data, *rest = old
    if not isinstance(data, bytes):
        return topic, data, *rest  # of today's form already: both stand in one entry
    if not topic:
        return "job", "", data
    tag = b',"tag":' + _encode(rest[0]) if rest and rest[0] is not None else b""
    return "topic", topic, b'{"data":%b%b}' % (data, tag)
