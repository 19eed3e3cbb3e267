"""Every exception Fairway raises, sorted by what the caller can do about it.

    FairwayError
    ├── TryLater                  nothing happened; the same call may succeed later
    │   ├── Backpressure          a bounded lane is full (carries `retry_after_ns`)
    │   ├── Throttled             the system is saturated, or a quota is used up
    │   ├── Unavailable           the store cannot be written now, or made us wait too long
    │   │   ├── FeedLost          the other side of a graph's feed is gone; it may come back
    │   │   ├── LockTimeout       an open transaction of somebody else was in the way for too long
    │   │   ├── ReadOnly          the store failed; reading and deleting go on, writing waits for it
    │   │   └── Unreachable       nothing listens at the server's address; nothing was sent
    │   ├── TransactionConflict   the caller's own transaction was undone: repeat the whole of it
    │   └── Closing               the component is shutting down or already closed
    ├── OutOfDate                 somebody else holds the claim now; start over from fresh state
    │   └── Fenced                a newer owner or epoch may exist; nothing of yours was committed
    ├── Invalid                   the request itself is wrong; nothing happened
    │   ├── InvalidOperation      a log operation breaks the rules of its partition
    │   ├── InvalidConfig         a setting, or a combination of settings, cannot work
    │   │   └── BadPlace          the path given for the data can hold none
    │   ├── InvalidRequest        a message is malformed or passes a limit (its `code` says which)
    │   ├── BadRecord             a record does not fit the type it is read as (names topic and seq)
    │   ├── NotFound              there is no topic, router or stream of that name
    │   ├── Conflict              the request does not fit what is there (its `code` says how)
    │   ├── TopicFull             the topic is at its cap and refuses rather than discards
    │   ├── Unauthorized          who asks is not known: no key, or not one that counts
    │   └── Forbidden             who asks may not do this, or may not do it from there
    ├── JobFailed                 the job whose result was asked for failed (carries its error)
    ├── FiringFailed              the firing that was asked or waited for failed (carries it)
    ├── RunEnded                  code that a job ran came to no end of its own
    │   ├── CallFailed            it raised in the process it ran in
    │   ├── ProcessDied           its process was killed, ran out of memory, or crashed
    │   └── Cancelled             the job was cancelled, and the code asked
    ├── WriteFailed               the store said no; nothing of this operation was written
    ├── OutcomeUnknown            the store failed half-way: the operation may or may not be durable
    └── Stop                      do not go on: a person has to look
        ├── Corrupt               stored data is damaged or missing (names file and partition)
        ├── UnknownFormat         the files were written by another format version
        ├── AlreadyOwned          another process holds the data directory (names its pid)
        ├── GaveUp                a supervised service failed too often
        ├── SourceFailed          a source that its graph requires died too often
        └── GraphFailed           a graph does not run, and no restart will help by itself

A refusal (`TryLater`, `Invalid`, `OutOfDate`, `WriteFailed`) promises that nothing changed.
`OutcomeUnknown` is the only answer that leaves the caller in doubt, and it says so by its type.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec


class FairwayError(Exception):
    """Root of everything Fairway raises on purpose."""

    def again(self) -> Self:
        """The same, for another caller: raising a shared one would tangle their tracebacks."""
        own = type(self).__new__(type(self), *self.args)
        own.__dict__.update(self.__dict__)
        own.__cause__ = self.__cause__
        return own


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


class Throttled(TryLater):
    """Saturated, or over a quota. Nothing was accepted; try again after `retry_after_ns`.

    `limit` names the bound or quota that was reached and `maximum` its value; None means pressure.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_ns: int,
        limit: str | None = None,
        maximum: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_ns = retry_after_ns
        self.limit = limit
        self.maximum = maximum


class Unavailable(TryLater):
    """The store cannot be written now, or a wait for room passed its deadline."""


class FeedLost(Unavailable):
    """The other side of a feed is gone, or was never reached; it may come back."""


class LockTimeout(Unavailable):
    """An open transaction of somebody else was in the way for too long, such as one that has
    enqueued the same unique key. Nothing happened; try again when it has ended."""


class ReadOnly(Unavailable):
    """The store failed or is full: reads and deletes go on, writes wait until it works again."""


class Unreachable(Unavailable):
    """Nothing listens where a client looks for the server; nothing was sent."""


class TransactionConflict(TryLater):
    """The transaction that a call was to take part in met those of others and cannot be committed
    any more: roll it back, and repeat the whole of it."""


class Closing(TryLater):
    """The component is shutting down or closed; nothing was accepted."""


class OutOfDate(FairwayError):
    """Somebody else holds the claim now."""


class Fenced(OutOfDate):
    """A newer owner or epoch exists, or may by now. Nothing was committed under the old one."""


class Invalid(FairwayError):
    """The request itself is wrong; nothing happened."""


class InvalidOperation(Invalid):
    """A log operation breaks the rules of its partition (for example, keys must rise)."""


class InvalidConfig(Invalid, ValueError):
    """A setting, or a combination of settings, cannot work."""


class BadPlace(InvalidConfig):
    """The path given for the data can hold none: a file, below one, or not ours to write."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"no data can be kept at {place}: {reason}")
        self.place = place


class InvalidRequest(Invalid):
    """A message is malformed or passes a limit; `code` is what a client sees."""

    def __init__(self, message: str, *, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.code = code


class BadRecord(Invalid, msgspec.ValidationError):
    """A record does not fit the type that it is read as, or its meta cannot be read. The reader can
    go on behind it.

    It is there, and stays: a reader of another type gets it. `data` is its JSON.
    """

    def __init__(self, topic: str, seq: int, epoch: int, data: bytes, reason: str) -> None:
        super().__init__(f"{topic} {seq}: {reason}")
        self.topic = topic
        self.seq = seq
        self.epoch = epoch
        self.data = data
        self.reason = reason


class NotFound(Invalid):
    """There is nothing of that name. `kind` is topic, router, watch or stream."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}")
        self.kind = kind
        self.name = name


class Conflict(Invalid):
    """The request does not fit what is there; `code` and `detail` are what a client sees."""

    def __init__(self, message: str, *, code: str, detail: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail or {}


class TopicFull(Invalid):
    """The topic is at its cap and refuses rather than discards; nothing was appended."""


class Unauthorized(Invalid):
    """Who asks is not known: no key or ticket was given, or it is wrong, used or expired."""


class Forbidden(Invalid):
    """Who asks may not do this, or not from there; `detail` is what a client sees."""

    def __init__(self, message: str, *, detail: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.detail = detail or {}


class JobFailed(FairwayError):
    """The job whose result was asked for failed, died or was cancelled; `error` is what it said."""

    def __init__(self, id: int, status: str, error: str | None) -> None:
        super().__init__(f"job {id} is {status}: {error or 'no reason given'}")
        self.id = id
        self.status = status
        self.error = error


class FiringFailed(FairwayError):
    """The firing that was asked for, or waited for, failed; `firing` is what is told of it."""

    def __init__(self, firing: Any, what: str) -> None:
        super().__init__(f"firing {firing.number} failed: {firing.error} ({what})")
        self.firing = firing
        self.detail: dict[str, object] = {"firing": firing.number, "error": firing.error}


class RunEnded(FairwayError):
    """Code that a job ran came to no end of its own."""


class CallFailed(RunEnded):
    """The call raised in its process; the message is its traceback."""


class ProcessDied(RunEnded):
    """The process ended before the call did: it was killed, ran out of memory, or crashed."""


class Cancelled(RunEnded):
    """The job was cancelled, or its worker must stop it; raised by `ctx.check()`."""


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


class SourceFailed(Stop):
    """A source that its graph requires died too often."""


class GraphFailed(Stop):
    """The graph does not run, and no restart will help by itself."""
