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
from fairway.errors import FairwayError, InvalidConfig
from fairway.jobs import verdict
from fairway.jobs.context import Cancelled, Context, stop_context
from fairway.jobs.feeder import Feeder, FeederConfig
from fairway.jobs.job import Fate, Settlement
from fairway.jobs.liveness import Lease, Liveness
from fairway.jobs.upkeep import Upkeep
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import Clock, clock_of, sleep_ns
from fairway.runtime.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairway.core.backoff import RandomSource
    from fairway.jobs.job import Beat, Claim, Lane
    from fairway.jobs.kinds import Kind, StepCall
    from fairway.jobs.store import Ended, Exchanged, JobStore, Want

logger = logging.getLogger("fairway.jobs")

SECOND_NS = 1_000_000_000
SETTLE_MAX = 2_000
"""Settlements in one exchange."""
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
    upkeep: Upkeep = field(default_factory=Upkeep)
    name: str = ""
    """What people call it; by default host and process."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidConfig("a worker works on at least one queue")
        if self.lease_ttl_ns < 2 * self.heartbeat_interval_ns:
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

    __slots__ = ("cancelled", "claim", "context", "task", "timed_out")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.context: Context[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        self.timed_out = False


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
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._config = config
        self._told = told
        self._random: RandomSource = random_source or random.Random()
        self._feeders: dict[str, Feeder] = {}
        self._runs: dict[int, _Run] = {}
        self._held: dict[int, int] = {}
        self._settled: deque[Settlement] = deque()
        self._progress: dict[int, bytes] = {}
        self._worker = 0
        self._token = 0
        self._lease: Lease | None = None
        self._started = asyncio.Event()
        self._work = asyncio.Event()
        self._quiet = asyncio.Event()
        self._draining = False
        self._group = asyncio.TaskGroup()
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
                self._started.set()
                for name, service in self._config.upkeep.services(
                    self._store, self.wake, self._config.reap_interval_ns
                ):
                    self._group.create_task(service, name=name)
        finally:
            self._liveness.end()
            await self._pool.aclose()

    async def drain(self) -> None:
        """Claim no more, give back what did not start, and let what runs end, for a while."""
        self._draining = True
        for feeder in self._feeders.values():
            for claim in feeder.release():
                self._settle(verdict.release(claim))
        self._stir()
        if self._held:
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
        if not self._held and self._worker:
            self._liveness.end()
            try:
                await self._store.unregister(self._worker)
            except FairwayError as error:
                logger.warning("worker %d could not sign off: %s", self._worker, error)

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

    def look(self, queue: str) -> None:
        """Something may be ready in this queue."""
        if (feeder := self._feeders.get(queue)) is not None:
            feeder.lanes.replace(())
            feeder.stir()
            self._stir()

    def cancel(self, ids: Iterable[int], reason: str = "cancelled") -> None:
        """Stop these jobs, if they run here."""
        for id in ids:
            if (run := self._runs.get(id)) is not None and not run.cancelled:
                run.cancelled = True
                self._interrupt(run, reason)

    @property
    def running(self) -> int:
        return len(self._runs)

    # The exchange

    def _stir(self) -> None:
        self._work.set()

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon_threadsafe(call, *args)

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
        self._token = 0
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
        wants: list[Want] = []
        probe: list[str] = []
        looking: dict[str, Feeder] = {}
        for feeder in () if self._draining else self._feeders.values():
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
        settlements = [self._settled.popleft() for _ in range(min(len(self._settled), SETTLE_MAX))]
        if self._settled:
            self._stir()
        if not settlements and not wants and not probe:
            return
        worker = self._worker
        self._token += 1
        try:
            if self._progress:
                values, self._progress = self._progress, {}
                await self._store.progress(worker, values)
            out = await self._store.exchange(worker, self._token, settlements, wants, probe)
        except BaseException:
            # In doubt or not, they are settled again: what was committed is stale by then.
            if worker == self._worker:
                self._settled.extendleft(reversed(settlements))
            for feeder in looking.values():
                feeder.failed()
            raise
        self._take_in(worker, out, settlements, wants, looking)

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
            return  # the lease was lost meanwhile: what was claimed is others' now
        held = self._held
        for one in settlements:
            held.pop(one.claim.id, None)
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
                feeder.lanes.replace(())  # some gave less: the next look tells which have more
                feeder.stir()
            feeder.picked(claims[queue], now_ns, more=bool(lanes))
            if lanes:
                feeder.stir()
        for queue, wait_ns in out.held_back_ns.items():
            if queue in looking:
                looking[queue].hold_back(wait_ns, now_ns)
        self.wake(out.woken)
        if out.cancelling:
            self.cancel(out.cancelling)
        if out.ended:
            self._told(out.ended)
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
                feeder.finished(claim.id)
                cancel = verdict.of_cancel(claim, "cancelled")
                self._settle(cancel if claim.cancelling else _unknown(claim, kind))
                continue
            run = _Run(claim)
            self._runs[claim.id] = run
            run.task = self._group.create_task(self._perform(feeder, run, kind, step))

    async def _perform(self, feeder: Feeder, run: _Run, kind: Kind, step: StepCall) -> None:
        """Run one step of a job; whatever it does, its outcome is settled."""
        claim = run.claim
        state = None
        try:
            state = kind.decoder.decode(claim.state)
            if step.wants_context:
                run.context = Context(claim, state, self._note_progress)
            if not step.is_async:
                value = await self._in_thread(run, kind, step, state)
            elif kind.options.timeout_ns is None:
                value = await _call(kind, step, state, run.context)
            else:
                async with asyncio.timeout(kind.options.timeout_ns / 1e9):
                    value = await _call(kind, step, state, run.context)
            settlement = verdict.of_return(kind, claim, state, value, self._random)
        except asyncio.CancelledError as error:
            if not run.cancelled and run.task is not None and run.task.cancelling():
                raise  # the worker ends: its lease brings the job back
            settlement = self._interrupted(run, kind, error)
        except Cancelled as error:
            settlement = self._interrupted(run, kind, error)
        except TimeoutError as error:
            limit_ns = kind.options.timeout_ns
            said = f"took longer than {limit_ns / 1e9:g} s" if limit_ns else _said(error)
            settlement = verdict.of_error(kind, claim, error, said, self._random)
        except Exception as error:
            settlement = verdict.of_error(kind, claim, error, _said(error), self._random)
        self._end(feeder, run, settlement)

    async def _in_thread(self, run: _Run, kind: Kind, step: StepCall, state: Any) -> Any:
        """Run a synchronous step. It is asked to stop, not made to: its slot is busy until then."""
        timer = None
        if kind.options.timeout_ns is not None:
            timer = self._loop.call_later(kind.options.timeout_ns / 1e9, self._time_is_up, run)
        ended: asyncio.Future[Any] = self._loop.create_future()

        def tell(value: Any, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result((value, error))

        self._pool.submit(tell, _call, kind, step, state, run.context)
        try:
            value, error = await ended
        finally:
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
        if run.context is not None:
            stop_context(run.context, reason)
        kind = self._kinds.get((run.claim.kind, run.claim.version))
        step = kind.steps.get(run.claim.step) if kind is not None else None
        if run.task is not None and step is not None and step.is_async:
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
        feeder.finished(id)
        if self._held.get(id) != run.claim.token:
            return  # the lease was lost while it ran
        self._settle(settlement)
        if feeder.buffer:
            self._start(feeder)

    def _settle(self, settlement: Settlement) -> None:
        self._settled.append(settlement)
        self._work.set()

    def _note_progress(self, id: int, value: bytes) -> None:
        self._progress[id] = value

    # The lease

    def _beaten(self, lease: Lease, beat: Beat) -> None:
        if lease is self._lease:
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
        self._stir()


def _call(kind: Kind, step: StepCall, state: Any, context: Context[Any] | None) -> Any:
    """Call a step as it was written: a method of the state, or a function of its arguments."""
    if kind.is_machine:
        return step.call(state, context) if step.wants_context else step.call(state)
    arguments = {name: getattr(state, name) for name in state.__struct_fields__}
    return step.call(context, **arguments) if step.wants_context else step.call(**arguments)


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
    return "".join(traceback.format_exception(error, limit=-20)).strip()
