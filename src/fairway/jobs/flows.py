"""Workflows as jobs: one job carries a run, and each task is a child that reports by a signal.

The run's job wakes when a task ended, lets the pure machine in `workflow` decide, and commits the
new state together with the tasks to start. So a crash at any moment re-runs at most what had not
committed, on whichever worker comes next.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec
from msgspec import Struct

from fairway.errors import Conflict, Invalid, InvalidConfig, InvalidRequest, NotFound
from fairway.jobs import outcome, workflow
from fairway.jobs.clockwork import scheduled_context
from fairway.jobs.context import Context
from fairway.jobs.job import CANCELLED, WORKFLOW, Ending, Fate, Filter, NewJob, Status
from fairway.jobs.kinds import (
    Kind,
    Options,
    Order,
    StepCall,
    function_kind,
    name_of,
    options_of,
    wrong_queue,
    wrong_text,
)
from fairway.jobs.rules import TaskState, check_rule
from fairway.jobs.times import length_ns, time_ns, timeout_ns
from fairway.jobs.workflow import RunState, TaskEnded, Workflow, WorkflowTask
from fairway.runtime.clock import clock_of
from fairway.runtime.targets import is_hidden, target_of
from fairway.runtime.words import brief
from fairway.wire.encoding import encode_given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from fairway.jobs.engine import Jobs, Kinds
    from fairway.jobs.handles import JobHandle
    from fairway.jobs.job import Job
    from fairway.jobs.kinds import TaskOptions
    from fairway.jobs.rules import Rule
    from fairway.jobs.workflow import RunEvent, Step

F = TypeVar("F", bound="Callable[..., Any]")

QUEUE: Final = "workflows"
"""Where runs wait: apart from tasks, so that long tasks never keep a run from going on."""
RUN_PRIORITY: Final = 800
TASKS_MAX: Final = 10_000
"""Jobs of a run that are looked at: its tasks, those of earlier attempts included."""
DONE: Final = Status.DONE
_TASK: Final = "task"
_PAUSE: Final = "pause"
_RESUME: Final = "resume"
_CANCEL: Final = "cancel"
_ADVANCE: Final = "advance"


class RunJobState(Struct, omit_defaults=True):
    """What the job of a run keeps."""

    context: dict[str, Any]
    run: RunState | None = None
    deadline_wall_ns: int | None = None
    calling: bool = False
    """Whether all is over, and the callback is enqueued."""
    retries: int = 0
    """How often the run was retried by hand, as far as this state knows."""


class Flow:
    """A workflow that is being declared, and, once the app runs, a handle on its runs.

        nightly = app.workflow("nightly", cron="0 3 * * *")

        @nightly.task
        async def extract(day: str) -> dict: ...

        @nightly.task(after=extract)
        def load(rows: int) -> None: ...

    A task's parameters are taken from its context by name (`context` is all of it); what it
    returns, a dict or nothing, goes into the contexts of the tasks after it.
    """

    def __init__(
        self,
        jobs: Callable[[], Jobs],
        handle: Callable[[int, bool], JobHandle[Any]],
        name: str,
        *,
        version: int = 1,
        queue: str = "default",
        timeout_s: float | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or ":" in name or "." in name:
            raise InvalidConfig(
                f"a workflow's name is a string, not empty and without : or .: {brief(name)}"
            )
        if wrong := wrong_text("name", WORKFLOW + name) or wrong_queue(queue):
            raise InvalidConfig(f"workflow {brief(name)}: {wrong}")
        self.name = name
        self.version = version
        self._jobs = jobs
        self._handle = handle
        self._queue = queue
        self._timeout_ns = timeout_ns(timeout_s)
        self._tasks: list[WorkflowTask] = []
        self._kinds: dict[str, Kind] = {}
        self._arguments: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        self._callbacks: dict[Fate, Kind] = {}
        self._context = _declared_context(name, context)
        self._scheduled: list[Mapping[str, Any]] = []
        self._graph: Workflow | None = None
        self._declared = False

    def __repr__(self) -> str:
        return f"Flow({self.name!r})"

    # Declaring

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        after: Callable[..., Any] | str | Iterable[Callable[..., Any] | str] = (),
        rule: Rule | None = None,
        **options: Unpack[TaskOptions],
    ) -> Callable[[F], F]: ...
    def task(
        self,
        *functions: Any,
        name: str | None = None,
        after: Callable[..., Any] | str | Iterable[Callable[..., Any] | str] = (),
        rule: Rule | None = None,
        **options: Any,
    ) -> Any:
        """Declare a task; `after` names the tasks, or is their functions, that come before it.

        `rule` says whether it runs then (see `fairway.jobs.rules`). Options are those of a job:
        queue, priority, max_attempts, backoff, timeout, isolation.
        """

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            called = name_of(function, f"a task of workflow {self.name!r}", name)
            names = self._names(called, after)
            if rule is not None:
                check_rule(rule)
            options.setdefault("queue", self._queue)
            kind = task_kind(f"{self.name}.{called}", function, options_of(**options))
            if kind.options.isolation == "process":
                target_of(function, self._label(called))  # refused here if no process finds it
            if called in self._kinds:
                raise InvalidConfig(f"workflow {self.name!r}: two tasks are called {called!r}")
            self._kinds[called] = kind
            self._arguments[called] = task_arguments(function, f"{self.name}.{called}")
            self._tasks.append(WorkflowTask(called, names, rule))
            return function

        if len(functions) > 1:
            raise InvalidConfig(f"workflow {self.name!r}: tasks are declared one by one")
        return declare(*functions) if functions else declare

    def _names(self, task: str, after: Any) -> tuple[str, ...]:
        """The tasks that one comes after, which are given by names or functions."""
        if isinstance(after, str) or callable(after):
            after = (after,)
        try:
            return tuple(one if isinstance(one, str) else one.__name__ for one in after)
        except (TypeError, AttributeError):
            raise InvalidConfig(
                f"{self._label(task)} is after tasks, by their functions or names,"
                f" not {brief(after)}"
            ) from None

    def on_success(self, function: F) -> F:
        """Call this, as a job of its own, when a run is done. It changes nothing about the run."""
        self._callbacks[Fate.DONE] = self._callback(function, "on_success")
        return function

    def on_failure(self, function: F) -> F:
        """Call this, as a job of its own, when a run failed; `error` says why."""
        self._callbacks[Fate.FAILED] = self._callback(function, "on_failure")
        return function

    def _callback(self, function: Callable[..., Any], name: str) -> Kind:
        name_of(function, f"{name} of workflow {self.name!r}")
        return task_kind(f"{self.name}.{name}", function, Options(queue=self._queue))

    def _label(self, task: str) -> str:
        return f"task {task!r} of workflow {self.name!r}"

    def declare(self, kinds: Kinds) -> None:
        """Everything is declared: check the graph and make the kinds known. Idempotent."""
        if not self._declared:
            for name, kind in self._kinds.items():
                if kind.options.isolation == "process" and is_hidden(kind.declared):
                    raise InvalidConfig(
                        f"{self._label(name)}: isolation='process' finds its function by name, and"
                        f" {kind.declared.__qualname__!r} is something else in its module"
                    )
            for values in self._scheduled:
                try:
                    self.check(scheduled_context(0, values))
                except InvalidRequest as misfit:
                    raise InvalidConfig(f"the schedule of {misfit}") from None
            self._declared = True
            for kind in (*self._kinds.values(), *self._callbacks.values(), self._run_kind()):
                kinds.add(kind)

    @property
    def graph(self) -> Workflow:
        """The graph of tasks, checked. Raises `InvalidConfig` for one that cannot be run."""
        if self._graph is None:
            self._graph = Workflow(self.name, self._tasks, version=self.version)
        return self._graph

    @property
    def _structure_number(self) -> int:
        """The version of the run's kind: code of another structure does not touch the run."""
        return int(self.graph.structure[:7], 16)

    def _run_kind(self) -> Kind:
        step = StepCall(self._advance, is_async=True, wants_context=True)
        return Kind(
            WORKFLOW + self.name,
            self._structure_number,
            Options(queue=QUEUE, priority=RUN_PRIORITY),
            RunJobState,
            _ADVANCE,
            {_ADVANCE: step},
            msgspec.json.Decoder(RunJobState),
            True,
        )

    # Starting and looking

    def schedule_with(self, values: Mapping[str, Any] | None) -> None:
        """Runs are started by a schedule, with these values; checked once all is declared."""
        self._scheduled.append(_declared_context(self.name, values))

    def context(self, given: Mapping[str, Any] | None, now_wall_ns: int) -> dict[str, Any]:
        """The context of a run that somebody starts: what was declared, and what they give.

        It is what the schedule would give, if there is one, as of now; of several schedules that
        differ, what they have in common is what the workflow itself declares.
        """
        self._check_mapping(given)
        declared = self._context
        if self._scheduled and all(one == self._scheduled[0] for one in self._scheduled):
            declared = scheduled_context(now_wall_ns, {**declared, **self._scheduled[0]})
        elif self._scheduled:
            declared = scheduled_context(now_wall_ns, declared)
        return {**declared, **(given or {})}

    def check(self, context: dict[str, Any]) -> None:
        """Raise `InvalidRequest` if a task that would start with this context does not take it."""
        started = workflow.advance(
            self.graph, RunState.of(self.graph), workflow.RunStarted(context), 0
        ).start
        for one in started:
            try:
                self._arguments[one.task.name](one.context)
            except Invalid as misfit:
                raise InvalidRequest(f"workflow {self.name!r}: {misfit}") from None

    def order(self, context: Mapping[str, Any] | None = None, **given: Any) -> Order:
        """A run with this context, not enqueued."""
        self._check_mapping(context)
        run = RunJobState(dict(context or {}))
        state = encode_given(run, f"the context of workflow {self.name!r}")
        return Order(
            NewJob(
                kind=WORKFLOW + self.name,
                version=self._structure_number,
                state=state,
                step=_ADVANCE,
                queue=QUEUE,
                priority=RUN_PRIORITY,
                **given,
            )
        )

    def _check_mapping(self, context: object) -> None:
        if context is not None and not isinstance(context, Mapping):
            raise InvalidRequest(
                f"the context of workflow {self.name!r} is a mapping, not {brief(context)}"
            )

    async def start(
        self,
        context: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        window_s: float = 0.0,
        delay_s: float = 0.0,
        within: Any = None,
    ) -> JobHandle[dict[str, Any]]:
        """Start a run; durable when this returns. With `key`, at most one at a time.

        `context` is added to the one that was declared, with `scheduled_at_ms` as of now if the
        workflow has a schedule. Raises `InvalidRequest` if a first task does not take it.
        """
        unique = f"{WORKFLOW}{self.name}:{key}" if isinstance(key, str) else key
        if unique is not None and (wrong := wrong_text("key", unique)):
            raise InvalidRequest(f"workflow {self.name!r}: {wrong}")
        whole = self.context(context, clock_of().wall_ns())
        order = self.order(
            whole,
            unique_key=unique,
            window_ns=length_ns("window_s", window_s),
            delay_ns=max(0, time_ns("delay_s", delay_s)),
        )
        self.check(state_in(order.job.state).context)  # as JSON gives it back
        (added,) = await self._jobs().enqueue([order.job], within=within)
        return self._handle(added.id, added.fresh)

    async def pause(self, run: int) -> None:
        """Start no more tasks of a run; what runs goes on, and its end is noted.

        Raises `Conflict` if it has ended, and `NotFound` if there is none.
        """
        await steer(self._jobs(), run, _PAUSE)

    async def resume(self, run: int) -> None:
        """Let a paused run go on. Raises as `pause` does."""
        await steer(self._jobs(), run, _RESUME)

    async def cancel(self, run: int, reason: str = CANCELLED) -> None:
        """End a run and its tasks. Raises as `pause` does."""
        await steer(self._jobs(), run, _CANCEL, reason)

    async def retry(self, run: int) -> None:
        """Go on with a run that failed or was cancelled: what failed, or had not ended, runs again.

        So does what comes after it; all other tasks keep their outputs. Raises `Conflict` for a run
        that did not end so, or whose tasks are still being stopped.
        """
        await self._jobs().retry_one(run)

    # The run

    async def _advance(self, run: RunJobState, ctx: Context[RunJobState]) -> outcome.Outcome:
        """One step of a run: take in what happened, and go on."""
        again = run.retries != ctx.retries
        if run.calling and not again:
            return self._over(run)
        state = run.run
        start: list[workflow.TaskStart] = []
        events: list[RunEvent] = []
        if state is None:
            events.append(workflow.RunStarted(run.context))
        elif again:
            state = await self._with_late_endings(ctx.id, state)
            events.append(workflow.RunRetried())
        if (state is None or again) and self._timeout_ns is not None:
            run.deadline_wall_ns = ctx.wall_ns + self._timeout_ns
        state = state or RunState.of(self.graph)
        run.retries = ctx.retries
        run.calling = False
        for signal in ctx.raw_signals:
            if (event := _event_of(signal.name, signal.payload)) is not None:
                events.append(event)
        for event in events:
            step: Step = workflow.advance(self.graph, state, event, ctx.wall_ns)
            state = step.state
            start += step.start
        run.run = state
        deadline_ns = run.deadline_wall_ns
        if state.outcome is None and deadline_ns is not None and ctx.wall_ns >= deadline_ns:
            late = workflow.RunCancelled("the run took too long")
            run.run = workflow.advance(self.graph, state, late, ctx.wall_ns).state
            await self._stop_tasks(ctx.id)
            allowed = "" if self._timeout_ns is None else f" than {self._timeout_ns / 1e9:g} s"
            return outcome.Stopped(f"took longer{allowed}")
        if state.outcome is not None:
            callback = self._callbacks.get(state.outcome.status)
            if callback is None:
                return self._over(run)
            run.calling = True
            context = {**state.outcome.context, "error": state.outcome.error}
            # It is enqueued once, with this commit; the run does not wait for it.
            return outcome.Next(_ADVANCE, (Order(callback.job({"context": context})),))
        return outcome.Spawn(
            tuple(self._child(one, run.retries) for one in start),
            _ADVANCE,
            (
                _PAUSE,
                _RESUME,
                *(
                    _report(name, run.retries)
                    for name, task in state.tasks.items()
                    if task.state is TaskState.RUNNING
                ),
            ),
            max(1, deadline_ns - ctx.wall_ns) if deadline_ns is not None else 0,
        )

    def _over(self, run: RunJobState) -> outcome.Outcome:
        assert run.run is not None
        ended = run.run.outcome
        assert ended is not None
        if ended.status is Fate.DONE:
            return outcome.Done(ended.context)
        return outcome.Stopped(ended.error or ended.status.value)

    def _child(self, start: workflow.TaskStart, retries: int) -> Order:
        name = start.task.name
        given = {"context": start.context}
        return Order(self._kinds[name].job(given, notify=_report(name, retries)))

    async def _with_late_endings(self, run: int, state: RunState) -> RunState:
        """The state of a run that was cancelled, with what its tasks came to after that.

        What they start now is not started: they are of an attempt that is over.
        """
        children = await self._jobs().browse(Filter(parent=run, limit=TASKS_MAX))
        newest = {child.kind.removeprefix(f"{self.name}."): child for child in reversed(children)}
        for name, task in state.tasks.items():
            child = newest.get(name)
            if task.state is TaskState.RUNNING and child is not None and child.status is DONE:
                ending = Ending(child.id, DONE.word, msgspec.Raw(child.result or b"null"))
                ended_ns = child.finished_wall_ns or 0
                event = TaskEnded.of(name, ending)
                state = workflow.advance(self.graph, state, event, ended_ns).state
        return state

    async def _stop_tasks(self, run: int) -> None:
        jobs = self._jobs()
        children = await jobs.browse(Filter(parent=run, limit=TASKS_MAX))
        await jobs.cancel(*(job.id for job in children if not job.status.ended))


def _declared_context(flow: str, context: Mapping[str, Any] | None) -> dict[str, Any]:
    """A context that is declared. Raises `InvalidConfig` for one that runs could not have."""
    if context is not None and not isinstance(context, Mapping):
        raise InvalidConfig(f"the context of workflow {flow!r} is a mapping, not {brief(context)}")
    try:
        encode_given(context, f"the context of workflow {flow!r}")
    except InvalidRequest as wrong:
        raise InvalidConfig(str(wrong)) from None
    return dict(context or {})


def triggering(function: Callable[..., Any], flow: Flow) -> Callable[..., Any]:
    """A job that asks `function` for a context and starts a run with it, if it gives one."""

    async def ask() -> int | None:
        context = function()
        if inspect.isawaitable(context):
            context = await context
        if context is None:
            return None
        digest = sha256(msgspec.json.encode(context, order="sorted")).hexdigest()[:32]
        return (await flow.start(context, key=f"trigger:{digest}")).id

    return ask


async def steer(jobs: Jobs, run: int, action: str, reason: str = CANCELLED) -> None:
    """Pause, resume or cancel a run. Raises `Conflict` if it has ended, and `NotFound`.

    To cancel one that was cancelled is no error: it is as was asked for.
    """
    job = await jobs.find(run)
    state_of(job)
    if not job.status.ended:
        if action == _CANCEL:
            cancelled = await jobs.cancel(run, reason=reason)
            if run in (*cancelled.ended, *cancelled.running):
                return
        else:
            try:
                await jobs.signal(run, action)
            except NotFound:
                pass  # it ended just now
            else:
                return
        job = await jobs.find(run)
    if action == _CANCEL and job.status is Status.CANCELLED:
        return
    raise Conflict(
        f"run {run} had ended already: {job.status.word}",
        code="job_ended",
        detail={"status": job.status.word},
    )


def state_in(stored: bytes) -> RunJobState:
    return msgspec.json.decode(stored, type=RunJobState)


def state_of(job: Job) -> RunJobState:
    """What the job of a run keeps, as it stands. Raises `Conflict` for a job that is none."""
    if not job.kind.startswith(WORKFLOW):
        raise Conflict(f"job {job.id} is no run of a workflow", code="not_a_run")
    run = state_in(job.state)
    if job.status is Status.CANCELLED and run.run is not None and run.run.outcome is None:
        # Its job was cancelled: no step of the run was there to note what that means for its tasks.
        run.run = workflow.cancelled(run.run, job.finished_wall_ns or job.enqueued_wall_ns)
    return run


def drawn(flows: Mapping[str, Flow], job: Job) -> str:
    """A run as a tree for a terminal."""
    name = job.kind.removeprefix(WORKFLOW)
    if (flow := flows.get(name)) is None:
        raise NotFound("workflow", name)
    run = state_of(job)
    state = run.run or RunState.of(flow.graph)
    if not state.fits(flow.graph):
        lines = [f"{name} (of another structure than the code here) {job.status.word}"]
        lines += [f"   {task.state.value:<9} {at}" for at, task in state.tasks.items()]
        return "\n".join(lines)
    return workflow.tree(flow.graph, state)


def _event_of(name: str, payload: bytes) -> RunEvent | None:
    if name == _PAUSE:
        return workflow.RunPaused()
    if name == _RESUME:
        return workflow.RunResumed()
    if name.startswith(_TASK):
        ending = msgspec.json.decode(payload, type=Ending)
        return TaskEnded.of(name.partition(":")[2], ending)
    return None


def _report(task: str, retries: int) -> str:
    """The signal by which a task notifies its run that it ended.

    Each attempt of a run waits for signals of its own: what an earlier one started is ignored.
    """
    return f"{_TASK}{retries or ''}:{task}"


def task_arguments(
    function: Callable[..., Any], name: str
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What a task's function is given of a context. Raises `Invalid` if that does not fit."""
    wanted = function_kind(function, name, 1, Options()).arguments
    wants = wanted.__struct_fields__
    whole = wants == ("context",)

    def arguments(context: dict[str, Any]) -> dict[str, Any]:
        if whole:
            return {"context": context}
        chosen = {name: context[name] for name in wants if name in context}
        if "context" in wants:
            chosen["context"] = context
        try:
            state = msgspec.convert(chosen, wanted)
        except msgspec.ValidationError as error:
            raise Invalid(f"task {name!r}: its context does not fit: {error}") from None
        return {field: getattr(state, field) for field in wants}

    return arguments


def task_kind(name: str, function: Callable[..., Any], options: Options) -> Kind:
    """The kind of a task: its job is given the whole context, the function what it asks for."""
    inner = function_kind(function, name, 1, options)
    step = inner.steps[inner.initial]
    arguments = task_arguments(function, name)

    if step.is_async:

        async def run(ctx: Context[Any], context: dict[str, Any]) -> Any:
            try:
                given = arguments(context)
            except Invalid as misfit:
                return outcome.Stopped(str(misfit))  # it will not fit better the next time
            return await (step.call(ctx, **given) if step.wants_context else step.call(**given))

    else:

        def run(ctx: Context[Any], context: dict[str, Any]) -> Any:  # type: ignore[misc]
            try:
                given = arguments(context)
            except Invalid as misfit:
                return outcome.Stopped(str(misfit))
            return step.call(ctx, **given) if step.wants_context else step.call(**given)

    assert inspect.iscoroutinefunction(run) == step.is_async
    run.__annotations__ = {"ctx": Context, "context": dict[str, Any]}
    kind = function_kind(run, name, 1, options)
    return dataclasses.replace(kind, declared=function, is_task=True)
