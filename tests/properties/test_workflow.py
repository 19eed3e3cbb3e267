"""Random workflows against a twin that knows only the rules on the page.

The twin is told how each task would end. It looks at all tasks over and over until nothing
changes, and keeps nothing but who ended how. The machine is driven through the same run in a random
order of endings, with repeated events and pauses in between.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairway.jobs.job import Fate
from fairway.jobs.rules import (
    AllOf,
    Always,
    AnyOf,
    ContextIs,
    NoneOf,
    Rule,
    TaskIs,
    TaskState,
    all_of,
    always,
    any_of,
    context,
    failed,
    none_of,
    skipped,
    success,
)
from fairway.jobs.workflow import (
    MOVES,
    RunCancelled,
    RunEvent,
    RunOutcome,
    RunPaused,
    RunResumed,
    RunRetried,
    RunStarted,
    RunState,
    Step,
    TaskEnded,
    Workflow,
    WorkflowTask,
    advance,
    check,
    tree,
)
from tests.properties.twins import MANY

DONE, FAILED, SKIPPED = TaskState.DONE, TaskState.FAILED, TaskState.SKIPPED
CANCELLED, PENDING, RUNNING = TaskState.CANCELLED, TaskState.PENDING, TaskState.RUNNING
NOW_NS = 1_000

BEGIN = {"x": "begin", "n": 0}


def made_up_rule(draw: random.Random, names: list[str], depth: int = 0) -> Rule:
    kinds = ["always", "context", *(["task"] * 3 if names else []), *(["many"] * (2 - depth))]
    match draw.choice(kinds):
        case "task":
            return draw.choice([success, failed, failed, skipped])(draw.choice(names))
        case "context":
            return draw.choice(
                [
                    context("n", "greater_than", draw.randrange(5)),
                    context("n", "equals", draw.randrange(3)),
                    context("x", "contains", draw.choice(["b", "t1", "t2"])),
                    context("y", "exists"),
                    context("y", "not_exists"),
                ]
            )
        case "many":
            rules = [made_up_rule(draw, names, depth + 1) for _ in range(draw.randint(1, 3))]
            return draw.choice([all_of, any_of, none_of])(*rules)
    return always()


@dataclass
class Plan:
    """A workflow, and how each of its tasks ends if it runs."""

    workflow: Workflow
    ends: dict[str, TaskEnded]


def planned(seed: int, size: int) -> Plan:
    draw = random.Random(seed)
    names = [f"t{number}" for number in range(size)]
    draw.shuffle(names)
    known: dict[str, set[str]] = {}  # each task's ancestors, to choose rules from
    tasks, ends = [], {}
    for name in names:
        after = draw.sample(list(known), draw.randint(0, min(3, len(known))))
        known[name] = {*after, *(one for other in after for one in known[other])}
        rule = made_up_rule(draw, sorted(known[name])) if draw.random() < 0.5 else None
        tasks.append(WorkflowTask(name, tuple(after), rule))
        output = {
            key: value
            for key, value in (("x", name), ("n", draw.randrange(5)), ("y", True), (name, 1))
            if draw.random() < 0.4
        }
        status = draw.choice([DONE, DONE, DONE, FAILED, CANCELLED])
        ends[name] = TaskEnded(name, status, output, f"{name} broke")
    draw.shuffle(tasks)  # dependencies may be declared after what depends on them
    return Plan(Workflow("flow", tasks), ends)


class Twin:
    """The whole run, worked out by looking at everything until nothing changes."""

    def __init__(self, plan: Plan) -> None:
        self.tasks = {task.name: task for task in plan.workflow.tasks}
        self.ends = plan.ends
        self.states: dict[str, TaskState] = {}
        while len(self.states) < len(self.tasks):
            for name, task in self.tasks.items():
                if name not in self.states and all(other in self.states for other in task.after):
                    runs = self.holds(task.rule, task)
                    self.states[name] = self.ends[name].status if runs else SKIPPED

    def holds(self, rule: Rule | None, task: WorkflowTask) -> bool:
        if rule is None:
            return all(self.states[other] is DONE for other in task.after)
        if isinstance(rule, Always):
            return True
        if isinstance(rule, TaskIs):
            wanted = {"success": [DONE], "failed": [FAILED, CANCELLED], "skipped": [SKIPPED]}
            return self.states[rule.task] in wanted[rule.end]
        if isinstance(rule, ContextIs):
            found = self.input(task).get(rule.key)
            if rule.op == "exists":
                return found is not None
            if rule.op == "not_exists":
                return found is None
            if rule.op == "contains":
                return rule.value in found
            return found == rule.value if rule.op == "equals" else found > rule.value
        verdicts = [self.holds(one, task) for one in rule.rules]
        if isinstance(rule, AllOf):
            return False not in verdicts
        assert isinstance(rule, AnyOf | NoneOf)
        return (True in verdicts) == isinstance(rule, AnyOf)

    def writers(self, names: list[str] | tuple[str, ...]) -> list[str]:
        """Who wrote, in order: of each of these all that came before it, then itself."""
        order: list[str] = []
        for name in names:
            for one in [*self.writers(self.tasks[name].after), name]:
                if one not in order:
                    order.append(one)
        return order

    def merged(self, names: list[str] | tuple[str, ...]) -> dict[str, Any]:
        result: dict[str, Any] = dict(BEGIN)
        for name in self.writers(names):
            if self.states[name] is DONE:
                result |= self.ends[name].output or {}
        return result

    def input(self, task: WorkflowTask) -> dict[str, Any]:
        return self.merged(task.after)

    def fate(self) -> Fate:
        for name, state in self.states.items():
            if state in (FAILED, CANCELLED) and not any(
                self.states[other] is not SKIPPED and self.blames(task.rule, name)
                for other, task in self.tasks.items()
            ):
                return Fate.FAILED
        return Fate.DONE

    def blames(self, rule: Rule | None, name: str, straight: bool = True) -> bool:
        if isinstance(rule, AllOf | AnyOf | NoneOf):
            straight = straight != isinstance(rule, NoneOf)
            return any(self.blames(one, name, straight) for one in rule.rules)
        return straight and rule == failed(name)


class Shell:
    """Drives the machine and holds it to what every legal run keeps."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = RunState.of(plan.workflow)
        self.inputs: dict[str, dict[str, Any]] = {}
        self.running: list[str] = []
        self.ended: list[str] = []
        self.finished: list[RunOutcome] = []

    def send(self, event: RunEvent) -> Step:
        workflow, before = self.plan.workflow, self.state
        encoded = msgspec.json.encode(before)
        step = advance(workflow, before, event, NOW_NS)
        assert msgspec.json.encode(before) == encoded
        check(workflow, step.state)
        assert msgspec.json.decode(msgspec.json.encode(step.state), type=RunState) == step.state
        assert tree(workflow, step.state).count("\n") == len(workflow.tasks)
        self.note_moves(before, step)
        names = [one.task.name for one in step.start]
        assert names == [task.name for task in workflow.tasks if task.name in names]
        for task, task_input in step.start:
            assert task.name not in self.inputs, "started twice"
            assert all(step.state.tasks[other].state.ended for other in task.after)
            self.inputs[task.name] = task_input
            self.running.append(task.name)
        if step.finished is not None:
            self.finished.append(step.finished)
        self.state = step.state
        return step

    def note_moves(self, before: RunState, step: Step) -> None:
        for name, run in step.state.tasks.items():
            was = before.tasks[name].state
            if was is run.state:
                assert run == before.tasks[name]
                continue
            assert run.state in MOVES[was]
            if run.state.ended:
                assert name not in self.ended, "ended twice"
                self.ended.append(name)

    def end_one(self, draw: random.Random) -> None:
        name = self.running.pop(draw.randrange(len(self.running)))
        self.send(self.plan.ends[name])

    def repeat(self, draw: random.Random) -> None:
        """An event that says nothing new."""
        settled = [name for name in self.plan.ends if name not in self.running]
        events: list[RunEvent] = [RunStarted({"x": "again"})]
        events += [TaskEnded(name, draw.choice([DONE, FAILED]), {"x": "late"}) for name in settled]
        before = self.state
        assert self.send(draw.choice(events)) == Step(before)


def drive(shell: Shell, draw: random.Random, *, stop_after: int | None = None) -> None:
    """From start to end, or for some steps, with pauses and repetitions in between."""
    shell.send(RunStarted(BEGIN))
    steps = 0
    while shell.state.outcome is None and (stop_after is None or steps < stop_after):
        steps += 1
        chance = draw.random()
        if chance < 0.15:
            shell.repeat(draw)
        elif chance < 0.3 or not shell.running:
            shell.send(RunResumed() if shell.state.paused else RunPaused())
        else:
            shell.end_one(draw)


@MANY
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12), orders=st.integers(0, 2**32))
def test_any_order_of_endings_comes_to_what_the_twin_says(
    seed: int, size: int, orders: int
) -> None:
    plan = planned(seed, size)
    twin = Twin(plan)
    draw = random.Random(orders)
    for _ in range(2):
        shell = Shell(plan)
        drive(shell, draw)
        assert {name: run.state for name, run in shell.state.tasks.items()} == twin.states
        ran = {name for name, state in twin.states.items() if state is not SKIPPED}
        assert shell.inputs == {name: twin.input(plan.workflow[name]) for name in ran}
        assert sorted(shell.ended) == sorted(plan.ends)
        assert len(shell.finished) == 1
        assert shell.finished[0].status is twin.fate()
        assert shell.finished[0].context == twin.merged([task.name for task in plan.workflow.tasks])
        assert (shell.finished[0].error is None) == (twin.fate() is Fate.DONE)
        shell.repeat(draw)


@MANY
@given(seed=st.integers(0, 2**32), size=st.integers(1, 12), orders=st.integers(0, 2**32))
def test_a_retried_run_keeps_all_that_does_not_come_after_a_failure(
    seed: int, size: int, orders: int
) -> None:
    plan = planned(seed, size)
    draw = random.Random(orders)
    shell = Shell(plan)
    drive(shell, draw)
    workflow, before = plan.workflow, shell.state
    assert before.outcome is not None
    step = advance(workflow, before, RunRetried(), NOW_NS)
    check(workflow, step.state)
    if before.outcome.status is Fate.DONE:
        assert step == Step(before)
        return
    kept = {name for name, run in step.state.tasks.items() if run == before.tasks[name]}
    for name in kept:
        assert kept.issuperset(workflow[name].after), "whatever comes after is decided again"
    assert step.start, "something runs again"
    state, running = step.state, [one.task.name for one in step.start]
    while state.outcome is None:
        ended = TaskEnded(running.pop(draw.randrange(len(running))), DONE)
        step = advance(workflow, state, ended, NOW_NS)
        check(workflow, step.state)
        running += [one.task.name for one in step.start]
        assert not kept.intersection(running)
        state = step.state
    for name, run in state.tasks.items():
        assert (run == before.tasks[name]) if name in kept else run.state in (DONE, SKIPPED)


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 12),
    orders=st.integers(0, 2**32),
    steps=st.integers(0, 12),
)
def test_a_run_can_be_cancelled_at_any_moment(
    seed: int, size: int, orders: int, steps: int
) -> None:
    plan = planned(seed, size)
    draw = random.Random(orders)
    shell = Shell(plan)
    drive(shell, draw, stop_after=steps)
    over = shell.state.outcome is not None
    step = shell.send(RunCancelled())
    assert sorted(step.stop) == sorted(shell.running)
    assert sorted(shell.ended) == sorted(plan.ends)
    assert len(shell.finished) == 1
    assert over or shell.finished[0].status is Fate.CANCELLED
    last = shell.state
    for name in plan.ends:
        assert shell.send(plan.ends[name]) == Step(last)


@MANY
@given(seed=st.integers(0, 2**32), size=st.integers(2, 12))
def test_nobody_sees_a_value_that_a_task_before_it_has_overridden(seed: int, size: int) -> None:
    plan = planned(seed, size)
    for task in plan.workflow.tasks:
        order = plan.workflow.before(*task.after)
        assert len(set(order)) == len(order)
        for position, name in enumerate(order):
            # All that a task has seen is merged before it, so its own writing wins.
            assert set(plan.workflow[name].after) <= set(order[:position])


@given(
    seed=st.integers(0, 2**32), size=st.integers(2, 12), first=st.integers(0), last=st.integers(0)
)
def test_an_edge_back_is_always_found(seed: int, size: int, first: int, last: int) -> None:
    tasks = list(planned(seed, size).workflow.tasks)
    workflow = Workflow("flow", tasks)
    late = tasks[last % size]
    early = (before := workflow.before(late.name))[first % len(before)]
    looped = [
        WorkflowTask(task.name, (*task.after, late.name) if task.name == early else task.after)
        for task in tasks
    ]
    try:
        Workflow("flow", looped)
    except ValueError as wrong:
        cycle = str(wrong).rpartition(": ")[2].split(" after ")
        after = {task.name: task.after for task in looped}
        assert cycle[0] == cycle[-1]
        assert all(other in after[name] for name, other in pairwise(cycle))
    else:
        raise AssertionError("a cycle was accepted")
