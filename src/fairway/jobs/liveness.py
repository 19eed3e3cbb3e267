"""Keeps a worker's lease alive, and notices before its end that it cannot.

Everything here happens on the heartbeat's own thread. The store's clock decides when the lease
ends; ours only says how long we dare to trust the last answer, counted from when it was asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.errors import FairwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairway.core.lease import LeaseConfig
    from fairway.jobs.job import LeaseRenewal
    from fairway.jobs.store import LeaseRenewer
    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.jobs")

RETRY_NS = 500_000_000
"""How soon a heartbeat that failed is tried again."""


@dataclass(slots=True)
class WorkerLease:
    """The lease of one registration of a worker."""

    worker: int
    held: Mapping[int, int]
    """The jobs it has, by token: a live view of the worker's own book."""
    trusted_until_ns: int
    renewed_at_ns: int
    """When the last heartbeat that was answered was sent."""
    lost: bool = False
    asking_since_ns: int | None = None
    """Since when an exchange is under way: what it claims is not in the book yet."""


class Liveness:
    """Renews the lease of a worker, again and again.

    `on_renewed` is called with each answer; `on_lost` once for a lease that could not be renewed in
    time, or that the store says has ended. Both are called on the heartbeat's thread.
    """

    def __init__(
        self,
        renewer: LeaseRenewer,
        config: LeaseConfig,
        clock: Clock,
        *,
        on_renewed: Callable[[WorkerLease, LeaseRenewal], None],
        on_lost: Callable[[WorkerLease, str], None],
    ) -> None:
        self._renewer = renewer
        self._config = config
        self._clock = clock
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._lease: WorkerLease | None = None
        self._soon_ns = min(RETRY_NS, config.heartbeat_ns)

    def begin(self, worker: int, held: Mapping[int, int], asked_at_ns: int) -> WorkerLease:
        """A lease that was granted when it was asked for at `asked_at_ns`."""
        lease = WorkerLease(worker, held, self._config.trusted_until_ns(asked_at_ns), asked_at_ns)
        self._lease = lease
        return lease

    def end(self) -> None:
        """There is no lease to renew any more."""
        self._lease = None

    def close(self) -> None:
        self._renewer.close()

    def renew(self) -> int | None:
        """Renew once; how long to wait until the next time, None for the usual interval."""
        lease = self._lease
        if lease is None or lease.lost:
            return self._soon_ns
        now_ns = self._clock.now_ns()
        grace_ns = self._config.heartbeat_ns
        if (asking_since_ns := lease.asking_since_ns) is not None:
            grace_ns += now_ns - asking_since_ns
        try:
            # The book itself and no copy: the renewal may have to wait for the store, and what was
            # claimed meanwhile would look as if nobody knew of it.
            answer = self._renewer.renew(lease.worker, lease.held, self._config.ttl_ns, grace_ns)
        except FairwayError as error:
            logger.warning("a heartbeat failed and is tried again: %s", error)
            left_ns = lease.trusted_until_ns - self._clock.now_ns()
            if left_ns > 0:
                return min(self._soon_ns, left_ns)
            self._give_up(lease, str(error))
            return self._soon_ns
        if not answer.alive:
            self._give_up(lease, "its lease has run out")
            return self._soon_ns
        lease.trusted_until_ns = self._config.trusted_until_ns(now_ns)
        lease.renewed_at_ns = now_ns
        self._on_renewed(lease, answer)
        return None

    def _give_up(self, lease: WorkerLease, reason: str) -> None:
        lease.lost = True
        self._on_lost(lease, reason)
