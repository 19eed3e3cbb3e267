"""Issues and redeems tickets: what a browser puts in a URL where it cannot send a header.

`EventSource` and `WebSocket` send no `Authorization`. A ticket stands for the key that asked for
it, once, for a minute, and if wished for one path only. Only digests of tickets are kept.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.core.amounts import WHOLE_MAX
from fairway.errors import Throttled, Unauthorized
from fairway.runtime.amounts import check_amounts
from fairway.settings import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.server.access.auth import Identity

TICKET_BYTES: Final = 24
"""192 random bits; a guess is hopeless within any lifetime."""
TICKET_CHARACTERS: Final = TICKET_BYTES * 4 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketConfig:
    ttl_ns: int = 60 * SECOND_NS
    """How long a ticket is good. Raising it helps slow pages, and whoever finds one in a log."""
    per_identity_max: int = 100
    """Unused tickets of one key. Raising it lets one page open more streams at once."""
    total_max: int = 10_000
    """Unused tickets of all keys, about 500 bytes each."""

    def __post_init__(self) -> None:
        check_amounts(self, count_max=WHOLE_MAX, ttl_ns=1, per_identity_max=1, total_max=1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AccessTicket:
    """What is handed out, once. It does not show its secret."""

    secret: str
    expires_at_ns: int

    def __repr__(self) -> str:
        return f"AccessTicket(expires_at_ns={self.expires_at_ns})"


class _Issued(NamedTuple):
    identity: Identity
    path: str | None
    expires_at_ns: int


class Tickets:
    """Unused tickets. Each is redeemed at most once; every operation costs O(1) amortised.

    All tickets live equally long and time never goes back here, so they expire in the order in
    which they were issued. `random_bytes` must be fit for secrets (`secrets.token_bytes`).
    """

    def __init__(
        self, random_bytes: Callable[[int], bytes], config: TicketConfig | None = None
    ) -> None:
        self._random_bytes = random_bytes
        self._config = config or TicketConfig()
        self._issued: OrderedDict[bytes, _Issued] = OrderedDict()
        self._by_identity: dict[str, OrderedDict[bytes, None]] = {}
        self._now_ns = 0

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, identity: Identity, now_ns: int, *, path: str | None = None) -> AccessTicket:
        """A ticket for whoever `identity` is, good for `path` only if one is given.

        Raises `Throttled` if too many are unused; it tells when the oldest of them expires.
        """
        self.purge(now_ns)
        own = self._by_identity.get(identity.id, OrderedDict[bytes, None]())
        if len(own) >= self._config.per_identity_max:
            raise self._refusal("tickets_per_key", self._config.per_identity_max, next(iter(own)))
        if len(self._issued) >= self._config.total_max:
            raise self._refusal("tickets", self._config.total_max, next(iter(self._issued)))
        secret = base64.urlsafe_b64encode(self._random_bytes(TICKET_BYTES)).decode()
        assert len(secret) == TICKET_CHARACTERS
        digest = _digest(secret)
        assert digest not in self._issued, "the random source repeats itself"
        expires_at_ns = self._now_ns + self._config.ttl_ns
        self._issued[digest] = _Issued(identity, path, expires_at_ns)
        own[digest] = None
        self._by_identity[identity.id] = own
        return AccessTicket(secret=secret, expires_at_ns=expires_at_ns)

    def redeem(self, secret: str, now_ns: int, *, path: str) -> Identity:
        """Who the ticket stands for; it is used up, also if it was meant for another path.

        Raises `Unauthorized`. The key may have been revoked since: `confirm` the identity.
        """
        self.purge(now_ns)
        # A lookup by digest tells nothing by its duration: nobody can choose a digest.
        digest = _digest(secret)
        issued = self._issued.get(digest)
        if issued is None:
            raise Unauthorized("the ticket is unknown, used or expired; ask for a new one")
        self._remove(digest)
        if issued.path not in (None, path):
            raise Unauthorized("the ticket was for another path, and is used up now")
        return issued.identity

    def purge(self, now_ns: int) -> None:
        """Forget what has expired."""
        self._now_ns = max(self._now_ns, now_ns)
        while self._issued:
            digest = next(iter(self._issued))
            if self._issued[digest].expires_at_ns > self._now_ns:
                break
            self._remove(digest)

    def check(self) -> None:
        """Assert every invariant."""
        expiries = [issued.expires_at_ns for issued in self._issued.values()]
        assert expiries == sorted(expiries)
        assert len(self._issued) <= self._config.total_max
        assert all(0 < len(own) <= self._config.per_identity_max for own in self._owned())
        assert sorted(digest for own in self._owned() for digest in own) == sorted(self._issued)

    def _owned(self) -> list[OrderedDict[bytes, None]]:
        return list(self._by_identity.values())

    def _remove(self, digest: bytes) -> None:
        identity_id = self._issued.pop(digest).identity.id
        own = self._by_identity[identity_id]
        del own[digest]
        if not own:
            del self._by_identity[identity_id]

    def _refusal(self, limit: str, maximum: int, oldest: bytes) -> Throttled:
        return Throttled(
            f"{maximum:,} tickets are unused",
            retry_after_ns=self._issued[oldest].expires_at_ns - self._now_ns,
            limit=limit,
            maximum=maximum,
        )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
