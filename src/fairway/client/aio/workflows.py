"""`client.workflows`: start runs of workflows on a running server, follow and steer them.

A thin shell over `workflow_calls`, where every request is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from fairway.client import workflow_calls as calls
from fairway.client.workflow_calls import RUNS_DEFAULT, RunWaiter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.client.aio.client import AsyncClient
    from fairway.client.workflow_calls import RunSummaries, ScheduleViews, WorkflowViews
    from fairway.wire.jobs import StatusName
    from fairway.wire.workflows import RunActionReply, RunView, StartReply, WorkflowView

T = TypeVar("T")


class AsyncRemoteWorkflows:
    """The workflows of a server, their runs and schedules.

    run = await client.workflows.start("nightly", {"day": "2030-01-31"})
    await client.workflows.wait(run.id, 600)
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> WorkflowViews:
        """Every workflow that the server declares."""
        reply = await self._client.call(calls.workflows())
        return reply.workflows

    async def get(self, workflow: str) -> WorkflowView:
        """One of them. Raises `NotFound`."""
        return calls.named(await self.list(), workflow)

    async def start(
        self,
        workflow: str,
        context: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        window_s: float = 0.0,
        delay_s: float = 0.0,
    ) -> StartReply:
        """Start a run, durable when this returns; `context` is added to the declared one.

        At most one run has the `key` at a time, and for `window_s` after it started. A context
        that a first task does not take is refused (`InvalidRequest`). A lost answer is
        `OutcomeUnknown`, unless there is a `key` with a `window_s` of a minute or more: then the
        client repeats itself safely.
        """
        return await self._client.call(calls.start(workflow, context, key, window_s, delay_s))

    async def runs(
        self, workflow: str, *, status: StatusName | None = None, limit: int = RUNS_DEFAULT
    ) -> RunSummaries:
        """The runs of a workflow, newest first, 200 at most."""
        reply = await self._client.call(calls.runs(workflow, status, limit))
        return reply.runs

    async def run(self, id: int, *, wait_ms: int = 0) -> RunView:
        """A run with its tasks, once it has ended or `wait_ms` are over."""
        return await self._client.call(calls.run(id, wait_ms))

    @overload
    async def wait(self, id: int, timeout_s: float | None = None, *, type: type[T]) -> T: ...
    @overload
    async def wait(self, id: int, timeout_s: float | None = None, *, type: Any = Any) -> Any: ...
    async def wait(self, id: int, timeout_s: float | None = None, *, type: Any = Any) -> Any:
        """What a run came to: its context. Raises `JobFailed`, or `TimeoutError` if it takes
        longer."""
        clock = self._client._exchange.clock
        waiter = RunWaiter(id, timeout_s, clock.now_ns())
        while True:
            run = await self._client.call(waiter.next_call(clock.now_ns()))
            if waiter.over(run, clock.now_ns()):
                return calls.result_of(run, type)

    async def pause(self, id: int) -> RunActionReply:
        """Start no more tasks of a run; what runs goes on. Raises `Conflict` if it has ended."""
        return await self._client.call(calls.steer(id, "pause"))

    async def resume(self, id: int) -> RunActionReply:
        """Let a paused run go on."""
        return await self._client.call(calls.steer(id, "resume"))

    async def cancel(self, id: int, *, reason: str = "cancelled") -> RunActionReply:
        """End a run and its tasks; those that run are told to stop, and why."""
        return await self._client.call(calls.steer(id, "cancel", reason))

    async def retry(self, id: int) -> RunActionReply:
        """Go on with a run that failed or was cancelled: what failed runs again, and what comes
        after. Raises `Conflict` if it is not such a run."""
        return await self._client.call(calls.steer(id, "retry"))

    async def schedules(self) -> ScheduleViews:
        """Every schedule, with what came of its latest times."""
        reply = await self._client.call(calls.schedules())
        return reply.schedules

    async def pause_schedule(self, name: str) -> None:
        """Stop a schedule from firing. Raises `NotFound`."""
        await self._client.call(calls.pause_schedule(name, True))

    async def resume_schedule(self, name: str) -> None:
        """Let a schedule fire again."""
        await self._client.call(calls.pause_schedule(name, False))
