"""Decides whether a key has used what it may use: rates, requests under way, connections, space.

A refusal is `Throttled`, names the limit and its maximum, says when to try again, and has used
nothing up. Time comes in as `now_ns`; who asks is settled by `auth`, what is kept of a key's by
whoever keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairway.errors import Throttled
from fairway.settings import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Set

    from fairway.server.access.auth import Identity
    from fairway.settings import Quota

RETRY_IN_FLIGHT_NS: Final = 100_000_000
"""A request under way ends within milliseconds, a long poll within seconds."""
RETRY_CONNECTIONS_NS: Final = 5 * SECOND_NS
RETRY_SPACE_NS: Final = 60 * SECOND_NS
"""Only somebody's deleting makes room; nobody can say when."""


class TokenBucket:
    """A rate with savings: `per_s` tokens a second, saved up for `burst_ns`. It starts full.

    A cost above the savings of a full bucket is taken from a full bucket and leaves a debt, which
    is paid off at the same rate. So nothing is too large for ever, and in any time t at most
    t x rate is taken plus the savings, or plus one cost if that is more. A clock that steps back
    adds nothing. All in integers: the level counts tokens x nanoseconds per second.
    """

    __slots__ = ("_full", "_level", "_now_ns", "_per_s")

    def __init__(self, per_s: int, burst_ns: int, now_ns: int) -> None:
        self._per_s = per_s
        self._level = self._full = self._savings(per_s, burst_ns)
        self._now_ns = now_ns

    def retune(self, per_s: int, burst_ns: int, now_ns: int) -> None:
        """Another rate from now on. Savings and debts stay, up to the new fill."""
        self._advance(now_ns)
        self._full = self._savings(per_s, burst_ns)
        self._level = min(self._level, self._full) if self._per_s else self._full
        self._per_s = per_s

    def wait_ns(self, cost: int, now_ns: int) -> int:
        """How long until `cost` can be taken; 0 if it can be now."""
        if not self._per_s or not cost:
            return 0
        self._advance(now_ns)
        missing = min(cost * SECOND_NS, self._full) - self._level
        return max(0, -(-missing // self._per_s))

    def take(self, cost: int) -> None:
        """Take `cost`, for which `wait_ns` has just said 0."""
        if self._per_s:
            self._level -= cost * SECOND_NS

    def _advance(self, now_ns: int) -> None:
        if now_ns > self._now_ns:
            self._level = min(self._full, self._level + (now_ns - self._now_ns) * self._per_s)
            self._now_ns = now_ns

    @staticmethod
    def _savings(per_s: int, burst_ns: int) -> int:
        return max(SECOND_NS, per_s * burst_ns)  # one token at least, or nothing could be taken


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsageStatistics:
    """What one key is using at one moment."""

    in_flight: int
    connections: int
    refused: int


class KeyUsage:
    """What one key has used of its quota, and whether it may use more."""

    __slots__ = (
        "_bytes",
        "_connections",
        "_in_flight",
        "_records",
        "_refused",
        "_requests",
        "name",
        "quota",
    )

    def __init__(self, name: str, quota: Quota, now_ns: int) -> None:
        self.name = name
        self.quota = quota
        self._requests = TokenBucket(quota.requests_per_s, quota.burst_ns, now_ns)
        self._records = TokenBucket(quota.records_per_s, quota.burst_ns, now_ns)
        self._bytes = TokenBucket(quota.bytes_per_s, quota.burst_ns, now_ns)
        self._in_flight = self._connections = self._refused = 0

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self._connections

    def retune(self, quota: Quota, now_ns: int) -> None:
        """Another quota from now on; what is in use stays in use, also above a lower limit."""
        self.quota = quota
        self._requests.retune(quota.requests_per_s, quota.burst_ns, now_ns)
        self._records.retune(quota.records_per_s, quota.burst_ns, now_ns)
        self._bytes.retune(quota.bytes_per_s, quota.burst_ns, now_ns)

    def begin(self, now_ns: int) -> None:
        """A request begins; `end` must follow. Raises `Throttled` if it may not."""
        most = self.quota.in_flight
        if most and self._in_flight >= most:
            raise self._refusal("in_flight", most, RETRY_IN_FLIGHT_NS)
        if wait_ns := self._requests.wait_ns(1, now_ns):
            raise self._refusal("requests_per_second", self.quota.requests_per_s, wait_ns)
        self._requests.take(1)
        self._in_flight += 1

    def end(self) -> None:
        assert self._in_flight > 0
        self._in_flight -= 1

    def charge(self, now_ns: int, *, records: int = 0, size: int = 0) -> None:
        """Count what a request wants to append: both or neither. Raises `Throttled`."""
        self.check_rates(now_ns, records=records, size=size)
        self.take(records=records, size=size)

    def take(self, *, records: int, size: int) -> None:
        """Count what `check_rates` has just let through."""
        self._records.take(records)
        self._bytes.take(size)

    def check_rates(self, now_ns: int, *, records: int = 0, size: int = 0) -> None:
        """Raises `Throttled` if so much may not be appended now."""
        records_wait_ns = self._records.wait_ns(records, now_ns)
        size_wait_ns = self._bytes.wait_ns(size, now_ns)
        if records_wait_ns or size_wait_ns:
            # Told as the one that takes longer: coming back earlier would fail for the other.
            if records_wait_ns >= size_wait_ns:
                limit, most = "records_per_second", self.quota.records_per_s
            else:
                limit, most = "bytes_per_second", self.quota.bytes_per_s
            raise self._refusal(limit, most, max(records_wait_ns, size_wait_ns))

    def connect(self) -> None:
        """A long-lived connection opens; `disconnect` must follow. Raises `Throttled`."""
        most = self.quota.connections
        if most and self._connections >= most:
            raise self._refusal("connections", most, RETRY_CONNECTIONS_NS)
        self._connections += 1

    def disconnect(self) -> None:
        assert self._connections > 0
        self._connections -= 1

    def check_kept(self, limit: str, used: int, *, wanted: int = 1) -> None:
        """Raises `Throttled` if `wanted` more than the `used` are too many of what a key may keep:
        `limit` is the field of its quota that says how much."""
        most: int = getattr(self.quota, limit)
        if most and used + wanted > most:
            raise self._refusal(limit, most, RETRY_SPACE_NS)

    def statistics(self) -> KeyUsageStatistics:
        return KeyUsageStatistics(
            in_flight=self._in_flight, connections=self._connections, refused=self._refused
        )

    def _refusal(self, limit: str, maximum: int, retry_after_ns: int) -> Throttled:
        self._refused += 1
        return Throttled(
            f"key {self.name!r} is at its quota of {maximum:,} {limit.replace('_', ' ')}",
            retry_after_ns=retry_after_ns,
            limit=limit,
            maximum=maximum,
        )


class Quotas:
    """The usage of each key, by its name: a new secret under an old name starts nothing over.

    There is one per key that was ever seen, until `retain` drops those of keys that are gone.
    """

    def __init__(self) -> None:
        self._usage_by_key: dict[str, KeyUsage] = {}

    def of(self, identity: Identity, now_ns: int) -> KeyUsage:
        """The usage of this key, following its quota of now.

        Keep it for as long as the request or connection lasts: what began on it ends on it.
        """
        return self.named(identity.name, identity.quota, now_ns)

    def named(self, name: str, quota: Quota, now_ns: int) -> KeyUsage:
        """The usage of the key of that name, which has this quota now."""
        usage = self._usage_by_key.get(name)
        if usage is None:
            usage = self._usage_by_key[name] = KeyUsage(name, quota, now_ns)
        elif usage.quota is not quota:
            usage.retune(quota, now_ns)
        return usage

    def find(self, name: str) -> KeyUsage | None:
        """The usage of the key of that name, if it has asked for anything."""
        return self._usage_by_key.get(name)

    def retain(self, names: Set[str]) -> None:
        """Drop the usage of other keys, except where something is still under way."""
        for name in [name for name in self._usage_by_key if name not in names]:
            if self._usage_by_key[name].idle:
                del self._usage_by_key[name]

    def statistics(self) -> dict[str, KeyUsageStatistics]:
        return {name: usage.statistics() for name, usage in self._usage_by_key.items()}
