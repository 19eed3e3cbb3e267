"""Messages of WebSockets, held to their types."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from fairway.wire.sockets import RecordMessage


def as_written_down(raw: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """What a message says, if `decoder` knows it and it says no more than its type does."""
    message, found = decoder.decode(raw), json.loads(raw)
    if isinstance(message, RecordMessage):  # whose records leave out what they have not
        assert set(found) == {"op", *message.__struct_fields__}
    else:
        assert json.loads(msgspec.json.encode(message)) == found
    return found
