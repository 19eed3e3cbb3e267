"""Messages whose records are kept raw, as people should read them in the API document."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fairway.wire.records import META_KEYS_MAX, NODE_BYTES_MAX, RECORDS_MAX, TAG_BYTES_MAX
from fairway.wire.topics import KEY_BYTES_MAX, Tombstone, TopicPatch


class RecordIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append."""

    data: Any
    tag: Annotated[str, msgspec.Meta(max_length=TAG_BYTES_MAX)] | None = None
    node: Annotated[str, msgspec.Meta(max_length=NODE_BYTES_MAX)] | None = None
    meta: Annotated[dict[str, Any], msgspec.Meta(max_length=META_KEYS_MAX)] | None = None


class AppendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records to append, and what goes for all of them."""

    records: Annotated[list[RecordIn], msgspec.Meta(min_length=1, max_length=RECORDS_MAX)]
    node: Annotated[str, msgspec.Meta(max_length=NODE_BYTES_MAX)] | None = None
    idempotency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_BYTES_MAX)] | None = (
        None
    )
    create: bool | None = None
    config: TopicPatch | None = None
    disable_backpressure: bool = False


class DiffBody(msgspec.Struct, frozen=True, kw_only=True):
    """Records after a cursor."""

    topic: str
    epoch: int
    records: list[dict[str, Any]]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
