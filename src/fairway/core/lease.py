"""Decides who holds which key, until when, and whose report may still be committed.

A lease is live while now < expires_at = last renewal + ttl. Now is the largest `now_ns` the table
was ever given: a clock that steps back revives nothing; expiry stands still until it catches up.
Left to the caller: sending heartbeats, and the store. That writes `next_token` with or before each
grant (numbers may be skipped, never repeated), and keeps a lease's row until it was released or
reported by `expire`, deleting it only if the row still has that token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Generic, NamedTuple, NewType, TypeVar

from fairway.core.amounts import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

K = TypeVar("K")

Token = NewType("Token", int)
"""Names one claim. Rises within a store and never repeats, also across restarts."""
Epoch = NewType("Epoch", int)
"""Names one reign of whoever grants. A newer reign fences all reports of an older one."""

_STALE_ENTRIES_MAX = 64


class Fence(NamedTuple):
    """What is current: an epoch and a token in it. Orders by epoch, then token."""

    epoch: Epoch
    token: Token

    def admits(self, report_epoch: int, report_token: int) -> bool:
        """Whether a report may be committed: only if both its numbers are exactly the current ones.

        A higher number is refused as well: it shows that this fence is the outdated one.
        """
        return (report_epoch, report_token) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    ttl_ns: int = 15_000_000_000
    """How long a claim survives without a heartbeat: the longest wait after a crash."""
    heartbeat_ns: int = 5_000_000_000
    """How often a claim is renewed. One beat may be lost without losing the claim."""
    margin_ns: int = 1_000_000_000
    """How much earlier than the table a holder stops. Covers clocks that run at different rates
    and the time to stop; raising it costs time in which a slow renewal could still succeed."""

    def __post_init__(self) -> None:
        check_whole(self, ttl_ns=1, heartbeat_ns=1, margin_ns=0)
        if self.ttl_ns <= 2 * self.heartbeat_ns + self.margin_ns:
            raise ValueError(
                "ttl_ns must exceed two heartbeats and the margin, or one lost beat loses the claim"
            )

    def trusted_until_ns(self, renewed_sent_at_ns: int) -> int:
        """Until when, on its own clock, a holder may act on a renewal that was granted.

        Measured from when the renewal was *sent*: the table's ttl began no earlier, however long
        the answer took. At this instant the holder stops, answered or not.
        """
        return renewed_sent_at_ns + self.ttl_ns - self.margin_ns


class Tenure:
    """Until when the holder of one lease may answer in its own name, by its own clock.

    The lease is somebody else's to give: its table, and that table's clock, decide when another may
    have it. Here is only how long the holder dares to believe the last answer, counted from when it
    *asked* (see `LeaseConfig.trusted_until_ns`). `until_ns` only rises, until `end`: a tenure that
    was lost never comes back, whatever answer to an old question arrives still.

    `until_ns` is one whole number, replaced at once: other threads may compare it without a lock.
    """

    __slots__ = ("_lasts_ns", "ended", "until_ns")

    def __init__(self, *, ttl_ns: int, margin_ns: int) -> None:
        assert 0 <= margin_ns < ttl_ns, "a margin as long as the lease leaves nothing"
        self._lasts_ns = ttl_ns - margin_ns
        self.until_ns = 0
        self.ended = False

    def renewed(self, sent_at_ns: int) -> None:
        """The table granted a renewal that was sent at `sent_at_ns`."""
        if not self.ended:
            self.until_ns = max(self.until_ns, sent_at_ns + self._lasts_ns)

    def end(self) -> None:
        """The lease is lost, or may be: nothing brings it back."""
        self.ended = True
        self.until_ns = 0

    def holds(self, now_ns: int) -> bool:
        """Whether the holder may answer at this moment."""
        return now_ns < self.until_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Generic[K]):
    """A claim on `key` that ends at `expires_at_ns` unless renewed before."""

    key: K
    holder: str
    token: Token
    granted_at_ns: int
    renewed_at_ns: int
    expires_at_ns: int


@dataclass(frozen=True, slots=True)
class Held(Generic[K]):
    """Not granted: somebody has the key, for now until `expires_at_ns`."""

    key: K
    holder: str
    expires_at_ns: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Generic[K]):
    """The token holds the key no longer; `successor` does, if anyone."""

    key: K
    token: Token
    successor: Token | None


class LeaseTable(Generic[K]):
    """Every live lease, at most one per key.

    Each grant ends once: released, or reported by `expire`. Grant, renew and release cost O(log n)
    amortised; `expire` the same per lease that ended or was renewed since, however many are live.
    """

    def __init__(
        self,
        config: LeaseConfig,
        *,
        next_token: int = 1,
        latest_ns: int = 0,
        leases: Iterable[Lease[K]] = (),
    ) -> None:
        """Start empty, or from what a store kept; `expire` reports rows that ran out meanwhile.

        To be restored, times must be of a clock that outlives the process, such as the store's.
        """
        self._config = config
        self._next_token = next_token
        self._latest_ns = latest_ns
        self._leases: dict[K, Lease[K]] = {}
        self._ended: list[Lease[K]] = []
        # One entry per live lease, at its expiry or earlier: renewing leaves the entry, which is
        # moved once it surfaces. Entries of released leases stay until they surface or outnumber
        # the live. Tokens differ, so keys are never compared.
        self._due: list[tuple[int, Token, K]] = []
        for lease in leases:
            if lease.key in self._leases:
                raise ValueError(f"two leases for key {lease.key!r}")
            if lease.token >= next_token:
                raise ValueError(f"token {lease.token} is in use, but the next is {next_token}")
            self._leases[lease.key] = lease
            self._due.append((lease.expires_at_ns, lease.token, lease.key))
            self._latest_ns = max(self._latest_ns, lease.renewed_at_ns)
        heapify(self._due)
        self._advance(self._latest_ns)

    @property
    def next_token(self) -> int:
        """The lowest number no lease was ever given: what the store persists."""
        return self._next_token

    @property
    def latest_ns(self) -> int:
        """The table's present: the largest time it was given."""
        return self._latest_ns

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease[K]]:
        """The leases that were live at `latest_ns`."""
        return iter(tuple(self._leases.values()))

    def get(self, key: K) -> Lease[K] | None:
        """The lease on `key` as of `latest_ns`, if any."""
        return self._leases.get(key)

    def grant(self, key: K, holder: str, now_ns: int) -> Lease[K] | Held[K]:
        """Give `key` to `holder` under a fresh token, unless it is held.

        The holder itself is refused too: two of its tasks would otherwise share one claim.
        """
        now_ns = self._advance(now_ns)
        if (current := self._leases.get(key)) is not None:
            return Held(key, current.holder, current.expires_at_ns)
        lease = Lease(
            key=key,
            holder=holder,
            token=Token(self._next_token),
            granted_at_ns=now_ns,
            renewed_at_ns=now_ns,
            expires_at_ns=now_ns + self._config.ttl_ns,
        )
        self._next_token += 1
        self._leases[key] = lease
        heappush(self._due, (lease.expires_at_ns, lease.token, key))
        return lease

    def renew(self, key: K, token: int, now_ns: int) -> Lease[K] | LeaseLost[K]:
        """Extend the lease to `now_ns` + ttl. One that ran out is lost, though nobody took it."""
        now_ns = self._advance(now_ns)
        current = self._leases.get(key)
        if current is None or current.token != token:
            return self._lost(key, token)
        # Never shorter than before: a row may have been restored from a time of a longer ttl.
        until_ns = max(current.expires_at_ns, now_ns + self._config.ttl_ns)
        lease = replace(current, renewed_at_ns=now_ns, expires_at_ns=until_ns)
        self._leases[key] = lease
        return lease

    def release(self, key: K, token: int) -> Lease[K] | LeaseLost[K]:
        """End the lease as of `latest_ns`: the key is free, and `expire` will not report it."""
        current = self._leases.get(key)
        if current is None or current.token != token:
            return self._lost(key, token)
        del self._leases[key]
        self._compact()
        return current

    def expire(self, now_ns: int) -> list[Lease[K]]:
        """Every lease that ran out since the last call, in order of expiry; each is returned once.

        Call it regularly, for it is the only way they leave memory. A key in the list may have a
        new holder already: compare tokens before acting on the key.
        """
        self._advance(now_ns)
        ended, self._ended = self._ended, []
        return ended

    def admits(self, key: K, token: int, now_ns: int) -> bool:
        """Whether a report on `key` under `token` may be committed: that lease is live at `now_ns`.

        Where reigns matter as well, ask `Fence(epoch, token)` too.
        """
        self._advance(now_ns)
        current = self._leases.get(key)
        return current is not None and current.token == token

    def next_expiry_ns(self) -> int | None:
        """When `expire` will next have something to report if nothing is renewed; None if never."""
        if self._ended:
            return self._ended[0].expires_at_ns
        first = self._settle()
        return None if first is None else first.expires_at_ns

    def check(self) -> None:
        """Assert every invariant."""
        entries = {(token, key): at_ns for at_ns, token, key in self._due}
        assert len(entries) == len(self._due), "two entries for one lease"
        for key, lease in self._leases.items():
            assert lease.key == key
            assert entries[lease.token, key] <= lease.expires_at_ns, "would be noticed too late"
            assert lease.granted_at_ns <= lease.renewed_at_ns <= self._latest_ns
            assert lease.token < self._next_token
            assert lease.expires_at_ns > self._latest_ns, "ran out, but still holds its key"
        tokens = {lease.token for lease in self._leases.values()}
        assert len(tokens) == len(self._leases), "one token for two keys"
        assert all(lease.expires_at_ns <= self._latest_ns for lease in self._ended)
        assert len(self._due) <= 2 * len(self._leases) + _STALE_ENTRIES_MAX

    def _advance(self, now_ns: int) -> int:
        """Move time forward, never back, and set aside what ran out. Returns the present."""
        self._latest_ns = max(self._latest_ns, now_ns)
        while (first := self._settle()) is not None and first.expires_at_ns <= self._latest_ns:
            heappop(self._due)
            del self._leases[first.key]
            self._ended.append(first)
        self._compact()
        return self._latest_ns

    def _settle(self) -> Lease[K] | None:
        """Bring the first entry up to date; the lease it names is the next to run out."""
        while self._due:
            at_ns, token, key = self._due[0]
            lease = self._leases.get(key)
            if lease is None or lease.token != token:
                heappop(self._due)
            elif lease.expires_at_ns != at_ns:
                heapreplace(self._due, (lease.expires_at_ns, token, key))
            else:
                return lease
        return None

    def _compact(self) -> None:
        """Drop entries of released leases before they outnumber the live: paid for by releases."""
        if len(self._due) > 2 * len(self._leases) + _STALE_ENTRIES_MAX:
            self._due = [(held.expires_at_ns, held.token, held.key) for held in self]
            heapify(self._due)

    def _lost(self, key: K, token: int) -> LeaseLost[K]:
        current = self._leases.get(key)
        return LeaseLost(key, Token(token), None if current is None else current.token)
