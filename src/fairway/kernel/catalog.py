"""Which partition belongs to whom: names of a kind, their partition numbers and a value each.

Lives in partition 0 of the log. A number is given out once and never again, so it also tells one
incarnation of a name from the next: it is the name's epoch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import Corrupt, FairwayError
from fairway.storage.wal import Operation
from fairway.storage.writer import Durability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.storage.partitions import Partitions

logger = logging.getLogger("fairway.kernel")

CATALOG: Final = 0
NEXT: Final = "next"
PAGE: Final = 1000
NUMBER_BYTES: Final = 8


class Named(NamedTuple):
    """One name: the partition it owns (0 if it owns none) and what its owner keeps with it."""

    partition: int
    value: bytes


class Catalog:
    """Names and partition numbers, durable before they are used."""

    def __init__(self, log: Partitions, *, first: int = 1) -> None:
        """`first` is the first number of a log that has given none out. One drawn by chance keeps a
        position in one log from passing for one in another."""
        self._log = log
        self._next = first
        self._found: dict[str, dict[str, Named]] = {}
        self._owned: frozenset[int] = frozenset()

    async def load(self) -> None:
        """Read every name, once, and change nothing."""
        owned = {CATALOG}
        after = ""
        while page := await self._log.meta_scan(CATALOG, after=after, limit=PAGE):
            for name, value in page:
                if name == NEXT:
                    self._next = int.from_bytes(value)
                    continue
                kind, slash, rest = name.partition("/")
                if not slash:
                    continue  # not a name that was given to anybody
                entry = _decode(name, value)
                self._found.setdefault(kind, {})[rest] = entry
                owned.add(entry.partition)
            after = page[-1][0]
        self._owned = frozenset(owned)

    def take(self, kind: str) -> dict[str, Named]:
        """The names of a kind, as `load` found them. They are the caller's from here on: what comes
        and goes later is known to whoever did it, and the memory is given back."""
        return self._found.pop(kind, {})

    async def drop_unowned(self) -> None:
        """Delete the partitions that nobody owned at `load`: a crash cut their deletion short."""
        owned, self._owned = self._owned, frozenset()
        for partition in self._log.partitions():
            if partition not in owned:
                try:
                    await self._log.delete(partition)
                except FairwayError as error:  # a store that cannot be written can still be read
                    logger.warning("the rows of partition %d stay for now: %s", partition, error)

    async def create(self, kind: str, name: str, value: bytes) -> int:
        """Give `name` a partition of its own; durable when this returns."""
        partition = self._next
        self._next += 1
        meta = {
            f"{kind}/{name}": _encode(Named(partition, value)),
            NEXT: self._next.to_bytes(NUMBER_BYTES),
        }
        await self._log.submit(CATALOG, Operation(meta=meta))
        return partition

    async def get(self, kind: str, name: str) -> Named | None:
        """What is stored under a name: for a caller whose outcome is unknown."""
        value = await self._log.meta(CATALOG, f"{kind}/{name}")
        return _decode(name, value) if value is not None else None

    async def put(
        self,
        kind: str,
        name: str,
        value: bytes,
        *,
        partition: int = 0,
        durability: Durability = Durability.FSYNC,
    ) -> None:
        """Set the value of a name; one without a partition may be new."""
        meta = {f"{kind}/{name}": _encode(Named(partition, value))}
        await self._log.submit(CATALOG, Operation(meta=meta), durability=durability)

    async def remove(
        self, *names: tuple[str, str], durability: Durability = Durability.FSYNC
    ) -> None:
        """Forget (kind, name) pairs, all or none of them. Their partitions are the caller's."""
        meta: Mapping[str, bytes | None] = {f"{kind}/{name}": None for kind, name in names}
        await self._log.submit(CATALOG, Operation(meta=meta), durability=durability)


def _encode(named: Named) -> bytes:
    return named.partition.to_bytes(NUMBER_BYTES) + named.value


def _decode(name: str, value: bytes) -> Named:
    if len(value) < NUMBER_BYTES:
        raise Corrupt(f"the entry of {name!r} is cut short", place="catalog", partition=CATALOG)
    return Named(int.from_bytes(value[:NUMBER_BYTES]), value[NUMBER_BYTES:])
