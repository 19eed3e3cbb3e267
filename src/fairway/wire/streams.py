"""Messages of Durable Streams: what an event stream says between its data."""

from __future__ import annotations

import msgspec


class StreamControl(msgspec.Struct, rename="camel", omit_defaults=True):
    """What follows each data event of an event stream."""

    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False
