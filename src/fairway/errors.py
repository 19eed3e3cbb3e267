"""Every exception Fairway raises, sorted by what the caller can do about it.

    FairwayError
    ├── TryLater                  nothing happened; the same call may succeed later
    │   ├── Backpressure          a bounded lane is full (carries `retry_after_ns`)
    │   └── Closing               the component is shutting down or already closed
    ├── OutOfDate                 somebody else holds the claim now; start over from fresh state
    │   └── Fenced                a newer owner or epoch exists; nothing of yours was committed
    ├── Invalid                   the request itself is wrong; nothing happened
    │   ├── InvalidOperation      a log operation breaks the rules of its partition
    │   └── InvalidConfig         a setting, or a combination of settings, cannot work
    ├── WriteFailed               the store said no; nothing of this operation was written
    ├── OutcomeUnknown            the store failed half-way: the operation may or may not be durable
    └── Stop                      do not go on: a person has to look
        ├── Corrupt               stored data is damaged or missing (names file and partition)
        ├── UnknownFormat         the files were written by another format version
        ├── AlreadyOwned          another process holds the data directory (names its pid)
        └── GaveUp                a supervised service failed too often

A refusal (`TryLater`, `Invalid`, `OutOfDate`, `WriteFailed`) promises that nothing changed.
`OutcomeUnknown` is the only answer that leaves the caller in doubt, and it says so by its type.
"""

from __future__ import annotations


class FairwayError(Exception):
    """Root of everything Fairway raises on purpose."""


class TryLater(FairwayError):
    """Nothing happened; the same call may succeed later."""


class Backpressure(TryLater):
    """A bounded lane is full. Nothing was accepted; try again after `retry_after_ns`."""

    def __init__(self, lane: str, *, depth: int, limit: str, retry_after_ns: int) -> None:
        super().__init__(
            f"lane {lane} is full: {depth} waiting, limit {limit};"
            f" retry in {retry_after_ns / 1e6:.1f} ms"
        )
        self.lane = lane
        self.depth = depth
        self.limit = limit
        self.retry_after_ns = retry_after_ns


class Closing(TryLater):
    """The component is shutting down or closed; nothing was accepted."""


class OutOfDate(FairwayError):
    """Somebody else holds the claim now."""


class Fenced(OutOfDate):
    """A newer owner or epoch exists. Nothing was committed under the old one."""


class Invalid(FairwayError):
    """The request itself is wrong; nothing happened."""


class InvalidOperation(Invalid):
    """A log operation breaks the rules of its partition (for example, keys must rise)."""


class InvalidConfig(Invalid, ValueError):
    """A setting, or a combination of settings, cannot work."""


class WriteFailed(FairwayError):
    """The store refused the write; nothing of this operation was written."""


class OutcomeUnknown(FairwayError):
    """The store failed half-way: the operation may or may not be durable."""


class Stop(FairwayError):
    """Do not go on: a person has to look."""


class Corrupt(Stop):
    """Stored data is damaged or missing. `place` names the file; `partition` may be known."""

    def __init__(self, reason: str, *, place: str, partition: int | None = None) -> None:
        where = place if partition is None else f"{place}, partition {partition}"
        super().__init__(f"{where}: {reason}")
        self.reason = reason
        self.place = place
        self.partition = partition


class UnknownFormat(Stop):
    """The files were written by a format version this release does not read."""


class AlreadyOwned(Stop):
    """Another process holds the data directory."""

    def __init__(self, place: str, *, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{place} is in use by {holder}; a log has one owner")
        self.place = place
        self.pid = pid


class GaveUp(Stop):
    """A supervised service failed more often than its restart policy allows."""
