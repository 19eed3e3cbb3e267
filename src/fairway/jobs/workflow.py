"""Workflows: a graph of tasks, and the pure machine that takes one run of it from start to end.

`advance` takes what happened and returns the tasks to start; whoever runs it keeps the new state
and starts them in one commit. Nothing here waits, retries or knows what a task does.

* **Dependencies say after.** A task is looked at once all tasks in its `after` have ended.
* **The rule says whether.** Without one, every dependency must be done; one that failed or was
  skipped skips the task, and so on down. A rule (see `rules`) replaces that. `always()` runs
  whatever came before. If it does not hold the task is skipped, which is an end like any other.
* **Context flows along.** A task's input is the run's context with the outputs of all tasks before
  it merged in. A task overrides what it has itself seen; between tasks that did not see each other
  the one that is later in `after` wins. So a value that a branch merely passed on never undoes
  what another branch wrote.
* **A failure is handled** if a task ran whose rule names it (`failed("load")`). A run with a
  failure that nothing handled fails, once all its tasks have ended. `always()` handles nothing.
* **A run that ended badly may be retried.** What failed and was not handled, or was cancelled, runs
  again, and whatever comes after it is decided again. All other tasks keep their outputs.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fairway.errors import InvalidConfig
from fairway.jobs.job import Ending, Fate, Status, last_line
from fairway.jobs.rules import (
    FAILURES,
    Rule,
    TaskState,
    WorkflowContext,
    handles,
    holds,
    named,
    rule_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOVES: Final = MappingProxyType(
    {
        TaskState.PENDING: {
            TaskState.RUNNING: "dependencies ended, rule holds",
            TaskState.SKIPPED: "dependencies ended, rule does not hold",
            TaskState.CANCELLED: "run cancelled",
        },
        TaskState.RUNNING: {
            TaskState.DONE: "done",
            TaskState.FAILED: "failed for good",
            TaskState.CANCELLED: "task or run cancelled",
            TaskState.PENDING: "cancelled run retried",
        },
        TaskState.DONE: {TaskState.PENDING: "run retried, after one that failed"},
        TaskState.FAILED: {TaskState.PENDING: "run retried"},
        TaskState.SKIPPED: {TaskState.PENDING: "run retried, after one that failed"},
        TaskState.CANCELLED: {TaskState.PENDING: "run retried"},
    }
)
"""From each state, where a task may go and why. Nothing else ever happens to one."""


class WorkflowTask(Struct, frozen=True):
    """One task of a workflow. What is None here is left to the job that carries it out."""

    name: str
    after: tuple[str, ...] = ()
    """The tasks that must have ended before. Later ones win where outputs share a key."""
    rule: Rule | None = None
    """Whether it runs then; without one, if all of `after` are done."""
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout_ns: int | None = None
    """How long one attempt may take."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidConfig("a workflow task needs a name")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise InvalidConfig(f"task {self.name!r}: max_attempts must be at least 1")
        if self.timeout_ns is not None and self.timeout_ns < 1:
            raise InvalidConfig(f"task {self.name!r}: timeout_ns must be positive")


class Workflow:
    """A named graph of tasks. Whatever is wrong with it is said here, when it is built."""

    def __init__(self, name: str, tasks: Iterable[WorkflowTask], *, version: int = 1) -> None:
        self.name = name
        self.version = version
        self.tasks = tuple(tasks)
        self._by_name: dict[str, WorkflowTask] = {}
        for task in self.tasks:
            if task.name in self._by_name:
                raise self._wrong(f"two tasks are called {task.name!r}")
            self._by_name[task.name] = task
        self._dependents: dict[str, list[str]] = {task.name: [] for task in self.tasks}
        self._link()
        self._refuse_cycles()
        self._check_rules()
        self.structure = self._hash()
        """A hash of names, dependencies and rules: runs of one structure may be continued by any
        workflow that has it. Queues, attempts and timeouts may change in between."""

    def __getitem__(self, name: str) -> WorkflowTask:
        return self._by_name[name]

    def dependents(self, name: str) -> Sequence[str]:
        """The tasks that come directly after one."""
        return self._dependents[name]

    def before(self, *names: str) -> list[str]:
        """These tasks and all that come before them, in the order in which their outputs merge."""
        seen: set[str] = set()
        order: list[str] = []
        # Depth first, each task after those in its `after`. A name is met twice: on the way in,
        # and, with its dependencies in order, on the way out.
        stack = [(name, False) for name in reversed(names)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack.extend((other, False) for other in reversed(self[name].after))
        return order

    def _wrong(self, why: str) -> InvalidConfig:
        return InvalidConfig(f"workflow {self.name!r}: {why}")

    def _link(self) -> None:
        if not self.tasks:
            raise self._wrong("it has no tasks")
        for task in self.tasks:
            for other in task.after:
                if other not in self._by_name:
                    raise self._wrong(f"task {task.name!r} is after {other!r}, which is not there")
                if task.name in self._dependents[other]:
                    raise self._wrong(f"task {task.name!r} is after {other!r} twice")
                self._dependents[other].append(task.name)

    def _refuse_cycles(self) -> None:
        waits_for = {task.name: len(task.after) for task in self.tasks}
        free = [name for name, count in waits_for.items() if not count]
        while free:
            name = free.pop()
            del waits_for[name]
            for other in self._dependents[name]:
                waits_for[other] -= 1
                if not waits_for[other]:
                    free.append(other)
        if not waits_for:
            return
        # What is left waits for something that is left: following that leads round a cycle.
        path = [next(iter(waits_for))]
        while path[-1] not in path[:-1]:
            path.append(next(other for other in self[path[-1]].after if other in waits_for))
        cycle = path[path.index(path[-1]) :]
        raise self._wrong(f"tasks wait for each other: {' after '.join(cycle)}")

    def _check_rules(self) -> None:
        for task in self.tasks:
            for other in named(task.rule) if task.rule is not None else ():
                if other not in self._by_name:
                    raise self._wrong(
                        f"the rule of task {task.name!r} names {other!r}, which is not there"
                    )
                # How a task ended is known to those that come after it and to nobody else.
                if other not in task.after and other not in self.before(*task.after):
                    raise self._wrong(
                        f"the rule of task {task.name!r} names {other!r}, which it is not after"
                    )

    def _hash(self) -> str:
        parts = [(task.name, task.after, task.rule) for task in self.tasks]
        return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


class TaskRun(Struct, frozen=True, omit_defaults=True):
    """How one task of a run stands."""

    state: TaskState = TaskState.PENDING
    output: WorkflowContext | None = None
    error: str | None = None
    started_wall_ns: int | None = None
    """When the run started it; None if it never did, or did so under a release that did not say."""
    ended_wall_ns: int | None = None
    """When the run took in how it ended, skipped it or was cancelled."""


class RunOutcome(Struct, frozen=True, omit_defaults=True):
    """How a run ended."""

    status: Fate
    """Done, failed or cancelled: what the job that carries the run is settled with."""
    context: WorkflowContext
    """The run's context with the outputs of all its tasks, merged in the order they have."""
    error: str | None = None


class RunState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a workflow, as it is kept between events."""

    structure: str
    """What it is a run of: `Workflow.structure`."""
    tasks: dict[str, TaskRun]
    context: WorkflowContext | None = None
    """What it was started with; None until then."""
    paused: bool = False
    outcome: RunOutcome | None = None

    @classmethod
    def of(cls, workflow: Workflow) -> RunState:
        """A run that has not begun."""
        tasks = {task.name: TaskRun() for task in workflow.tasks}
        return cls(structure=workflow.structure, tasks=tasks)

    def fits(self, workflow: Workflow) -> bool:
        """Whether `workflow` can carry this run on, or has changed too much since it began."""
        return self.structure == workflow.structure


class RunStarted(Struct, frozen=True, tag="started"):
    """The run begins, with this context."""

    context: WorkflowContext


class TaskEnded(Struct, frozen=True, tag="task_ended"):
    """A task's job ended: done (perhaps with an output), failed, or cancelled."""

    name: str
    status: TaskState
    output: WorkflowContext | None = None
    error: str | None = None

    @classmethod
    def of(cls, name: str, ending: Ending) -> TaskEnded:
        """From the signal that the task's job sent when it ended.

        A task returns an object or nothing; anything else has no place in a context and fails it.
        """
        if ending.status == Status.DONE.word:
            output: Any = msgspec.json.decode(ending.result)
            if output is None or isinstance(output, dict):
                return cls(name, TaskState.DONE, output)
            kind = type(output).__name__
            return cls(name, TaskState.FAILED, None, f"it returned a {kind}, not a dict or None")
        if ending.status == Status.CANCELLED.word:
            return cls(name, TaskState.CANCELLED, None, ending.error)
        return cls(name, TaskState.FAILED, None, ending.error)


class RunPaused(Struct, frozen=True, tag="paused"):
    """Nothing more starts. What runs goes on, and its end is noted."""


class RunResumed(Struct, frozen=True, tag="resumed"):
    """What became ready meanwhile starts."""


class RunCancelled(Struct, frozen=True, tag="cancelled"):
    """The run ends now: what has not ended is cancelled."""

    reason: str = "cancelled"


class RunRetried(Struct, frozen=True, tag="retried"):
    """The run failed or was cancelled, none of its tasks is at work any more, and it goes on."""


RunEvent: TypeAlias = RunStarted | TaskEnded | RunPaused | RunResumed | RunCancelled | RunRetried


class TaskStart(NamedTuple):
    """A task to start, and what to start it with."""

    task: WorkflowTask
    context: WorkflowContext


class Step(NamedTuple):
    """What came of an event."""

    state: RunState
    start: tuple[TaskStart, ...] = ()
    """In the order in which the workflow declares them."""
    stop: tuple[str, ...] = ()
    """Tasks that ran when the run was cancelled; what they report from now on changes nothing."""
    finished: RunOutcome | None = None
    """Set by the event that ended the run and by no other; `state.outcome` keeps it."""


def advance(workflow: Workflow, state: RunState, event: RunEvent, now_ns: int) -> Step:
    """What to do about an event, which is noted as of `now_ns`, a wall time.

    An event that says nothing new (a task that has ended, a start of what has started, anything
    but a retry after the end) gives back the same state and nothing to do, so events may be
    repeated. A retry may not: it says that whatever ran before is over.
    """
    assert state.fits(workflow), f"a run of {state.structure}, not of {workflow.structure}"
    if isinstance(event, RunRetried):
        return _retry(workflow, state, now_ns)
    if state.outcome is not None:
        return Step(state)
    match event:
        case RunStarted(context) if state.context is None:
            return _settle(workflow, replace(state, context=context), state.tasks, now_ns)
        case TaskEnded(name) if _runs(state, name):
            assert event.status in MOVES[TaskState.RUNNING], event.status
            output = event.output if event.status is TaskState.DONE else None
            ended = TaskRun(
                event.status, output, event.error, state.tasks[name].started_wall_ns, now_ns
            )
            state = replace(state, tasks={**state.tasks, name: ended})
            return _settle(workflow, state, workflow.dependents(name), now_ns)
        case RunPaused() if not state.paused:
            return Step(replace(state, paused=True))
        case RunResumed() if state.paused:
            return _settle(workflow, replace(state, paused=False), state.tasks, now_ns)
        case RunCancelled(reason):
            return _cancel(workflow, state, reason, now_ns)
    return Step(state)


def input_of(workflow: Workflow, state: RunState, name: str) -> WorkflowContext:
    """What a task is started with. It stays the same once all tasks before it have ended."""
    return _merged(state, workflow.before(*workflow[name].after))


def check(workflow: Workflow, state: RunState) -> None:
    """Assert every invariant."""
    assert state.fits(workflow)
    assert list(state.tasks) == [task.name for task in workflow.tasks]
    for task in workflow.tasks:
        run = state.tasks[task.name]
        if run.state not in (TaskState.PENDING, TaskState.CANCELLED):
            assert state.context is not None
            assert all(state.tasks[other].state.ended for other in task.after), task.name
        assert run.output is None or run.state is TaskState.DONE
        assert run.started_wall_ns is None or run.state is not TaskState.PENDING
        assert run.ended_wall_ns is None or run.state.ended
    over = all(run.state.ended for run in state.tasks.values())
    assert over == (state.outcome is not None)


def _runs(state: RunState, name: str) -> bool:
    return name in state.tasks and state.tasks[name].state is TaskState.RUNNING


def _settle(workflow: Workflow, state: RunState, changed: Iterable[str], now_ns: int) -> Step:
    """Decide for the tasks that may have become ready, and for those that a skip makes ready."""
    tasks = dict(state.tasks)
    state = replace(state, tasks=tasks)
    start: list[str] = []
    open_names = deque(changed if state.context is not None and not state.paused else ())
    while open_names:
        name = open_names.popleft()
        if tasks[name].state is not TaskState.PENDING:
            continue
        if not all(tasks[other].state.ended for other in workflow[name].after):
            continue
        if _shall_run(workflow, state, name):
            tasks[name] = TaskRun(TaskState.RUNNING, started_wall_ns=now_ns)
            start.append(name)
        else:
            tasks[name] = TaskRun(TaskState.SKIPPED, ended_wall_ns=now_ns)
            open_names.extend(workflow.dependents(name))
    if all(run.state.ended for run in tasks.values()):
        outcome = _outcome(workflow, state)
        return Step(replace(state, outcome=outcome), finished=outcome)
    ready = set(start)
    return Step(
        state,
        tuple(
            TaskStart(task, input_of(workflow, state, task.name))
            for task in workflow.tasks
            if task.name in ready
        ),
    )


def _shall_run(workflow: Workflow, state: RunState, name: str) -> bool:
    task = workflow[name]
    if task.rule is None:
        return all(state.tasks[other].state is TaskState.DONE for other in task.after)
    return holds(
        task.rule,
        lambda other: state.tasks[other].state,
        lambda: input_of(workflow, state, name),
    )


def _cancel(workflow: Workflow, state: RunState, reason: str, now_ns: int) -> Step:
    stop = tuple(name for name in state.tasks if _runs(state, name))
    state = cancelled(state, now_ns)
    outcome = RunOutcome(Fate.CANCELLED, _merged(state, _all(workflow)), reason)
    return Step(replace(state, outcome=outcome), stop=stop, finished=outcome)


def cancelled(state: RunState, now_ns: int) -> RunState:
    """As `state`, with every task cancelled that has not ended."""
    tasks = {
        name: run
        if run.state.ended
        else replace(run, state=TaskState.CANCELLED, ended_wall_ns=now_ns)
        for name, run in state.tasks.items()
    }
    return replace(state, tasks=tasks)


def _retry(workflow: Workflow, state: RunState, now_ns: int) -> Step:
    if state.context is None or (state.outcome and state.outcome.status is Fate.DONE):
        return Step(state)
    again = {*_unhandled(workflow, state), *(name for name in state.tasks if _runs(state, name))}
    following = deque(again)
    while following:
        fresh = set(workflow.dependents(following.popleft())) - again
        again |= fresh
        following.extend(fresh)
    tasks = {name: TaskRun() if name in again else run for name, run in state.tasks.items()}
    state = replace(state, tasks=tasks, paused=False, outcome=None)
    return _settle(workflow, state, tasks, now_ns)


def _unhandled(workflow: Workflow, state: RunState) -> list[str]:
    """The tasks that failed, and no task that ran, or may yet run, is there because of it."""
    handled = {
        failure
        for task in workflow.tasks
        if task.rule is not None and state.tasks[task.name].state is not TaskState.SKIPPED
        for failure in handles(task.rule)
    }
    return [
        name for name, run in state.tasks.items() if run.state in FAILURES and name not in handled
    ]


def _outcome(workflow: Workflow, state: RunState) -> RunOutcome:
    context = _merged(state, _all(workflow))
    bad = _unhandled(workflow, state)
    if not bad:
        return RunOutcome(Fate.DONE, context)
    first = state.tasks[bad[0]]
    error = f"task {bad[0]!r} {first.state.value}"
    if first.error:
        error += f": {last_line(first.error)}"
    if len(bad) > 1:
        error += f" (and {len(bad) - 1} more: {', '.join(bad[1:])})"
    return RunOutcome(Fate.FAILED, context, error)


def _all(workflow: Workflow) -> list[str]:
    return workflow.before(*(task.name for task in workflow.tasks))


def _merged(state: RunState, names: Iterable[str]) -> WorkflowContext:
    context = dict(state.context or {})
    for name in names:
        context.update(state.tasks[name].output or {})
    return context


MARKS: Final[Mapping[TaskState, str]] = MappingProxyType(
    {
        TaskState.PENDING: "·",
        TaskState.RUNNING: "▶",
        TaskState.DONE: "✓",
        TaskState.FAILED: "✗",
        TaskState.SKIPPED: "○",
        TaskState.CANCELLED: "⊘",
    }
)
ERROR_SHOWN_MAX: Final = 80


def tree(workflow: Workflow, state: RunState | None = None) -> str:
    """The graph for a terminal, each task once, with how it stands if a run is given.

    A task is drawn below the last one in its `after`, and names the others.
    """
    below: dict[str | None, list[WorkflowTask]] = {}
    for task in workflow.tasks:
        below.setdefault(task.after[-1] if task.after else None, []).append(task)
    lines = [_title(workflow, state)]
    stack = [("", task, task is below[None][-1]) for task in reversed(below[None])]
    while stack:
        indent, task, last = stack.pop()
        lines.append(f"{indent}{'└─' if last else '├─'} {_line(task, state)}")
        indent += "   " if last else "│  "
        children = below.get(task.name, [])
        stack.extend((indent, child, child is children[-1]) for child in reversed(children))
    return "\n".join(lines)


def _title(workflow: Workflow, state: RunState | None) -> str:
    title = f"{workflow.name} v{workflow.version}"
    if state is None:
        return title
    if state.outcome is not None:
        return f"{title} {state.outcome.status.value}"
    if state.paused:
        return f"{title} paused"
    return f"{title} {'pending' if state.context is None else 'running'}"


def _line(task: WorkflowTask, state: RunState | None) -> str:
    notes = [f"also after {', '.join(task.after[:-1])}"] if task.after[:-1] else []
    if task.rule is not None:
        notes.append(f"if {rule_text(task.rule)}")
    tail = f" ({'; '.join(notes)})" if notes else ""
    if state is None:
        return f"{task.name}{tail}"
    run = state.tasks[task.name]
    error = f": {last_line(run.error)[:ERROR_SHOWN_MAX]}" if run.error else ""
    return f"{MARKS[run.state]} {task.name} {run.state.value}{tail}{error}"
