"""What a worker counts: picks, steps, settlements, and everything that went another way."""

from __future__ import annotations

import logging
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from fairway.jobs.job import Fate
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.runtime.spans import Span
from fairway.runtime.telemetry import SIZES
from fairway.runtime.usercode import reraise_interrupt
from fairway.runtime.words import traced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from fairway.jobs.feeder import Feeder
    from fairway.jobs.job import LeaseRenewal, Reaped, Settlement
    from fairway.jobs.store import Exchanged
    from fairway.runtime.clock import Clock
    from fairway.runtime.telemetry import Counter, Telemetry

logger = logging.getLogger("fairway.jobs")
_QUEUE, _FATE, _SKILL = attrgetter("queue"), attrgetter("fate"), attrgetter("skill")


class JobMetrics:
    """The instruments of one worker."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._clock: Clock = SYSTEM_CLOCK
        self._settled: dict[str, Counter] = {}
        self._claimed: dict[str, Counter] = {}
        self._exchange = telemetry.histogram(
            "fairway_jobs_exchange_ns", "How long an exchange with the store took"
        )
        self._picked = telemetry.histogram(
            "fairway_jobs_picked", "Jobs claimed by one exchange", SIZES
        )
        self._acked = telemetry.histogram(
            "fairway_jobs_acked", "Jobs settled by one exchange", SIZES
        )
        self._step = telemetry.histogram("fairway_jobs_step_ns", "How long a step ran")
        self._stale = telemetry.counter(
            "fairway_jobs_stale", "Settlements refused because the claim was lost"
        )
        self._contended = telemetry.counter(
            "fairway_jobs_contended", "Jobs not claimed because another of their key runs"
        )
        self._lost_leases = telemetry.counter("fairway_jobs_leases_lost", "Leases that ran out")
        self._released = telemetry.counter(
            "fairway_jobs_released", "Claims given back whose reply was lost"
        )
        self._aside = telemetry.counter(
            "fairway_jobs_set_aside", "Jobs given back because this worker does not know them"
        )
        self._held_back = telemetry.counter(
            "fairway_jobs_held_back", "Picks that a limit made empty"
        )
        self._failed = telemetry.counter("fairway_jobs_exchange_failed", "Exchanges that failed")
        self._reaped_workers = telemetry.counter("fairway_jobs_workers_reaped", "Workers that died")
        self._reaped = telemetry.counter("fairway_jobs_reaped", "Jobs of dead workers, run again")
        self._dead = telemetry.counter("fairway_jobs_dead", "Jobs whose worker died too often")

    def watch(self, feeders: Mapping[str, Feeder], clock: Clock) -> None:
        """Show how full each queue's slots and buffer are."""
        self._clock = clock
        for queue, feeder in feeders.items():
            self._telemetry.gauge(
                "fairway_jobs_running",
                "Jobs that run",
                partial(_size, feeder.running),
                queue=queue,
            )
            self._telemetry.gauge(
                "fairway_jobs_buffered",
                "Jobs claimed and not started",
                partial(_size, feeder.buffer),
                queue=queue,
            )

    def exchanged(self, out: Exchanged, settlements: Sequence[Settlement], took_ns: int) -> None:
        self._exchange.record(took_ns)
        if self._telemetry.spans is not None and (out.claims or settlements):
            stale, held_back = len(out.stale), len(out.held_back_ns)
            counts = {"claimed": len(out.claims), "settled": len(settlements)}
            self._emit("jobs.exchange", took_ns, {**counts, "stale": stale, "held_back": held_back})
        if out.claims:
            self._picked.record(len(out.claims))
            # By runs of the same, which most are: one by one it would cost as much as a job's step.
            for queue, claims in groupby(out.claims, _QUEUE):
                counter = self._claimed.get(queue) or self._claimed_of(queue)
                counter.value += len(list(claims))
        if settlements:
            self._acked.record(len(settlements))
            for fate, some in groupby(settlements, _FATE):
                counter = self._settled.get(fate.value) or self._settled_of(fate.value)
                counter.value += len(list(some))
            self._aside.value += sum(map(bool, map(_SKILL, settlements)))
        self._stale.add(len(out.stale))
        self._contended.add(out.contended)
        self._held_back.add(len(out.held_back_ns))

    def exchange_failed(self) -> None:
        self._failed.add()

    def stepped(self, settlement: Settlement, took_ns: int) -> None:
        self._step.record(took_ns)
        if self._telemetry.spans is not None:
            claim = settlement.claim
            about: dict[str, str | int | float | bool] = {
                "job.id": claim.id,
                "job.kind": claim.kind,
                "job.step": claim.step,
                "job.queue": claim.queue,
                "job.attempt": claim.attempt + claim.crashes + 1,
                "job.fate": settlement.fate.value,
            }
            error = settlement.error if settlement.fate is not Fate.CANCELLED else None
            self._emit(f"job {claim.kind}", took_ns, about, claim.trace, error)

    def lease_renewed(self, renewal: LeaseRenewal) -> None:
        self._released.add(renewal.released)

    def lease_lost(self) -> None:
        self._lost_leases.add()

    def reaped(self, reaped: Reaped) -> None:
        self._reaped_workers.add(reaped.workers)
        self._reaped.add(reaped.returned)
        self._dead.add(reaped.dead)
        if self._telemetry.spans is not None and reaped.workers:
            self._emit(
                "jobs.reap",
                0,
                {"workers": reaped.workers, "returned": reaped.returned, "dead": reaped.dead},
            )

    def _emit(
        self,
        name: str,
        took_ns: int,
        attributes: Mapping[str, str | int | float | bool],
        trace: str | None = None,
        error: str | None = None,
    ) -> None:
        spans = self._telemetry.spans
        assert spans is not None
        now_ns = self._clock.wall_ns()
        try:
            spans(Span(name, now_ns - took_ns, now_ns, attributes, trace, error))
        except BaseException as error:  # whoever listens must not stop the work
            reraise_interrupt(error)
            logger.error("a span could not be reported\n%s", traced(error))
            self._telemetry.spans = None

    def _claimed_of(self, queue: str) -> Counter:
        made = self._telemetry.counter("fairway_jobs_claimed", "Jobs claimed", queue=queue)
        self._claimed[queue] = made
        return made

    def _settled_of(self, fate: str) -> Counter:
        made = self._telemetry.counter("fairway_jobs_settled", "Runs settled", fate=fate)
        self._settled[fate] = made
        return made


def _size(held: Sized) -> float:
    return len(held)
