"""What keys may store in topics: how many topics, how many bytes in them, and how fast.

Topics count for the key that made them, whoever writes to them, so what a key stores is a sum over
its topics. It is taken now and then, and kept up by what is appended in between.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fairway.errors import Throttled
from fairway.server.access.quotas import RETRY_SPACE_NS
from fairway.settings import UNLIMITED
from fairway.wire.records import RECORD_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.clock import Clock
    from fairway.server.access.auth import Access, Identity
    from fairway.server.access.quotas import Quotas
    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic

OWNED_FRESH_NS: Final = 1_000_000_000
"""How long a sum over a key's topics is good before it is taken again."""
OWNED_AGAIN_NS: Final = 50_000_000
"""The same if it is too much: room may have been made since."""


class TopicQuotas:
    """The quotas of all keys, as far as they are about topics. Fills `OwnerBounds`."""

    def __init__(self, topics: Topics, quotas: Quotas, access: Access, clock: Clock) -> None:
        self._topics = topics
        self._quotas = quotas
        self._access = access
        self._clock = clock
        self._owned: dict[str, tuple[int, int, int]] = {}
        self._bound_stores()

    def enforce(self) -> None:
        """Have topics ask from now on, whoever makes topics, appends or copies."""
        self._topics.created.append(self._count_owned)
        self._topics.bound_by(self)

    def review(self) -> None:
        """Keys may have changed."""
        if self._access.quotas() is not self._known:
            self._bound_stores()

    def forget_sums(self) -> None:
        """Take every sum anew."""
        self._owned.clear()

    def charge(self, identity: Identity, topic: str, *, records: int, size: int) -> None:
        """Count an append against its key's quota. Raises `Throttled`; then nothing is counted."""
        if identity.quota is UNLIMITED:
            return
        now_ns = self._clock.now_ns()
        allowance = self._quotas.of(identity, now_ns)
        if topic not in self._topics.making and self._topics.find(topic) is None:
            # It is asked again when it is made; this once so that a refusal uses nothing up.
            self.may_make(identity.name)
        # Before anything is used up. It is asked again in the step in which they are appended.
        found = self._topics.find(topic)
        owner = identity.name if found is None else found.owner
        self._check_room(owner, size + RECORD_OVERHEAD * records)
        allowance.charge(now_ns, records=records, size=size)

    def _bound_stores(self) -> None:
        """Whose topics are bounded in bytes, by the keys of now."""
        self._known = known = self._access.quotas()
        self.stored = {name: q.stored_bytes for name, q in known.items() if q.stored_bytes}

    def _check_room(self, owner: str, size: int) -> None:
        """Whether the topics of a key have room for so much. Raises `Throttled`."""
        most = self.stored.get(owner)
        if most is None or self._owned_by(owner)[1] + size <= most:
            return
        if self._owned_by(owner, fresh_ns=OWNED_AGAIN_NS)[1] + size > most:
            raise Throttled(
                f"the key that made it is at its quota of {most:,} stored bytes",
                retry_after_ns=RETRY_SPACE_NS,
                limit="stored_bytes",
                maximum=most,
            )

    # What topics ask: `OwnerBounds`

    def may_store(self, topic: Topic, size: int) -> None:
        self._check_room(topic.owner, size)
        count, stored, at_ns = self._owned[topic.owner]
        self._owned[topic.owner] = (count, stored + size, at_ns)

    def may_copy(self, owner: str, records: int, size: int) -> Callable[[], None] | None:
        quota = self._access.quotas().get(owner)
        if quota is None:
            return None
        now_ns = self._clock.now_ns()
        allowance = self._quotas.named(owner, quota, now_ns)
        self._check_room(owner, size)
        try:
            allowance.check_rates(now_ns, records=records, size=size)
        except Throttled as refusal:  # shown to whoever may see the router, without the key's name
            raise Throttled(
                f"the key that made it is at its quota of {refusal.maximum:,}"
                f" {(refusal.limit or '').replace('_', ' ')}",
                retry_after_ns=refusal.retry_after_ns,
                limit=refusal.limit,
                maximum=refusal.maximum,
            ) from None
        return partial(allowance.take, records=records, size=size)

    def may_make(self, owner: str) -> None:
        allowance = self._quotas.find(owner)
        if allowance is None or not allowance.quota.topics:
            return  # the server's own program, or somebody without a bound
        making = sum(each == owner for each in self._topics.making.values())
        allowance.check_kept("topics", self._owned_by(owner)[0] + making)

    def _count_owned(self, topic: Topic) -> None:
        """A topic was made."""
        if topic.owner in self._owned:
            count, size, at_ns = self._owned[topic.owner]
            self._owned[topic.owner] = (count + 1, size, at_ns)

    def _owned_by(self, owner: str, *, fresh_ns: int = OWNED_FRESH_NS) -> tuple[int, int]:
        """How many topics count for a key, and the bytes in them, those under way too."""
        count, size, at_ns = self._owned.get(owner, (0, 0, 0))
        now_ns = self._clock.now_ns()
        if owner not in self._owned or now_ns - at_ns > fresh_ns:
            owned = [topic for topic in self._topics if topic.owner == owner]
            count, size = len(owned), sum(topic.stored for topic in owned)
            size += sum(
                topic.active.writes.pending_bytes for topic in owned if topic.active is not None
            )
            self._owned[owner] = (count, size, now_ns)
        return count, size
