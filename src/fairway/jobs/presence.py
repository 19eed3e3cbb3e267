"""Who works on jobs, and what they know: what a worker says of itself, and what is known of all.

A worker says it when it registers; from then on its heartbeat says that it lives. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairway.jobs.kinds import Kind

SCHEMA_BYTES_MAX: Final = 64 * 1024
"""A JSON Schema that is longer is not kept."""


class KnownKind(NamedTuple):
    """A kind of jobs, in one version, that a worker can run."""

    name: str
    version: int
    steps: tuple[str, ...] = ()

    def knows(self, kind: str, version: int, step: str) -> bool:
        return (self.name, self.version) == (kind, version) and step in self.steps


class Offer(Struct, frozen=True, kw_only=True):
    """What a worker says of itself when it registers."""

    queues: Mapping[str, int] | None = None
    """The queues that it works on, and how many jobs of each it runs at once."""
    kinds: Sequence[KnownKind] | None = None
    """None, as of a worker that does not say: perhaps it knows any."""
    schemas: Mapping[tuple[str, int], bytes] = {}
    """The JSON Schema of the arguments of kinds, or the state of machines, where there is one."""


class WorkerState(Struct, frozen=True, kw_only=True):
    """A worker as the store sees it."""

    id: int
    name: str
    alive: bool
    """Whether its lease stands. Of one that died the reaper takes the jobs, and forgets it."""
    started_wall_ns: int | None
    beat_wall_ns: int | None
    """The time of its last heartbeat. None, like all that is not known, of an older release."""
    expires_wall_ns: int
    running: int
    """Jobs that it has."""
    queues: Mapping[str, int] | None
    kinds: Sequence[KnownKind] | None

    def works_on(self, queue: str) -> bool:
        return self.alive and (self.queues is None or queue in self.queues)

    def knows(self, kind: str, version: int, step: str) -> bool:
        return self.kinds is None or any(one.knows(kind, version, step) for one in self.kinds)


class KindState(Struct, frozen=True, kw_only=True):
    """A kind of jobs that a worker has known."""

    name: str
    version: int
    schema: bytes | None
    """The JSON Schema of its arguments, or of its state; None if its types have none."""
    seen_wall_ns: int
    """When a worker that knows it registered last."""
    workers: int
    """Living workers that say that they know it."""


def kind_state(
    name: str, version: int, schema: bytes | None, seen_ns: int, workers: Iterable[WorkerState]
) -> KindState:
    known = sum(
        worker.alive and any((one.name, one.version) == (name, version) for one in worker.kinds)
        for worker in workers
        if worker.kinds is not None
    )
    return KindState(name=name, version=version, schema=schema, seen_wall_ns=seen_ns, workers=known)


def offer_of(slots: Mapping[str, int], kinds: Iterable[Kind]) -> Offer:
    """What a worker offers that works on these queues and knows these kinds."""
    known = list(kinds)
    schemas = {(one.name, one.version): _schema(one) for one in known}
    return Offer(
        queues=slots,
        kinds=[KnownKind(one.name, one.version, tuple(one.steps)) for one in known],
        schemas={key: schema for key, schema in schemas.items() if schema is not None},
    )


def _schema(kind: Kind) -> bytes | None:
    try:
        schema = json.encode(json.schema(kind.arguments))
    except Exception:  # a type of the user's, which says of itself what it likes
        return None
    return schema if len(schema) <= SCHEMA_BYTES_MAX else None


# As stores keep them


def queues_column(offer: Offer) -> str | None:
    return None if offer.queues is None else json.encode(offer.queues).decode()


def kinds_column(offer: Offer) -> str | None:
    return None if offer.kinds is None else json.encode(offer.kinds).decode()


def queues_in(column: str | None) -> dict[str, int] | None:
    return None if column is None else json.decode(column, type=dict[str, int])


def kinds_in(column: str | None) -> tuple[KnownKind, ...] | None:
    return None if column is None else json.decode(column, type=tuple[KnownKind, ...])


def schemas_of(offer: Offer) -> list[tuple[str, int, bytes | None]]:
    """The kinds of an offer with their schemas, in an order that is everybody's."""
    return sorted(
        (one.name, one.version, offer.schemas.get((one.name, one.version)))
        for one in offer.kinds or ()
    )
