"""`Jobs`: everything one can do with jobs, over one store; and, where asked, a worker beside it."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.errors import (
    Conflict,
    FairwayError,
    InvalidConfig,
    InvalidRequest,
    JobFailed,
    NotFound,
)
from fairway.jobs.attempts import ERROR_MAX
from fairway.jobs.job import CANCELLED, WORKFLOW, Filter, Limits, Status, distinct, line_of
from fairway.jobs.kinds import wrong_queue, wrong_text
from fairway.jobs.store import Ended
from fairway.jobs.times import TIME_MAX_NS, length_ns
from fairway.jobs.verdict import WALL_MAX_NS, storable
from fairway.kernel.part import OK, PartHealth
from fairway.masking import masked
from fairway.runtime.clock import clock_of
from fairway.runtime.words import brief
from fairway.wire.encoding import encode_given

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from fairway.jobs.attempts import JobAttempt
    from fairway.jobs.job import Enqueued, Job, NewJob, QueueState
    from fairway.jobs.kinds import Kind
    from fairway.jobs.moves import WaitReason
    from fairway.jobs.presence import KindState, WorkerState
    from fairway.jobs.store import CancelResult, JobStore, TopicCursor
    from fairway.jobs.worker import Worker

SECOND_NS = 1_000_000_000
BROWSED_MAX = 1_000_000
SILENT_NS = 5 * SECOND_NS
"""A store that has not answered a probe for so long is out of reach."""
POLL_NS = 50_000_000
POLL_MAX_NS = SECOND_NS
"""How often a result is asked for that another process will bring."""


class Kinds:
    """Every kind that was declared, by name and version."""

    def __init__(self) -> None:
        self.by_version: dict[tuple[str, int], Kind] = {}
        self.newest: dict[str, Kind] = {}

    def add(self, kind: Kind) -> None:
        if (kind.name, kind.version) in self.by_version:
            raise InvalidConfig(f"job {kind.name!r}, version {kind.version}, is declared twice")
        self.by_version[kind.name, kind.version] = kind
        newest = self.newest.get(kind.name)
        if newest is None or newest.version < kind.version:
            self.newest[kind.name] = kind

    def get(self, name: str) -> Kind:
        try:
            return self.newest[name]
        except KeyError:
            raise NotFound("job", name) from None


class Jobs:
    """Enqueue jobs, look at them and steer them."""

    name = "jobs"

    def __init__(
        self, store: JobStore, kinds: Kinds, *, check_room: Callable[[], None] | None = None
    ) -> None:
        """`check_room` raises `ReadOnly` while what is left of the disk is not for new jobs."""
        self.store = store
        self.kinds = kinds
        self.check_room = check_room or _there_is_room
        self._worker: Worker | None = None
        self._probed_ns: int | None = None
        self._out_of_reach: str | None = None
        self._waiting: dict[int, list[asyncio.Future[Ended]]] = {}

    def attach(self, worker: Worker) -> None:
        """A worker in this process: it is notified at once of what is enqueued here."""
        self._worker = worker

    async def probe(self) -> None:
        """Ask the store for anything at all. What came of it is what `health` reports."""
        self._probed_ns = clock_of().now_ns()
        try:
            await self.store.find(1)
        except FairwayError as error:
            self._out_of_reach = masked(str(error))
        except Exception as error:  # no store should, and none may end whoever only asks
            self._out_of_reach = type(error).__name__
        else:
            self._out_of_reach = None
        finally:
            self._probed_ns = None

    def health(self) -> PartHealth:
        """Degraded while the store is out of reach. Requests are welcome all the same: the store
        may be shared by all servers, and what needs no jobs is served."""
        reason = self._out_of_reach
        if self._probed_ns is not None:
            silent_ns = clock_of().now_ns() - self._probed_ns
            if silent_ns > SILENT_NS:
                reason = f"no answer for {silent_ns // SECOND_NS} s"
        if reason is None:
            return OK
        return PartHealth("degraded", f"the job store is out of reach: {reason}")

    async def enqueue(
        self, jobs: Sequence[NewJob], *, within: Any = None, cursor: TopicCursor | None = None
    ) -> list[Enqueued]:
        """Add jobs, all or none of them; durable when this returns.

        `within` a transaction of the caller they are added when they commit.
        """
        self.check_room()
        added = await self.store.enqueue(jobs, within=within, cursor=cursor)
        if within is None and self._worker is not None:
            several = distinct(jobs)
            self._worker.wake({line_of(job) for job in several if not job.delay_ns})
            for delay_ns in {job.delay_ns for job in several if job.delay_ns}:
                self._worker.expect(delay_ns)
        return added

    async def result(self, id: int, timeout_s: float | None = None) -> Any:
        """What a job came to. Raises `JobFailed`, or `TimeoutError` if it takes longer."""
        if timeout_s is not None:
            length_ns("timeout_s", timeout_s)
        _check_id(id)
        async with asyncio.timeout(timeout_s):
            ended = await self._wait_ended(id)
        if ended.status is not Status.DONE:
            raise JobFailed(id, ended.status.word, ended.error)
        return msgspec.json.decode(ended.result) if ended.result is not None else None

    async def _wait_ended(self, id: int) -> Ended:
        waiter: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, []).append(waiter)
        wait_ns = POLL_NS
        try:
            while True:
                if (ended := await self._ended(id)) is not None:
                    return ended
                done, _ = await asyncio.wait({waiter}, timeout=wait_ns / 1e9)
                if done:
                    return waiter.result()
                wait_ns = min(wait_ns * 2, POLL_MAX_NS)
        finally:
            waiting = self._waiting[id]
            waiting.remove(waiter)
            if not waiting:
                del self._waiting[id]

    async def _ended(self, id: int) -> Ended | None:
        job = await self.find(id)
        return Ended(id, job.status, job.result, job.error) if job.status.ended else None

    def on_ended(self, ended: Sequence[Ended]) -> None:
        """The worker of this process ended these jobs: answer those who wait for their results."""
        if self._waiting:
            for one in ended:
                for waiter in self._waiting.get(one.id, ()):
                    if not waiter.done():
                        waiter.set_result(one)

    async def signal(
        self, target: int | str, name: str, payload: Any = None, *, dedup: str | None = None
    ) -> bool:
        """Send a signal to a job, by id or by unique key. False if it had one of that dedup key.

        A key stands while its signal waits, and for `Upkeep.dedup_window_ns` after a step has dealt
        with it.

        Raises `NotFound` if there is no such job, or it has ended.
        """
        if wrong := wrong_text("name", name):
            raise InvalidRequest(wrong)
        _check("dedup", dedup)
        if isinstance(target, str):
            _check("key", target)
        elif not _may_be(target):
            raise NotFound("job", brief(target))
        encoded = encode_given(payload, "the payload of a signal")
        self.check_room()
        delivered = await self.store.signal(target, name, encoded, dedup=dedup)
        if delivered.job is None:
            raise NotFound("job", str(target))
        if delivered.woken is not None and self._worker is not None:
            self._worker.wake((delivered.woken,))
        return delivered.fresh

    async def cancel(self, *ids: int, reason: str = CANCELLED) -> CancelResult:
        """End jobs and their children; what runs is asked to stop, and why."""
        if not isinstance(reason, str):
            raise InvalidRequest(f"a reason is a string, not {brief(reason)}")
        reason = storable(reason[:ERROR_MAX])[:ERROR_MAX] or CANCELLED
        cancelled = await self.store.cancel(tuple(filter(_may_be, ids)), reason=reason)
        if self._worker is not None:
            self._worker.cancel(dict.fromkeys(cancelled.running, reason))
        return cancelled

    async def retry(self, *ids: int) -> list[int]:
        """Take failed, dead or cancelled jobs up again, where they stood; the ids it could.

        A run of a workflow knows by itself what to do again.
        """
        wanted = tuple(filter(_may_be, ids))
        jobs = [await self.store.find(id) for id in wanted]
        runs = {job.id for job in jobs if job is not None and job.kind.startswith(WORKFLOW)}
        again = []
        for anew, some in groupby(wanted, runs.__contains__):
            again += await self.store.retry(tuple(some), anew=anew)
        if self._worker is not None:
            jobs = [await self.store.find(id) for id in again]
            self._worker.wake(line_of(job) for job in jobs if job is not None)
        return again

    async def retry_one(self, id: int) -> None:
        """As `retry`. Raises `Conflict` if the job stays as it is, and `NotFound`."""
        job = await self.find(id)
        if not await self.retry(id):
            raise Conflict(
                f"job {id} is {job.status.word} and stays so: a job is retried once it has failed,"
                " died or was cancelled, if its key is not another's, no parent waits for it, and"
                " its own tasks have ended",
                code="job_not_retryable",
                detail={"status": job.status.word},
            )

    async def discard(self, *ids: int) -> list[int]:
        """Forget failed, dead or cancelled jobs: somebody has seen to them. The ids it could."""
        return await self.store.discard(tuple(filter(_may_be, ids)))

    async def find(self, id: int) -> Job:
        job = await self.store.find(id) if _may_be(id) else None
        if job is None:
            raise NotFound("job", brief(id))
        return job

    async def find_by_key(self, unique_key: str) -> Job:
        """The job that a unique key stands for."""
        _check("key", unique_key)
        job = await self.store.find_by_key(unique_key)
        if job is None:
            raise NotFound("job", unique_key)
        return job

    async def browse(self, filter: Filter | None = None) -> list[Job]:
        """Jobs, newest first. Raises `InvalidRequest` for a filter that makes no sense."""
        filter = Filter() if filter is None else filter
        if not isinstance(filter, Filter):
            raise InvalidRequest(f"jobs are chosen by a Filter, not {brief(filter)}")
        for what, text in (
            ("queue", filter.queue),
            ("kind", filter.kind),
            ("tenant", filter.tenant),
            ("trace", filter.trace),
        ):
            _check(what, text)
        if filter.status is not None and not isinstance(filter.status, Status):
            raise InvalidRequest(f"a status is a Status, not {brief(filter.status)}")
        for number in (filter.parent, filter.before):
            if number is not None:
                _check_id(number)
        if not _is_number(filter.limit) or not 0 < filter.limit <= BROWSED_MAX:
            raise InvalidRequest(f"a limit is 1 to {BROWSED_MAX:,}, not {brief(filter.limit)}")
        for at_ns in (filter.since_wall_ns, filter.until_wall_ns):
            if at_ns is not None and not (_is_number(at_ns) and 0 <= at_ns <= WALL_MAX_NS):
                raise InvalidRequest(f"a time is nanoseconds since 1970, not {brief(at_ns)}")
        if filter.parent is not None and not _may_be(filter.parent):
            return []
        if filter.before is not None and filter.before <= 0:
            return []
        if filter.before is not None and filter.before >= 2**63:
            filter = msgspec.structs.replace(filter, before=None)
        return await self.store.browse(filter)

    async def attempts(self, id: int) -> list[JobAttempt]:
        """The attempts of a job that are kept, oldest first, and the one under way."""
        await self.find(id)
        return await self.store.attempts(id)

    async def attempt_log(self, id: int, number: int) -> bytes | None:
        """The end of what an attempt logged, in UTF-8; None if it is not kept."""
        if not _is_number(number):
            raise InvalidRequest(f"an attempt is a whole number, not {brief(number)}")
        await self.find(id)
        return await self.store.attempt_log(id, number) if 0 < number < 2**31 else None

    async def why_waits(self, id: int) -> WaitReason | None:
        """Why a job waits, as it looks now; None if it does not."""
        await self.find(id)
        return await self.store.why_waits(id)

    async def workers(self) -> list[WorkerState]:
        """Every worker of the store, with what it offers and the time of its last heartbeat."""
        return await self.store.workers()

    async def known_kinds(self) -> list[KindState]:
        """Every kind that a worker of the store has known, with the schema of its arguments."""
        return await self.store.kinds()

    async def queues(self) -> list[QueueState]:
        return await self.store.queues()

    async def pause(self, queue: str) -> None:
        """Start nothing more from a queue; what runs goes on. Queues are paused one by one."""
        _check_queue(queue)
        await self.store.set_paused(queue, True)

    async def resume(self, queue: str) -> None:
        _check_queue(queue)
        await self.store.set_paused(queue, False)
        if self._worker is not None:
            self._worker.look(queue)

    async def limit(self, queue: str, limits: Limits) -> None:
        """What a queue may do over all workers together; the queue `*` is all queues."""
        if queue != "*":
            _check_queue(queue)
        if not isinstance(limits, Limits):
            raise InvalidRequest(f"limits are a Limits, not {brief(limits)}")
        if limits.concurrency == 0:  # a store may have it from earlier, so `Limits` can be so
            raise InvalidRequest(
                "concurrency is at least 1: pause a queue that is to start nothing"
            )
        await self.store.set_limits(queue, limits)
        if self._worker is not None:
            self._worker.limits_changed(queue)

    async def prune(self, older_than_ns: int, *, failed_older_than_ns: int | None = None) -> int:
        """Forget jobs that ended longer ago; how many. Failures by their own time, if given."""
        failed_ns = older_than_ns if failed_older_than_ns is None else failed_older_than_ns
        for age_ns in (older_than_ns, failed_ns):
            if not _is_number(age_ns) or not 0 <= age_ns <= TIME_MAX_NS:
                raise InvalidRequest(
                    f"an age is nanoseconds, 0 to a hundred years, not {brief(age_ns)}"
                )
        return await self.store.prune(older_than_ns, failed_older_than_ns=failed_older_than_ns)


def _there_is_room() -> None:
    pass


def _may_be(id: int) -> bool:
    """Whether a store could hold a job of that id at all. Raises `InvalidRequest`."""
    _check_id(id)
    return 0 < id < 2**63


def _check_id(id: object) -> None:
    if not _is_number(id):
        raise InvalidRequest(f"a job's id is a whole number, not {brief(id)}")


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(what: str, text: str | None) -> None:
    if text is not None and (wrong := wrong_text(what, text)):
        raise InvalidRequest(wrong)


def _check_queue(name: str) -> None:
    if wrong := wrong_queue(name):
        raise InvalidRequest(wrong)
