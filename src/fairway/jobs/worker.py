"""Runs jobs: claims them in batches, runs them, and commits what they said under its fence.

One task exchanges with the store: it settles what has ended and claims what there is room for, in
one commit, and starts again as soon as the last one is back and there is something to do. So the
batches grow with the load by themselves and no timer delays a commit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.core.lease import LeaseConfig
from fairway.errors import FairwayError, InvalidConfig
from fairway.jobs import verdict
from fairway.jobs.attempts import LOG_BYTES_MAX
from fairway.jobs.failures import log_failed
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.feeding import ExchangePlan, Feeding
from fairway.jobs.job import TERMINAL, Fate, Settlement, Skill, skill_in
from fairway.jobs.kinds import wrong_queue, wrong_text
from fairway.jobs.liveness import Liveness, WorkerLease
from fairway.jobs.logs import hearing
from fairway.jobs.metrics import JobMetrics
from fairway.jobs.presence import offer_of
from fairway.jobs.steps import StepRun, Steps
from fairway.jobs.store import KeysMayGo
from fairway.jobs.timers import Timers
from fairway.jobs.upkeep import Upkeep
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import Clock, clock_of, sleep_ns
from fairway.runtime.telemetry import Telemetry
from fairway.runtime.ticker import ThreadTicker
from fairway.runtime.usercode import GRACE_S, UserTasks, leave, reraise_interrupt
from fairway.runtime.words import brief
from fairway.wire.server import WorkerReadiness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairway.core.backoff import RandomSource
    from fairway.jobs.feeder import Feeder
    from fairway.jobs.job import Claim, LeaseRenewal, ReadyLine, Reaped
    from fairway.jobs.kinds import Kind
    from fairway.jobs.store import Ended, Exchanged, JobStore

logger = logging.getLogger("fairway.jobs")

SECOND_NS = 1_000_000_000
SETTLE_MAX = 2_000
"""Settlements in one exchange."""
POSTPONED_NS = SECOND_NS
"""When what the store postponed is settled again. It waits for others for a moment each time."""
POSTPONED_MAX = 100
"""Settlements that are postponed, beyond which nothing more is claimed."""
NOTHING = ExchangePlan([], [], ())
RECONNECT = BackoffConfig(base_ns=50_000_000, cap_ns=2 * SECOND_NS, jitter=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How a worker works."""

    queues: Mapping[str, FeederConfig] = field(default_factory=lambda: {"default": FeederConfig()})
    """The queues it works on, and how eagerly."""
    lease_ttl_ns: int = 60 * SECOND_NS
    """How long its claims outlive it. Raising it survives longer pauses of the process or the
    database; after a crash its jobs wait up to this and one reap_interval."""
    heartbeat_interval_ns: int = 20 * SECOND_NS
    """How often the lease is renewed: one row for all of its jobs."""
    reap_interval_ns: int = 30 * SECOND_NS
    """How often the jobs of dead workers are looked for."""
    drain_timeout_ns: int = 5 * SECOND_NS
    """How long a stop waits for jobs that run. What runs on is stopped and given back; what does
    not end within a second is left to the reaper."""
    threads: int = 10
    """Synchronous jobs at once. They wait for a thread, in their slots."""
    processes: int = 4
    """Jobs with `isolation="process"` at once: so many warm processes at most."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    log_bytes: int = LOG_BYTES_MAX
    """How much is kept of what a run logs, from its end, with its attempt. Raising it, to 64 KiB at
    most, keeps more; what jobs log goes to their store. 0 keeps nothing and costs nothing."""
    name: str = ""
    """What people call it; by default host and process."""

    def __post_init__(self) -> None:
        if not isinstance(self.queues, Mapping) or not self.queues:
            raise InvalidConfig("a worker works on at least one queue: queues is a mapping of them")
        for queue, feeder in self.queues.items():
            if wrong := wrong_queue(queue):
                raise InvalidConfig(wrong)
            if not isinstance(feeder, FeederConfig):
                raise InvalidConfig(f"queue {queue!r} has a FeederConfig, not {brief(feeder)}")
        if not isinstance(self.upkeep, Upkeep):
            raise InvalidConfig(f"upkeep is an Upkeep, not {brief(self.upkeep)}")
        if wrong := wrong_text("name", self.name):
            raise InvalidConfig(wrong)
        check_amounts(self, lease_ttl_ns=1, heartbeat_interval_ns=1, reap_interval_ns=1)
        check_amounts(self, drain_timeout_ns=0, threads=1, processes=1)
        check_amounts(self, log_bytes=0)
        if self.log_bytes > LOG_BYTES_MAX:
            raise InvalidConfig(f"log_bytes is 0 to {LOG_BYTES_MAX:,}")
        if self.lease_ttl_ns <= 2 * self.heartbeat_interval_ns:
            raise InvalidConfig(
                "lease_ttl must be more than two heartbeat_intervals, or one lost heartbeat"
                " loses every claim"
            )

    @property
    def lease(self) -> LeaseConfig:
        return LeaseConfig(
            ttl_ns=self.lease_ttl_ns,
            heartbeat_ns=self.heartbeat_interval_ns,
            margin_ns=min(SECOND_NS, (self.lease_ttl_ns - 2 * self.heartbeat_interval_ns) // 2),
        )


class Worker:
    """A service that runs jobs of some queues until it is stopped.

    `on_ended` is called with the jobs that this worker ended. `pressure` is the load of the
    process, 0 to 1: under pressure less is held in the buffers.
    """

    name = "job-worker"

    def __init__(
        self,
        store: JobStore,
        kinds: Mapping[tuple[str, int], Kind],
        config: WorkerConfig,
        *,
        on_ended: Callable[[Sequence[Ended]], None] = lambda ended: None,
        random_source: RandomSource | None = None,
        telemetry: Telemetry | None = None,
        pressure: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._config = config
        self._on_ended = on_ended
        self._metrics = JobMetrics(telemetry or Telemetry())
        self._pressure = pressure
        self._random: RandomSource = random_source or random.Random()
        self._feeding = Feeding({}, 0)
        self._runs: dict[int, StepRun] = {}
        self._held: dict[int, int] = {}
        self._settled: deque[Settlement] = deque()
        self._postponed: list[Settlement] = []
        """What is to be settled again in a moment; a timer runs while there is something."""
        self._again: set[int] = set()
        """Jobs whose settlements were postponed and are under way again."""
        self._lost: list[Claim] = []
        """Claims that the store lost, and has not counted as lost."""
        self._failed_at_ns: int | None = None
        """When an exchange failed, until a heartbeat that was sent later is answered."""
        self._repeating = False
        """Whether what is settled next was sent before, and perhaps committed."""
        self._progress: dict[int, bytes] = {}
        """What each job said last of how far it is, until the store has it. Threads add to it: one
        value for each that runs, and each of them bounded."""
        self._log_bytes = config.log_bytes
        self._worker = 0
        self._token = 0
        self._lease: WorkerLease | None = None
        self._started = asyncio.Event()
        self._work = asyncio.Event()
        self._quiet = asyncio.Event()
        self._draining = False
        self._over = False
        self._group = asyncio.TaskGroup()
        self._tasks = UserTasks()
        self._timers = Timers(store, self.wake, config.upkeep.timer_interval_ns)
        self._steps = Steps(
            threads=config.threads,
            processes=config.processes,
            random=self._random,
            note_progress=self._note_progress,
        )
        self._steps.trusted_until = self._trusted_until

    # The service

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._clock: Clock = clock_of(loop)
        self._feeding = Feeding(self._config.queues, self._clock.now_ns(), self._knows)
        self._metrics.watch(self._feeding.feeders, self._clock)
        self._liveness = Liveness(
            self._store.lease_renewer(),
            self._config.lease,
            self._clock,
            on_renewed=self._on_renewed,
            on_lost=lambda lease, reason: self._on_loop(self._lease_lost, lease, reason),
        )
        self._heartbeat = heartbeat = ThreadTicker(
            "job-heartbeat",
            self._liveness.renew,
            self._config.heartbeat_interval_ns,
            end=self._liveness.close,
        )
        hear = hearing if self._config.log_bytes else nullcontext
        unsubscribe = (
            self._store.on_keys_lost(self._keys_lost)
            if isinstance(self._store, KeysMayGo)
            else lambda: None
        )
        try:
            with hear():
                await self._serve(heartbeat)
        finally:
            self._over = True  # what a run says from here on counts for nothing
            unsubscribe()
            self._liveness.end()
            await self._tasks.end()
            # A thread cannot be ended. What it says is refused from here on: it is not waited for.
            await self._steps.aclose(abandon=self._draining)

    async def _serve(self, heartbeat: ThreadTicker) -> None:
        async with self._group:
            self._group.create_task(heartbeat.run(), name="job-heartbeat")
            self._group.create_task(self._exchange_forever(), name="job-exchange")
            self._group.create_task(self._watch_lease(), name="job-lease")
            self._group.create_task(self._timers.run(), name=self._timers.name)
            self._group.create_task(self._tasks.watch(), name="job-runs")
            self._started.set()
            for name, service in self._config.upkeep.services(
                self._store, self._reaped, self._config.reap_interval_ns
            ):
                self._group.create_task(service, name=name)

    async def drain(self) -> None:
        """Claim no more, give back what did not start, and let what runs end, for a while."""
        self._draining = True
        self._give_back()
        self._stir()
        asking = self._lease is not None and self._lease.asking_since_ns is not None
        if self._held or asking:  # what it brings is given back before we sign off
            self._quiet.clear()
            try:
                async with asyncio.timeout(self._config.drain_timeout_ns / 1e9):
                    await self._quiet.wait()
            except TimeoutError:
                await self._stop_runs()
        if self._worker:  # what it still holds is the reaper's at once
            self._liveness.end()
            try:
                await self._store.unregister(self._worker)
            except FairwayError as error:
                logger.warning("worker %d could not sign off: %s", self._worker, error)

    async def _stop_runs(self) -> None:
        """Stop what still runs. What ends then is given back, as if it had not been run."""
        for run in list(self._runs.values()):
            if run.cancelled is None:
                run.stopping = True
                run.cancelled = "the worker stops"
                run.interrupt(run.cancelled)
        try:
            async with asyncio.timeout(GRACE_S):
                await self._quiet.wait()
        except TimeoutError:
            logger.warning(
                "%d jobs still run and are left to the reaper: %s",
                len(self._runs),
                ", ".join(str(id) for id in list(self._runs)[:10]),
            )
            leave({run.task for run in self._runs.values() if run.task and run.is_stoppable})

    def _give_back(self) -> None:
        for feeder in self._feeders:
            for claim in feeder.release():
                self._settle(verdict.release(claim))

    @property
    def _feeders(self) -> Iterable[Feeder]:
        return self._feeding.feeders.values()

    # From outside

    async def wait_started(self) -> None:
        """Until it can be woken."""
        await self._started.wait()

    def readiness(self) -> WorkerReadiness:
        """Whether it takes work: it is registered, and a heartbeat was answered of late."""
        reason: str | None = None
        lease = self._lease
        if self._draining:
            reason = "stopping"
        elif lease is None:
            reason = "not registered with the job store"
        else:
            silent_ns = self._clock.now_ns() - lease.renewed_at_ns
            if silent_ns > 2 * self._config.heartbeat_interval_ns:
                reason = f"no heartbeat for {silent_ns / SECOND_NS:.0f} s"
        return WorkerReadiness(
            ready=reason is None,
            reason=reason,
            worker=self._worker or None,
            queues=sorted(self._config.queues),
            running=len(self._runs),
            buffered=sum(len(feeder.buffer) for feeder in self._feeders),
        )

    def wake(self, lines: Iterable[ReadyLine]) -> None:
        """Work was made ready in these ready lines."""
        if self._feeding.wake(lines):
            self._stir()

    def expect(self, delay_ns: int) -> None:
        """Something was scheduled that is due after this long."""
        self._timers.expect(delay_ns)

    def _reaped(self, reaped: Reaped) -> None:
        self._metrics.reaped(reaped)
        self.wake(reaped.lines)

    def look(self, queue: str) -> None:
        """Something may be ready in this queue."""
        if self._feeding.look(queue):
            self._stir()

    def limits_changed(self, queue: str) -> None:
        """Somebody here said what a queue may do from now on."""
        self._feeding.limits_changed(queue)
        self._stir()

    def cancel(self, reasons: Mapping[int, str]) -> None:
        """Stop these jobs, each for its reason, if they run here."""
        for id, reason in reasons.items():
            if (run := self._runs.get(id)) is not None and run.cancelled is None:
                run.cancelled = reason
                run.interrupt(reason)
        for feeder in self._feeders:
            for claim in feeder.buffer:
                if claim.cancelling is None:
                    claim.cancelling = reasons.get(claim.id)

    def _knows(self, skill: str) -> bool:
        name, version, step = skill_in(skill)
        kind = self._kinds.get((name, version))
        return kind is not None and (step is None or step in kind.steps)

    # The exchange

    def _stir(self) -> None:
        self._work.set()

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # a heartbeat was under way when everything ended
            if not self._loop.is_closed():
                raise

    async def _exchange_forever(self) -> None:
        backoff = Backoff(RECONNECT, self._random)
        while True:
            try:
                if not self._worker:
                    await self._register()
                await self._exchange()
                backoff.recovered(self._clock.now_ns())
            except FairwayError as error:
                self._metrics.exchange_failed()
                # Perhaps the database crashed, and has lost claims of ours. Before any is made
                # again, the heartbeat names those that were begun, and the store compares.
                self._failed_at_ns = self._clock.now_ns()
                self._heartbeat.tick_now()
                wait_ns = backoff.failed(self._clock.now_ns()) or RECONNECT.cap_ns
                logger.warning(
                    "the job store failed; trying again in %.2f s: %s", wait_ns / 1e9, error
                )
                await sleep_ns(wait_ns)
                self._stir()
            await self._wait_for_work()

    async def _register(self) -> None:
        asked_at_ns = self._clock.now_ns()
        name = self._config.name or f"{socket.gethostname()}:{os.getpid()}"
        slots = {queue: one.concurrency for queue, one in self._config.queues.items()}
        offer = offer_of(slots, self._kinds.values())
        self._worker = await self._store.register(name, self._config.lease_ttl_ns, offer)
        # Tokens go on where they were: a run of an earlier registration that ends late must not
        # find its job claimed again under the very token it has.
        self._held = {}
        self._lease = self._liveness.begin(self._worker, self._held, asked_at_ns)

    async def _wait_for_work(self) -> None:
        """Until something happened, or a queue is due."""
        if not self._work.is_set():
            if not self._draining and self._failed_at_ns is None and not self._stuck:
                delay_s = max(0, self._feeding.next_poll_ns - self._clock.now_ns()) / 1e9
                timer = self._loop.call_later(delay_s, self._work.set)
            else:
                timer = None
            try:
                await self._work.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        self._work.clear()

    async def _exchange(self) -> None:
        now_ns = self._clock.now_ns()
        if self._lost:
            await self._store.count_lost(self._worker, self._lost)
            self._lost = []
        settlements = [self._settled.popleft() for _ in range(min(len(self._settled), SETTLE_MAX))]
        plan = NOTHING
        if not (self._draining or self._failed_at_ns is not None or self._repeating or self._stuck):
            plan = self._feeding.plan(settlements, self._pressure(), now_ns)
        if self._settled:
            self._stir()
        if not settlements and not plan.queues:
            return
        worker, lease = self._worker, self._lease
        assert lease is not None, "who is registered has a lease"
        self._token += 1
        lease.asking_since_ns = now_ns
        try:
            if self._progress:
                await self._save_progress(worker)
            out = await self._store.exchange(
                worker, self._token, settlements, plan.wants, plan.probe
            )
            if self._again:
                self._again.difference_update(one.claim.id for one in settlements)
            if out.postponed:
                settlements = self._postpone(worker, out.postponed, settlements)
            self._metrics.exchanged(out, settlements, self._clock.now_ns() - now_ns)
        except BaseException:
            # In doubt or not, they are settled again: what was committed is stale by then.
            if worker == self._worker:
                self._settled.extendleft(reversed(settlements))
                self._repeating = bool(settlements)
            self._feeding.failed(plan)
            if not self._held:
                self._quiet.set()
            raise
        else:
            self._take_in(worker, out, settlements, plan)
        finally:
            lease.asking_since_ns = None

    @property
    def _stuck(self) -> bool:
        """Whether so much is postponed that more runs would only add to it."""
        return len(self._postponed) + len(self._again) >= POSTPONED_MAX

    def _postpone(
        self, worker: int, postponed: Sequence[Settlement], settlements: Sequence[Settlement]
    ) -> list[Settlement]:
        """Keep what was postponed for a while; the others, which were settled."""
        if worker == self._worker:
            if not self._postponed:
                self._loop.call_later(POSTPONED_NS / 1e9, self._settle_postponed)
            self._postponed += postponed
            logger.info(
                "%d jobs spawn unique keys that open transactions hold: settled again in %.0f s",
                len(self._postponed),
                POSTPONED_NS / 1e9,
            )
        kept = {(one.claim.id, one.claim.token) for one in postponed}
        return [one for one in settlements if (one.claim.id, one.claim.token) not in kept]

    def _settle_postponed(self) -> None:
        self._settled.extend(self._postponed)
        self._again.update(one.claim.id for one in self._postponed)
        self._postponed = []
        self._stir()

    def _take_in(
        self,
        worker: int,
        out: Exchanged,
        settlements: Sequence[Settlement],
        plan: ExchangePlan,
    ) -> None:
        now_ns = self._clock.now_ns()
        if worker != self._worker:
            # The lease was lost meanwhile: what was claimed is others' now.
            self._feeding.failed(plan)
            return
        held = self._held
        for one in settlements:
            if held.get(one.claim.id) == one.claim.token:
                del held[one.claim.id]
            if one.delay_ns:
                self._timers.expect(one.delay_ns)
        log_failed(settlements, out.stale)
        if self._repeating:
            self._repeating = False
            self._stir()
        for id in out.stale:
            logger.warning("job %d: what it said came too late, somebody else has it now", id)
        if out.stale:
            stale = set(out.stale)
            self._lost += [
                one.claim for one in settlements if one.claim.id in stale and _shows(one)
            ]
        held.update((claim.id, claim.token) for claim in out.claims)
        self._feeding.arrived(plan, out, now_ns)
        if out.cancelling:
            self.cancel(out.cancelling)
        if out.ended:
            self._on_ended(out.ended)
        if self._draining:
            self._give_back()  # it was asked for before
        for feeder in self._feeders:
            self._start(feeder)
        if self._feeding.wants_more(now_ns):
            self._stir()
        if self._draining and not held:
            self._quiet.set()

    # Running

    def _start(self, feeder: Feeder) -> None:
        while (claim := feeder.start()) is not None:
            kind = self._kinds.get((claim.kind, claim.version))
            step = kind.steps.get(claim.step) if kind is not None else None
            if claim.cancelling is not None:
                feeder.finished(claim)
                self._settle(verdict.of_cancel(claim, claim.cancelling))
                continue
            if kind is None or step is None:
                feeder.finished(claim)
                self._settle(_unknown(claim, kind))
                continue
            run = StepRun(claim, kind, step, self._clock.now_ns(), self._log_bytes)
            self._runs[claim.id] = run
            run.task = self._tasks.start(self._perform(feeder, run), self._loop)

    async def _perform(self, feeder: Feeder, run: StepRun) -> None:
        fault: BaseException | None = None
        try:
            try:
                settlement = await self._steps.perform(run, self._clock)
            except GeneratorExit as error:
                # The step waited for a future that holds one. It closes all that waits, so that
                # what `perform` made of it is gone.
                settlement = self._steps.failed(run, error)
            if run.stopping and settlement.fate is Fate.CANCELLED:
                settlement = verdict.release(run.claim)
            if not self._over:
                self._end(feeder, run, settlement)
        except BaseException as error:
            fault = error
            reraise_interrupt(error)
        finally:
            assert run.task is not None
            self._tasks.ended(run.task, fault)

    def _end(self, feeder: Feeder, run: StepRun, settlement: Settlement) -> None:
        id = run.claim.id
        if self._runs.get(id) is run:
            del self._runs[id]
        feeder.finished(run.claim)
        self._metrics.stepped(settlement, self._clock.now_ns() - run.began_ns)
        if self._held.get(id) != run.claim.token:
            return  # the lease was lost while it ran
        if run.log is not None:
            settlement.log = run.log.text()
        self._settle(settlement)
        if feeder.buffer:
            self._start(feeder)

    def _settle(self, settlement: Settlement) -> None:
        self._settled.append(settlement)
        self._stir()

    def _note_progress(self, id: int, value: bytes) -> None:
        self._progress[id] = value

    async def _save_progress(self, worker: int) -> None:
        # One by one, and no more than there are now: threads add to it meanwhile.
        values = dict([self._progress.popitem() for _ in range(len(self._progress))])
        try:
            await self._store.progress(worker, values)
        except BaseException:
            if worker == self._worker:
                for id, value in values.items():
                    self._progress.setdefault(id, value)  # it may have said more by now
            raise

    # The lease

    async def _watch_lease(self) -> None:
        """Stop in time also if the heartbeat hangs in the middle of a renewal."""
        while True:
            lease = self._lease
            wait_ns = self._config.heartbeat_interval_ns
            if lease is not None:
                wait_ns = lease.trusted_until_ns - self._clock.now_ns()
                if wait_ns <= 0:
                    lease.lost = True
                    self._lease_lost(lease, "no heartbeat came back in time")
                    continue
            await sleep_ns(min(wait_ns, self._config.heartbeat_interval_ns))

    def _trusted_until(self) -> int:
        # Without a lease, what begins is about to be cancelled: it may not outlast that.
        return self._lease.trusted_until_ns if self._lease is not None else self._clock.now_ns()

    def _on_renewed(self, lease: WorkerLease, renewal: LeaseRenewal) -> None:
        """On the heartbeat's thread: the loop may be too busy to keep processes alive."""
        self._steps.renew(lease.trusted_until_ns)
        self._on_loop(self._lease_renewed, lease, renewal)

    def _lease_renewed(self, lease: WorkerLease, renewal: LeaseRenewal) -> None:
        if lease is self._lease:
            self._metrics.lease_renewed(renewal)
            if renewal.released:
                logger.warning("%d claims whose reply was lost were given back", renewal.released)
            self.cancel(renewal.cancel)
            self._give_up(renewal.lost)
            if self._failed_at_ns is not None and lease.renewed_at_ns >= self._failed_at_ns:
                self._failed_at_ns = None
                self._stir()

    def _give_up(self, lost: Mapping[int, int]) -> None:
        """Stop the runs whose claims the store does not have: others may have their jobs by now.

        What was settled is not among them, though the store has no lease of it either: a run that
        goes on, or waits in a buffer, has said nothing to the store yet.
        """
        gone = []
        for id, token in lost.items():
            run = self._runs.get(id)
            if run is not None and run.claim.token == token:
                gone.append(run.claim)
                run.cancelled = "the store lost its claim"
                run.interrupt(run.cancelled)
        for feeder in self._feeders:
            gone += feeder.drop(lost)
        for claim in gone:
            self._held.pop(claim.id, None)
        if gone:
            logger.error(
                "the store lost the claims of %d jobs, which are stopped: %s",
                len(gone),
                ", ".join(str(claim.id) for claim in gone[:10]),
            )
            self._lost += gone
            if not self._held:
                self._quiet.set()
            self._stir()

    def _keys_lost(self, lost: Mapping[int, int]) -> None:
        """Stop the runs whose partition keys went: others may run those by now.

        The claims stand: what these say is settled, and refused, so that their jobs are back in
        line as soon as they have ended here.
        """
        for id, token in lost.items():
            run = self._runs.get(id)
            if run is not None and run.claim.token == token and run.cancelled is None:
                run.cancelled = "its partition key was lost"
                run.interrupt(run.cancelled)
        for feeder in self._feeders:
            for claim in feeder.drop(lost):
                self._settle(verdict.release(claim))

    def _lease_lost(self, lease: WorkerLease, reason: str) -> None:
        """Somebody else may have our jobs by now: stop all of them, and start over as another."""
        if lease is not self._lease:
            return
        logger.error(
            "worker %d lost its lease with %d jobs: %s", lease.worker, len(self._held), reason
        )
        self._metrics.lease_lost()
        self._lease = None
        self._worker = 0
        self._held = {}
        self._settled.clear()
        self._postponed.clear()
        self._again.clear()
        self._lost.clear()
        self._failed_at_ns = None
        self._repeating = False
        self._progress.clear()
        for feeder in self._feeders:
            feeder.release()
            feeder.stir()
        for run in list(self._runs.values()):
            run.cancelled = "the worker lost its lease"
            run.interrupt(run.cancelled)
        self._quiet.set()  # nothing is held any more, should somebody wait for that
        self._stir()


def _shows(one: Settlement) -> bool:
    """Whether the job would look different had this been committed: if it does not, its run is lost
    with its claim, and counts as a crash."""
    return (
        one.fate in TERMINAL
        or (one.fate is Fate.RETRY and one.counts)
        or (one.fate is not Fate.RELEASE and one.step != one.claim.step)
    )


def _unknown(claim: Claim, kind: Kind | None) -> Settlement:
    """A job this worker knows nothing of waits for one that does: code may be on its way."""
    what = f"step {claim.step!r} of" if kind is not None else "the kind"
    return Settlement(
        claim=claim,
        fate=Fate.RELEASE,
        error=f"waits for a worker that knows {what} {claim.kind!r}, version {claim.version}",
        skill=str(Skill(claim.kind, claim.version, claim.step if kind is not None else None)),
    )
