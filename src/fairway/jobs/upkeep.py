"""What has to be done in a job store now and then, by whichever worker comes first.

Each of these is safe to do by several workers at once: the store gives each row to one of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.errors import FairwayError
from fairway.jobs.failures import log_died
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import sleep_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fairway.jobs.job import Reaped
    from fairway.jobs.store import JobStore

logger = logging.getLogger("fairway.jobs")

SECOND_NS = 1_000_000_000
DAY_NS = 24 * 3600 * SECOND_NS
BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How often the store is looked after."""

    timer_interval_ns: int = SECOND_NS
    """The longest time between looks at the timers; a timer that is known is kept to the
    millisecond. Raising it spares the database; what others scheduled starts later."""
    age_interval_ns: int = SECOND_NS
    """How often jobs that waited long move up a band."""
    age_batch: int = 256
    """How many at the head of each ready line may move at a time."""
    prune_interval_ns: int = 600 * SECOND_NS
    """How often what is old is forgotten."""
    retention_ns: int = DAY_NS
    """How long jobs are kept that are done or cancelled. Raising it answers older questions and
    costs disk."""
    failed_retention_ns: int = 30 * DAY_NS
    """How long jobs are kept that failed or are dead. Raising it leaves more time to look into them
    and to retry them, and costs disk."""
    dedup_window_ns: int = 7 * DAY_NS
    """How long the dedup key of a signal stands after the signal was dealt with. Raising it refuses
    later repeats, and keeps a row for each key as long."""

    def __post_init__(self) -> None:
        check_amounts(self, timer_interval_ns=1, age_interval_ns=1, age_batch=1)
        check_amounts(self, prune_interval_ns=1, retention_ns=0, failed_retention_ns=0)
        check_amounts(self, dedup_window_ns=0)

    def services(
        self,
        store: JobStore,
        on_reaped: Callable[[Reaped], None],
        reap_interval_ns: int,
    ) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
        """The tasks that do it, by name."""
        yield "job-reaper", self._reap(store, on_reaped, reap_interval_ns)
        yield "job-aging", self._age(store)
        yield "job-pruning", self._prune(store)

    async def _reap(
        self, store: JobStore, on_reaped: Callable[[Reaped], None], interval_ns: int
    ) -> None:
        while True:
            try:
                reaped = await store.reap(BATCH)
                if reaped.workers:
                    logger.warning(
                        "%d workers died: %d jobs are tried again, %d are dead",
                        reaped.workers,
                        reaped.returned,
                        reaped.dead,
                    )
                log_died(reaped.died)
                on_reaped(reaped)
                if reaped.returned + reaped.dead >= BATCH:
                    continue
            except FairwayError as error:
                logger.warning("dead workers could not be looked for: %s", error)
            await sleep_ns(interval_ns)

    async def _age(self, store: JobStore) -> None:
        while True:
            await sleep_ns(self.age_interval_ns)
            try:
                await store.age(self.age_batch)
            except FairwayError as error:
                logger.warning("waiting jobs could not be moved up: %s", error)

    async def prune(self, store: JobStore) -> int:
        """Forget what is old by now; how many jobs."""
        return await store.prune(
            self.retention_ns,
            failed_older_than_ns=self.failed_retention_ns,
            dedup_older_than_ns=self.dedup_window_ns,
            exact=False,
        )

    async def _prune(self, store: JobStore) -> None:
        while True:
            try:
                await self.prune(store)
            except FairwayError as error:
                logger.warning("old jobs could not be forgotten: %s", error)
            await sleep_ns(self.prune_interval_ns)
