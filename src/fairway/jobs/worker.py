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
import traceback
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.core.lease import LeaseConfig
from fairway.core.priority import band_of
from fairway.errors import CallFailed, Cancelled, FairwayError, InvalidConfig
from fairway.jobs import verdict
from fairway.jobs.context import Context, stop_context
from fairway.jobs.feeder import Feeder, FeederConfig
from fairway.jobs.isolation import run_isolated, target_of
from fairway.jobs.job import TERMINAL, Fate, Lane, Settlement
from fairway.jobs.liveness import Lease, Liveness
from fairway.jobs.metrics import JobMetrics
from fairway.jobs.timers import Timers
from fairway.jobs.upkeep import Upkeep
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import Clock, clock_of, sleep_ns
from fairway.runtime.processes import Processes
from fairway.runtime.pulse import Pulse
from fairway.runtime.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairway.core.backoff import RandomSource
    from fairway.jobs.job import Beat, Claim, Reaped
    from fairway.jobs.kinds import Kind, StepCall
    from fairway.jobs.store import Ended, Exchanged, JobStore, Want

logger = logging.getLogger("fairway.jobs")

SECOND_NS = 1_000_000_000
SETTLE_MAX = 2_000
"""Settlements in one exchange."""
PARENTS_MAX = 10_000
"""Parents whose lane is remembered, so that they are claimed when a child of theirs ends."""
UNKNOWN_KIND_NS = 10 * SECOND_NS
"""How long a job of a kind that this worker does not know rests before somebody looks again."""
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
    """How long a stop waits for jobs that run; the rest is left to the reaper."""
    threads: int = 10
    """Synchronous jobs at once. They wait for a thread, in their slots."""
    processes: int = 4
    """Jobs with `isolation="process"` at once: so many warm processes at most."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    name: str = ""
    """What people call it; by default host and process."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidConfig("a worker works on at least one queue")
        if self.lease_ttl_ns <= 2 * self.heartbeat_interval_ns:
            raise InvalidConfig(
                "lease_ttl must be more than two heartbeat_intervals, or one lost beat loses"
                " every claim"
            )

    @property
    def lease(self) -> LeaseConfig:
        return LeaseConfig(
            ttl_ns=self.lease_ttl_ns,
            heartbeat_ns=self.heartbeat_interval_ns,
            margin_ns=min(SECOND_NS, (self.lease_ttl_ns - 2 * self.heartbeat_interval_ns) // 2),
        )


class _Run:
    """One run of a claimed job."""

    __slots__ = (
        "began_ns",
        "begun",
        "cancelled",
        "claim",
        "context",
        "task",
        "timed_out",
        "withdrawn",
    )

    def __init__(self, claim: Claim, began_ns: int) -> None:
        self.claim = claim
        self.began_ns = began_ns
        self.context: Context[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Whether its task has had a turn: one that is cancelled before ends without a word."""
        self.cancelled = False
        self.timed_out = False
        self.withdrawn = False
        """Whether a thread that comes to it late is to leave it alone."""


class Worker:
    """A service that runs jobs of some queues until it is stopped.

    `told` hears of jobs that ended by this worker's hands.
    """

    name = "job-worker"

    def __init__(
        self,
        store: JobStore,
        kinds: Mapping[tuple[str, int], Kind],
        config: WorkerConfig,
        *,
        told: Callable[[Sequence[Ended]], None] = lambda ended: None,
        random_source: RandomSource | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._config = config
        self._told = told
        self._metrics = JobMetrics(telemetry or Telemetry())
        self.pressure: Callable[[], float] = lambda: 0.0
        """How hard the process is pressed, 0 to 1: under pressure less is held in the buffers."""
        self._random: RandomSource = random_source or random.Random()
        self._feeders: dict[str, Feeder] = {}
        self._runs: dict[int, _Run] = {}
        self._held: dict[int, int] = {}
        self._settled: deque[Settlement] = deque()
        self._progress: deque[tuple[int, bytes]] = deque()  # threads add to it
        self._parents: dict[int, Lane] = {}
        self._worker = 0
        self._token = 0
        self._lease: Lease | None = None
        self._started = asyncio.Event()
        self._work = asyncio.Event()
        self._quiet = asyncio.Event()
        self._draining = False
        self._group = asyncio.TaskGroup()
        self._timers = Timers(store, self.wake, config.upkeep.timer_interval_ns)
        self._processes = Processes(config.processes)
        self._pool = BlockingPool(config.threads, queue_limit=1 << 20, name="jobs")

    # The service

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._clock: Clock = clock_of(loop)
        now_ns = self._clock.now_ns()
        self._feeders = {
            queue: Feeder(queue, config, now_ns) for queue, config in self._config.queues.items()
        }
        self._metrics.watch(self._feeders, self._clock)
        self._liveness = Liveness(
            self._store.heart(),
            self._config.lease,
            self._clock,
            told=lambda lease, beat: self._on_loop(self._beaten, lease, beat),
            lost=lambda lease, reason: self._on_loop(self._lease_lost, lease, reason),
        )
        pulse = Pulse(
            "job-heart",
            self._liveness.beat,
            self._config.heartbeat_interval_ns,
            end=self._liveness.close,
        )
        try:
            async with self._group:
                self._group.create_task(pulse.run(), name="job-heart")
                self._group.create_task(self._exchange_forever(), name="job-exchange")
                self._group.create_task(self._watch_lease(), name="job-lease")
                self._group.create_task(self._timers.run(), name=self._timers.name)
                self._started.set()
                for name, service in self._config.upkeep.services(
                    self._store, self._reaped, self._config.reap_interval_ns
                ):
                    self._group.create_task(service, name=name)
        finally:
            self._liveness.end()
            await self._processes.aclose()
            # A thread cannot be ended. What it says is refused from here on: it is not waited for.
            await self._pool.aclose(abandon=self._draining)

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
                logger.warning(
                    "%d jobs still run and are left to the reaper: %s",
                    len(self._runs),
                    ", ".join(str(id) for id in list(self._runs)[:10]),
                )
        if self._worker:  # what it still holds is the reaper's at once
            self._liveness.end()
            try:
                await self._store.unregister(self._worker)
            except FairwayError as error:
                logger.warning("worker %d could not sign off: %s", self._worker, error)

    def _give_back(self) -> None:
        for feeder in self._feeders.values():
            for claim in feeder.release():
                self._settle(verdict.release(claim))

    # From outside

    async def wait_started(self) -> None:
        """Until it can be woken."""
        await self._started.wait()

    def wake(self, lanes: Iterable[Lane]) -> None:
        """Work was made ready in these lanes."""
        stirred = False
        for lane in lanes:
            if (feeder := self._feeders.get(lane.queue)) is not None:
                feeder.lanes.add(lane)
                feeder.stir()
                stirred = True
        if stirred:
            self._stir()

    def expect(self, delay_ns: int) -> None:
        """Something was scheduled that is due after this long."""
        self._timers.expect(delay_ns)

    def _reaped(self, reaped: Reaped) -> None:
        self._metrics.reaped(reaped)
        self.wake(reaped.lanes)

    def look(self, queue: str) -> None:
        """Something may be ready in this queue."""
        if (feeder := self._feeders.get(queue)) is not None:
            feeder.lanes.doubt()
            feeder.stir()
            self._stir()

    def cancel(self, ids: Iterable[int], reason: str = "cancelled") -> None:
        """Stop these jobs, if they run here."""
        ids = set(ids)
        for id in ids:
            if (run := self._runs.get(id)) is not None and not run.cancelled:
                run.cancelled = True
                self._interrupt(run, reason)
        for feeder in self._feeders.values():
            for claim in feeder.buffer:
                claim.cancelling = claim.cancelling or claim.id in ids

    @property
    def running(self) -> int:
        return len(self._runs)

    # The exchange

    def _stir(self) -> None:
        self._work.set()

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # a beat was under way when everything ended
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
        self._worker = await self._store.register(name, self._config.lease_ttl_ns)
        # Tokens go on where they were: a run of an earlier registration that ends late must not
        # find its job claimed again under the very token it has.
        self._held = {}
        self._lease = self._liveness.begin(self._worker, self._held, asked_at_ns)

    async def _wait_for_work(self) -> None:
        """Until something happened, or a queue is due."""
        if not self._work.is_set():
            if not self._draining:
                at_ns = min(feeder.next_poll_ns for feeder in self._feeders.values())
                delay_s = max(0, at_ns - self._clock.now_ns()) / 1e9
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
        settlements = [self._settled.popleft() for _ in range(min(len(self._settled), SETTLE_MAX))]
        follow = self._following(settlements)
        wants: list[Want] = []
        probe: list[str] = []
        looking: dict[str, Feeder] = {}
        for feeder in () if self._draining else self._feeders.values():
            if feeder.config.prefetch:
                feeder.press(self.pressure())
            if feeder.queue in follow:
                feeder.lanes.add_all(follow[feeder.queue])
                feeder.stir()
            count = feeder.demand(now_ns)
            due = feeder.due(now_ns)
            if not count and not due:
                continue
            split = feeder.lanes.split(count)
            wants += split
            if due or not split:
                probe.append(feeder.queue)
            feeder.asking(sum(want.most for want in split))
            looking[feeder.queue] = feeder
        if self._settled:
            self._stir()
        if not settlements and not wants and not probe:
            return
        worker, lease = self._worker, self._lease
        assert lease is not None, "who is registered has a lease"
        self._token += 1
        lease.asking_since_ns = now_ns
        try:
            if self._progress:
                await self._store.progress(worker, self._take_progress())
            out = await self._store.exchange(worker, self._token, settlements, wants, probe)
            self._metrics.exchanged(out, settlements, self._clock.now_ns() - now_ns)
        except BaseException:
            # In doubt or not, they are settled again: what was committed is stale by then.
            if worker == self._worker:
                self._settled.extendleft(reversed(settlements))
            for feeder in looking.values():
                feeder.failed()
            if not self._held:
                self._quiet.set()
            raise
        else:
            self._take_in(worker, out, settlements, wants, looking)
        finally:
            lease.asking_since_ns = None

    def _following(self, settlements: Sequence[Settlement]) -> dict[str, set[Lane]]:
        """The lanes that these settlements make something ready in: it is claimed with them."""
        follow: dict[str, set[Lane]] = {}
        for one in settlements:
            claim = one.claim
            if one.fate is Fate.SPAWN:
                self._parents[claim.id] = Lane(claim.queue, claim.tenant, band_of(claim.priority))
                for child in one.children:
                    lane = Lane(child.queue, child.tenant, band_of(child.priority))
                    follow.setdefault(lane.queue, set()).add(lane)
            elif one.fate in TERMINAL and claim.parent is not None:
                if (parent := self._parents.get(claim.parent)) is not None:
                    follow.setdefault(parent.queue, set()).add(parent)
                self._parents.pop(claim.id, None)
        while len(self._parents) > PARENTS_MAX:
            del self._parents[next(iter(self._parents))]
        return follow

    def _take_in(
        self,
        worker: int,
        out: Exchanged,
        settlements: Sequence[Settlement],
        wants: Sequence[Want],
        looking: Mapping[str, Feeder],
    ) -> None:
        now_ns = self._clock.now_ns()
        if worker != self._worker:
            # The lease was lost meanwhile: what was claimed is others' now.
            for feeder in looking.values():
                feeder.failed()
            return
        held = self._held
        for one in settlements:
            if held.get(one.claim.id) == one.claim.token:
                del held[one.claim.id]
            if one.delay_ns:
                self._timers.expect(one.delay_ns)
        for id in out.stale:
            logger.warning("job %d: what it said came too late, somebody else has it now", id)
        claims: dict[str, list[Claim]] = {queue: [] for queue in looking}
        for claim in out.claims:
            held[claim.id] = claim.token
            claims[claim.queue].append(claim)
        asked = Counter(dict.fromkeys(looking, 0))
        for lane, most in wants:
            asked[lane.queue] += most
        for queue, feeder in looking.items():
            lanes = out.lanes.get(queue)
            if lanes is not None:
                feeder.lanes.replace(lanes)
            elif len(claims[queue]) < asked[queue]:
                feeder.lanes.doubt()  # some gave less: the next look tells which have more
                if feeder.idle and not claims[queue]:
                    feeder.stir()  # nothing will end here, so nothing else would make it look
            feeder.picked(claims[queue], now_ns, looked=lanes is not None, more=bool(lanes))
            if lanes:
                feeder.stir()
        for queue, wait_ns in out.held_back_ns.items():
            if queue in looking:
                looking[queue].hold_back(wait_ns, now_ns)
        spent = {lane for lane, _ in wants if len(claims[lane.queue]) < asked[lane.queue]}
        self.wake(lane for lane in out.woken if lane not in spent)
        if out.cancelling:
            self.cancel(out.cancelling)
        if out.ended:
            self._told(out.ended)
        if self._draining:
            self._give_back()  # it was asked for before
        for feeder in self._feeders.values():
            self._start(feeder)
            if feeder.demand(now_ns):
                self._stir()
        if self._draining and not held:
            self._quiet.set()

    # Running

    def _start(self, feeder: Feeder) -> None:
        while (claim := feeder.start()) is not None:
            kind = self._kinds.get((claim.kind, claim.version))
            step = kind.steps.get(claim.step) if kind is not None else None
            if kind is None or step is None or claim.cancelling:
                feeder.finished(claim)
                cancel = verdict.of_cancel(claim, "cancelled")
                self._settle(cancel if claim.cancelling else _unknown(claim, kind))
                continue
            run = _Run(claim, self._clock.now_ns())
            self._runs[claim.id] = run
            run.task = self._group.create_task(self._perform(feeder, run, kind, step))

    async def _perform(self, feeder: Feeder, run: _Run, kind: Kind, step: StepCall) -> None:
        """Run one step of a job; whatever it does, its outcome is settled."""
        claim = run.claim
        run.begun = True
        if run.cancelled:
            self._end(feeder, run, verdict.of_cancel(claim, "cancelled"))
            return
        state = None
        limit: asyncio.Timeout | None = None
        try:
            state = kind.decoder.decode(claim.state)
            if step.wants_context:
                run.context = Context(claim, state, self._note_progress, self._clock)
            limit_ns = kind.options.timeout_ns
            if kind.options.isolation == "process":
                async with asyncio.timeout(None if limit_ns is None else limit_ns / 1e9) as limit:
                    value, state = await self._in_process(run, kind)
            elif not step.is_async:
                value = await self._in_thread(run, kind, step, state)
            elif limit_ns is None:
                value = await kind.call(step, state, run.context)
            else:
                async with asyncio.timeout(limit_ns / 1e9) as limit:
                    value = await kind.call(step, state, run.context)
            settlement = verdict.of_return(kind, claim, state, value, self._random)
        except asyncio.CancelledError as error:
            if not run.cancelled and run.task is not None and run.task.cancelling():
                raise  # the worker ends: its lease brings the job back
            settlement = self._interrupted(run, kind, error)
        except Cancelled as error:
            settlement = self._interrupted(run, kind, error)
        except (KeyboardInterrupt, GeneratorExit):
            raise  # meant for the process
        except BaseException as error:  # also `sys.exit`: it ends the job's run, not the worker
            run.timed_out = limit is not None and limit.expired()
            settlement = self._interrupted(run, kind, error)
        self._end(feeder, run, settlement)

    async def _in_process(self, run: _Run, kind: Kind) -> tuple[Any, Any]:
        """Run a step in a process of its own, which a timeout or a cancel ends."""
        target = target_of(kind.declared, kind.name)
        value, saved = await self._processes.run(run_isolated, target, run.claim)
        return value, None if saved is None else kind.decoder.decode(saved)

    async def _in_thread(self, run: _Run, kind: Kind, step: StepCall, state: Any) -> Any:
        """Run a synchronous step. It is asked to stop, not made to: its slot is busy until then."""
        timer: asyncio.TimerHandle | None = None
        limit_ns = kind.options.timeout_ns
        ended: asyncio.Future[Any] = self._loop.create_future()

        def tell(value: Any, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result((value, error))

        def begin() -> None:
            nonlocal timer
            if limit_ns is not None and not ended.done():
                timer = self._loop.call_later(limit_ns / 1e9, self._time_is_up, run)

        def call() -> Any:
            if run.withdrawn:
                raise Cancelled("it was to end before a thread was free for it")
            if limit_ns is not None:
                self._on_loop(begin)  # the wait for a thread is not the job's
            return kind.call(step, state, run.context)

        self._pool.submit(tell, call)
        try:
            value, error = await ended
        finally:
            run.withdrawn = True
            if timer is not None:
                timer.cancel()
        if error is not None:
            raise error
        return value

    def _time_is_up(self, run: _Run) -> None:
        run.timed_out = True
        if run.context is not None:
            stop_context(run.context, "took too long")

    def _interrupt(self, run: _Run, reason: str) -> None:
        run.withdrawn = True
        if run.context is not None:
            stop_context(run.context, reason)
        kind = self._kinds.get((run.claim.kind, run.claim.version))
        step = kind.steps.get(run.claim.step) if kind is not None else None
        if kind is None or step is None or run.task is None or not run.begun:
            return
        if step.is_async or kind.options.isolation == "process":
            run.task.cancel()

    def _interrupted(self, run: _Run, kind: Kind, error: BaseException) -> Settlement:
        if run.cancelled:
            return verdict.of_cancel(run.claim, "cancelled")
        said = _said(error)
        if run.timed_out and kind.options.timeout_ns is not None:
            said = f"took longer than {kind.options.timeout_ns / 1e9:g} s"
        return verdict.of_error(kind, run.claim, error, said, self._random)

    def _end(self, feeder: Feeder, run: _Run, settlement: Settlement) -> None:
        id = run.claim.id
        if self._runs.get(id) is run:
            del self._runs[id]
        feeder.finished(run.claim)
        self._metrics.stepped(settlement, self._clock.now_ns() - run.began_ns)
        if self._held.get(id) != run.claim.token:
            return  # the lease was lost while it ran
        self._settle(settlement)
        if feeder.buffer:
            self._start(feeder)

    def _settle(self, settlement: Settlement) -> None:
        self._settled.append(settlement)
        self._work.set()

    def _note_progress(self, id: int, value: bytes) -> None:
        self._progress.append((id, value))

    def _take_progress(self) -> dict[int, bytes]:
        values = {}
        while self._progress:
            id, value = self._progress.popleft()
            values[id] = value
        return values

    # The lease

    async def _watch_lease(self) -> None:
        """Stop in time also if the heart hangs in the middle of a beat and cannot tell us."""
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

    def _beaten(self, lease: Lease, beat: Beat) -> None:
        if lease is self._lease:
            self._metrics.beaten(beat)
            if beat.released:
                logger.warning("%d claims whose reply was lost were given back", beat.released)
            self.cancel(beat.cancel)

    def _lease_lost(self, lease: Lease, reason: str) -> None:
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
        self._progress.clear()
        for feeder in self._feeders.values():
            feeder.release()
            feeder.stir()
        for run in list(self._runs.values()):
            run.cancelled = True
            self._interrupt(run, "the worker lost its lease")
        self._quiet.set()  # nothing is held any more, should somebody wait for that
        self._stir()


def _unknown(claim: Claim, kind: Kind | None) -> Settlement:
    """A job this worker knows nothing of waits for one that does: code may be on its way."""
    what = f"step {claim.step!r} of" if kind is not None else "the kind"
    return Settlement(
        claim=claim,
        fate=Fate.RETRY,
        step=claim.step,
        delay_ns=UNKNOWN_KIND_NS,
        counts=False,
        error=f"no worker that looked knows {what} {claim.kind!r}, version {claim.version}",
    )


def _said(error: BaseException) -> str:
    if isinstance(error, CallFailed):
        return str(error)  # the traceback of its process; ours says nothing more
    return "".join(traceback.format_exception(error, limit=-20)).strip()
