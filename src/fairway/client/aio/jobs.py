"""`client.jobs`: enqueue jobs on a running server, follow and steer them.

A thin shell over `job_calls`, where every request is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from fairway.client import job_calls as calls
from fairway.client.job_calls import JobWaiter, result_of
from fairway.wire.jobs import PAGE_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from typing import Unpack

    from fairway.client.aio.client import AsyncClient
    from fairway.client.job_calls import (
        Arguments,
        EnqueuedList,
        EnqueueOptions,
        JobFilter,
        QueueViews,
    )
    from fairway.wire.jobs import CancelReply, EnqueuedJob, JobOrder, JobSummary, JobView, QueueView

T = TypeVar("T")


class AsyncRemoteJobs:
    """The jobs of a server.

    await client.jobs.enqueue("send_receipt", {"id": 7}, queue="mail", key="receipt-7")
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @staticmethod
    def order(kind: str, args: Arguments = None, **options: Unpack[EnqueueOptions]) -> JobOrder:
        """A job with these arguments, not enqueued: for `enqueue_many`.

        `args` are the arguments of a function by name, or the state of a machine. `delay_s` or
        `at` start it later; `key` makes it unique, for at least `window_s`; `version` and `step`
        are for a kind that the server does not declare.
        """
        return calls.order(kind, args, options)

    async def enqueue(
        self, kind: str, args: Arguments = None, **options: Unpack[EnqueueOptions]
    ) -> EnqueuedJob:
        """Enqueue one; durable when this returns. Options are those of `order`.

        If its kind is declared by the server, arguments that do not fit are refused by name
        (`InvalidRequest`). A lost answer is `OutcomeUnknown`, unless it has a `key` with a
        `window_s` of a minute or more: then the client repeats itself safely.
        """
        made = await self.enqueue_many([calls.order(kind, args, options)])
        return made[0]

    async def enqueue_many(self, orders: Iterable[JobOrder]) -> EnqueuedList:
        """Enqueue up to 1,000 jobs, all or none of them."""
        reply = await self._client.call(calls.enqueue(orders))
        return reply.jobs

    async def get(self, id: int, *, wait_ms: int = 0) -> JobView:
        """Everything known of a job, once it has ended or `wait_ms` are over."""
        return await self._client.call(calls.get(id, wait_ms))

    @overload
    async def wait(self, id: int, timeout_s: float | None = None, *, type: type[T]) -> T: ...
    @overload
    async def wait(self, id: int, timeout_s: float | None = None, *, type: Any = Any) -> Any: ...
    async def wait(self, id: int, timeout_s: float | None = None, *, type: Any = Any) -> Any:
        """What a job came to. Raises `JobFailed`, or `TimeoutError` if it takes longer."""
        clock = self._client._exchange.clock
        waiter = JobWaiter(id, timeout_s, clock.now_ns())
        while True:
            job = await self._client.call(waiter.next_call(clock.now_ns()))
            if waiter.over(job, clock.now_ns()):
                return result_of(job, type)

    async def list(
        self, *, page_size: int = PAGE_MAX, **filter: Unpack[JobFilter]
    ) -> AsyncIterator[JobSummary]:
        """Jobs, newest first: by `queue`, `kind`, `status`, `tenant`, `parent`, or all of them."""
        cursor: str | None = None
        while True:
            page = await self._client.call(calls.page(filter, page_size, cursor))
            for job in page.jobs:
                yield job
            if not (cursor := page.next_cursor or None):
                return

    async def signal(
        self, target: int | str, name: str, payload: Any = None, *, dedup: str | None = None
    ) -> bool:
        """Send a signal to a job, by id or by unique key. False if it had one of that dedup key.

        Raises `Conflict` if the job has ended.
        """
        reply = await self._client.call(calls.signal(target, name, payload, dedup))
        return reply.fresh

    async def cancel(self, id: int, *, reason: str = "cancelled") -> CancelReply:
        """End a job and its children; what runs is told to stop."""
        return await self._client.call(calls.cancel(id, reason))

    async def retry(self, id: int) -> None:
        """Make a failed, dead or cancelled job ready again. Raises `Conflict` if it is not one."""
        await self._client.call(calls.retry(id))

    async def queues(self) -> QueueViews:
        reply = await self._client.call(calls.queues())
        return reply.queues

    async def queue(self, name: str) -> QueueView:
        return await self._client.call(calls.queue(name))

    async def pause(self, queue: str) -> QueueView:
        """Start nothing more from a queue; what runs goes on."""
        return await self._client.call(calls.pause(queue, True))

    async def resume(self, queue: str) -> QueueView:
        return await self._client.call(calls.pause(queue, False))

    async def limit(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
        burst: int = 1,
    ) -> QueueView:
        """What a queue may do over all workers together; the queue `*` is all queues.

        What is not given is no limit.
        """
        return await self._client.call(calls.limit(queue, concurrency, rate_per_s, burst))

    async def prune(self, older_than_s: float, *, failed_older_than_s: float | None = None) -> int:
        """Forget jobs that ended longer ago; how many. Failures by their own time, if given."""
        reply = await self._client.call(calls.prune(older_than_s, failed_older_than_s))
        return reply.pruned
