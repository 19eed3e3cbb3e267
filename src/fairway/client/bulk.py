"""Many records as a row of appends: how they are cut, under which keys, and how far it has come.

Each append is all or none and under a key of its own, made of the run's key and the number of
records before it. So the same records under the same key, begun at the same place, change nothing
that was stored already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairway.client import protocol
from fairway.client.records import encode_new

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.client.protocol import Call
    from fairway.wire.topics import AppendReply, TopicPatch

BATCH_RECORDS: Final = 1000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Beyond these an append costs others latency and gains little."""


class Progress(NamedTuple):
    """How far `append_many` has come."""

    records: int = 0
    """Acknowledged, in order, from the first."""
    batches: int = 0
    first_seq: int = 0
    last_seq: int = 0
    deduped: int = 0
    """Of `records`, those that an earlier run had stored under the same key."""


class Batcher:
    """Gathers encoded records into batches of at most so many records and bytes."""

    def __init__(self, *, records: int, size: int) -> None:
        assert records > 0
        assert size > 0
        self._records_max = records
        self._bytes_max = size
        self._held: list[bytes] = []
        self._bytes = 0

    def add(self, record: bytes) -> list[bytes] | None:
        """Take a record; the batch that is complete without it, if there is one."""
        full = self._held and (
            len(self._held) >= self._records_max or self._bytes + len(record) > self._bytes_max
        )
        batch = self.rest() if full else None
        self._held.append(record)
        self._bytes += len(record)
        return batch

    def rest(self) -> list[bytes]:
        """What has not been handed out."""
        batch, self._held, self._bytes = self._held, [], 0
        return batch


class Bulk:
    """One run of `append_many`."""

    def __init__(
        self,
        topic: str,
        *,
        batch: int = BATCH_RECORDS,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: Mapping[str, Any] | TopicPatch | None = None,
        start: int = 0,
    ) -> None:
        self.progress = Progress()
        self._topic = topic
        self._tag = tag
        self._meta = meta
        self._key = key
        self._start = start
        self._options: dict[str, Any] = {"node": node, "create": create, "config": config}
        self._batcher = Batcher(records=batch, size=BATCH_BYTES)
        self._under_way: list[bytes] = []

    def add(self, value: Any) -> Call[AppendReply] | None:
        """Take a value; the append that is due before more values, if one is."""
        batch = self._batcher.add(encode_new(value, tag=self._tag, meta=self._meta))
        return self._call(batch) if batch is not None else None

    def finish(self) -> Call[AppendReply] | None:
        """The last append, if anything is left for it."""
        batch = self._batcher.rest()
        return self._call(batch) if batch else None

    def acknowledged(self, reply: AppendReply) -> Progress:
        """The append under way was answered. Its batch may not be all: see `rest`."""
        # An earlier run that ended here had fewer records under this key; those are what is stored.
        count = min(reply.count, len(self._under_way))
        self._under_way = self._under_way[count:]
        records, batches, first_seq, _, deduped = self.progress
        self.progress = Progress(
            records + count,
            batches + 1,
            first_seq or reply.first_seq,
            reply.last_seq,
            deduped + (count if reply.deduped else 0),
        )
        return self.progress

    def rest(self) -> Call[AppendReply] | None:
        """The append of what the last one did not store, if it did not store all."""
        return self._call(self._under_way) if self._under_way else None

    def failed(self, error: BaseException) -> None:
        """Say in a note of the error how far it came."""
        error.add_note(f"{self.progress.records:,} records were acknowledged before this")

    def _call(self, batch: list[bytes]) -> Call[AppendReply]:
        self._under_way = batch
        before = self._start + self.progress.records
        key = f"{self._key}:{before}" if self._key is not None else None
        return protocol.append_encoded(self._topic, batch, key=key, **self._options)
