"""Workflows: what may be built, which rules hold, and how a run goes from start to end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from fairway.errors import InvalidConfig
from fairway.jobs.job import Ending, Fate, Status, ending
from fairway.jobs.rules import (
    OPS,
    Op,
    Rule,
    TaskState,
    all_of,
    always,
    any_of,
    context,
    failed,
    handles,
    none_of,
    rule_text,
    skipped,
    success,
)
from fairway.jobs.workflow import (
    MOVES,
    RunCancelled,
    RunEvent,
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
    input_of,
    tree,
)

DONE, FAILED, SKIPPED = TaskState.DONE, TaskState.FAILED, TaskState.SKIPPED
CANCELLED, PENDING, RUNNING = TaskState.CANCELLED, TaskState.PENDING, TaskState.RUNNING


def task(name: str, *after: str, rule: Rule | None = None) -> WorkflowTask:
    return WorkflowTask(name, after, rule)


class Run:
    """A run in the hand: each event goes through the machine and back through JSON."""

    def __init__(self, *tasks: WorkflowTask, begin: dict[str, Any] | None = None) -> None:
        self.workflow = Workflow("flow", tasks)
        self.state = RunState.of(self.workflow)
        self.step = Step(self.state)
        self.now_ns = 0
        if begin is not None:
            self(RunStarted(begin))

    def __call__(self, event: RunEvent) -> Step:
        self.now_ns += 1
        self.step = advance(self.workflow, self.state, event, self.now_ns)
        check(self.workflow, self.step.state)
        encoded = msgspec.json.encode(self.step.state)
        self.state = msgspec.json.decode(encoded, type=RunState)
        assert self.state == self.step.state
        return self.step

    def end(self, name: str, status: TaskState = DONE, **output: Any) -> Step:
        error = f"{name} broke" if status is FAILED else None
        return self(TaskEnded(name, status, output or None, error))

    @property
    def started(self) -> list[str]:
        """What the last event started."""
        return [one.task.name for one in self.step.start]

    @property
    def times(self) -> dict[str, tuple[int | None, int | None]]:
        """When each task was started, and when it ended: the how manieth event that was."""
        return {
            name: (run.started_wall_ns, run.ended_wall_ns) for name, run in self.state.tasks.items()
        }

    @property
    def states(self) -> dict[str, TaskState]:
        return {name: run.state for name, run in self.state.tasks.items()}


# --- building


def test_a_workflow_keeps_its_tasks_and_knows_what_follows_what() -> None:
    workflow = Workflow("etl", [task("a"), task("b", "a"), task("c", "a", "b")], version=3)
    assert (workflow.name, workflow.version) == ("etl", 3)
    assert workflow["c"].after == ("a", "b")
    assert list(workflow.dependents("a")) == ["b", "c"]
    assert workflow.before("c") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tasks", "wrong"),
    [
        ([], "it has no tasks"),
        ([task("a"), task("a")], "two tasks are called 'a'"),
        ([task("a", "z")], "task 'a' is after 'z', which is not there"),
        ([task("a"), task("b", "a", "a")], "task 'b' is after 'a' twice"),
        ([task("a", "a")], "tasks wait for each other: a after a"),
        (
            [task("x"), task("a", "x", "c"), task("b", "a"), task("c", "b"), task("y", "c")],
            "tasks wait for each other: a after c after b after a",
        ),
        (
            [task("y", "b"), task("a", "b"), task("b", "a")],
            "tasks wait for each other: b after a after b",
        ),
        (
            [task("a", rule=any_of(always(), failed("z")))],
            "the rule of task 'a' names 'z', which is not there",
        ),
        (
            [task("a"), task("b"), task("c", "a", rule=none_of(success("b")))],
            "the rule of task 'c' names 'b', which it is not after",
        ),
        (
            [task("a", rule=success("a"))],
            "the rule of task 'a' names 'a', which it is not after",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_built(tasks: list[WorkflowTask], wrong: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        Workflow("flow", tasks)
    assert str(refused.value) == f"workflow 'flow': {wrong}"


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"name": ""}, "a workflow task needs a name"),
        ({"name": "a", "max_attempts": 0}, "task 'a': max_attempts must be at least 1"),
        ({"name": "a", "timeout_ns": 0}, "task 'a': timeout_ns must be positive"),
    ],
)
def test_a_task_that_cannot_work_is_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        WorkflowTask(**options)
    assert str(refused.value) == wrong


def test_a_rule_may_name_a_task_further_back() -> None:
    Workflow("flow", [task("a"), task("b", "a"), task("c", "b", rule=failed("a"))])


def test_structure_changes_with_what_a_run_depends_on_and_with_nothing_else() -> None:
    tasks = [task("a"), task("b", "a", rule=failed("a"))]
    same = [WorkflowTask("a", queue="q", max_attempts=9), WorkflowTask("b", ("a",), failed("a"))]
    plain = Workflow("flow", tasks)
    assert plain.structure == Workflow("other", same, version=2).structure
    others = [
        [task("a"), task("b", "a")],
        [task("a"), task("b", rule=always())],
        [task("a"), task("c", "a", rule=failed("a"))],
        list(reversed(tasks)),  # the order of declaration decides how contexts merge at the end
    ]
    assert len({Workflow("flow", one).structure for one in [tasks, *others]}) == 5
    run = RunState.of(plain)
    assert run.fits(Workflow("other", same))
    assert not run.fits(Workflow("flow", others[0]))


def test_a_long_chain_is_no_deeper_than_a_short_one() -> None:
    names = [str(number) for number in range(3_000)]
    chain = [task(names[0]), *(task(name, before) for before, name in pairwise(names))]
    workflow = Workflow("chain", chain)
    assert workflow.before(names[-1]) == names
    assert tree(workflow).count("\n") == len(names)


# --- rules


@pytest.mark.parametrize(
    ("op", "value", "holds", "fails"),
    [
        ("equals", 1, [1, 1.0], [True, "1", 2, None, [1]]),
        ("equals", True, [True], [1, "true", False]),
        ("equals", None, [None], [0, False, ""]),
        ("equals", {"a": [1, True]}, [{"a": [1, True]}], [{"a": [1, 1]}, {"a": [1]}, {}]),
        ("not_equals", 1, [2, True, "1", None], [1, 1.0]),
        ("greater_than", 5, [6, 5.5], [5, 4, "6", True, None, [9]]),
        ("greater_than", "m", ["n"], ["m", "a", 9]),
        ("less_than", 5, [4, 4.5, -1], [5, 6, "4", False, None]),
        ("less_than", "m", ["a"], ["m", "n", 1]),
        ("contains", "ell", ["hello"], ["help", 5, None, ["hello"]]),
        ("contains", 1, [[1], [2, 1.0]], [[True], ["1"], "1", 1, {}]),
        ("contains", "k", [{"k": None}, ["k"]], [{"v": "k"}, {}]),
        ("contains", [1], [[[1]]], [[1]]),
        ("not_contains", "ell", ["help", 5, None], ["hello"]),
        ("not_contains", 1, [[True], 1], [[1]]),
    ],
)
def test_each_way_of_comparing(op: Op, value: Any, holds: list[Any], fails: list[Any]) -> None:
    for given, expected in [*((one, RUNNING) for one in holds), *((one, SKIPPED) for one in fails)]:
        run = Run(task("a", rule=context("key", op, value)), task("b"), begin={"key": given})
        assert run.states["a"] is expected, (op, value, given)


def test_a_missing_key_satisfies_what_says_not() -> None:
    values = {op: () if "exists" in op else (1,) for op in OPS}
    held = {
        op: Run(task("a", rule=context("key", op, *values[op])), task("b"), begin={}).states["a"]
        for op in OPS
    }
    assert {op for op, state in held.items() if state is RUNNING} == {
        "not_equals",
        "not_contains",
        "not_exists",
    }


def test_null_is_not_missing() -> None:
    run = Run(
        task("a", rule=context("key", "exists")),
        task("b", rule=context("key", "not_exists")),
        begin={"key": None},
    )
    assert run.states == {"a": RUNNING, "b": SKIPPED}


@pytest.mark.parametrize(
    ("op", "value", "wrong"),
    [
        ("is", (1,), f"'is' is none of {', '.join(OPS)}"),
        ("equals", (), "equals needs a value"),
        ("exists", (1,), "exists takes no value"),
        ("not_exists", (None,), "not_exists takes no value"),
        ("greater_than", ([1],), "greater_than needs a number or a string"),
        ("less_than", (True,), "less_than needs a number or a string"),
        ("contains", (object(),), "the value is not JSON: "),
    ],
)
def test_a_comparison_that_cannot_work_is_refused(op: Op, value: Any, wrong: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        context("key", op, *value)
    assert str(refused.value).startswith(f"context 'key': {wrong}")


@pytest.mark.parametrize("combine", [all_of, any_of, none_of])
def test_nothing_cannot_be_combined(combine: Any) -> None:
    with pytest.raises(InvalidConfig, match=f"{combine.__name__} needs at least one rule"):
        combine()


@pytest.mark.parametrize(
    ("rule", "after_done", "after_failed", "after_skipped", "after_cancelled"),
    [
        (None, True, False, False, False),
        (always(), True, True, True, True),
        (success("b"), True, False, False, False),
        (failed("b"), False, True, False, True),
        (skipped("b"), False, False, True, False),
        (any_of(failed("b"), skipped("b")), False, True, True, True),
        (all_of(always(), success("b")), True, False, False, False),
        (all_of(failed("b"), skipped("b")), False, False, False, False),
        (none_of(failed("b")), True, False, True, False),
        (none_of(failed("b"), skipped("b")), True, False, False, False),
        (none_of(none_of(skipped("b"))), False, False, True, False),
    ],
)
def test_each_rule_after_each_end(
    rule: Rule | None,
    after_done: bool,
    after_failed: bool,
    after_skipped: bool,
    after_cancelled: bool,
) -> None:
    for end, expected in [
        (DONE, after_done),
        (FAILED, after_failed),
        (SKIPPED, after_skipped),
        (CANCELLED, after_cancelled),
    ]:
        never = none_of(always()) if end is SKIPPED else None
        run = Run(task("b", rule=never), task("c", "b", rule=rule), task("d"), begin={})
        if end is not SKIPPED:
            run.end("b", end)
        assert run.states["b"] is end
        assert run.states["c"] is (RUNNING if expected else SKIPPED), end


def test_rules_are_data() -> None:
    rule = any_of(
        all_of(success("a"), context("n", "greater_than", 3)),
        none_of(failed("b"), context("x", "not_exists"), context("y", "equals", None)),
        skipped("c"),
        always(),
    )
    assert msgspec.json.decode(msgspec.json.encode(rule), type=Rule) == rule
    assert rule_text(rule) == (
        "any_of(all_of(success(a), context(n greater_than 3)),"
        " none_of(failed(b), context(x not_exists), context(y equals null)), skipped(c), always())"
    )


def test_a_rule_from_json_is_checked_too() -> None:
    for wrong in (
        b'{"type":"context","key":"k","op":"equals"}',
        b'{"type":"context","key":"k","op":"about","value":1}',
        b'{"type":"all_of","rules":[]}',
        b'{"type":"task","task":"a","end":"running"}',
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=Rule)


def test_which_failures_a_rule_handles() -> None:
    assert set(handles(any_of(failed("a"), all_of(failed("b"), success("c"))))) == {"a", "b"}
    assert set(handles(none_of(failed("a"), none_of(failed("b"))))) == {"b"}
    assert set(handles(always())) == set()


# --- runs


def test_moves_lead_from_every_state_to_an_end() -> None:
    assert set(MOVES) == set(TaskState)
    for state, moves in MOVES.items():
        assert any(to.ended for to in moves) == (not state.ended), "only a retry leaves an end"


def test_a_diamond() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"), begin={"day": 1})
    assert run.started == ["a"]
    assert run.step.start[0].context == {"day": 1}
    run.end("a", rows=3)
    assert run.started == ["b", "c"]
    assert [one.context for one in run.step.start] == [{"day": 1, "rows": 3}] * 2
    run.end("c", c=True)
    assert run.started == []
    run.end("b", b=True)
    assert run.started == ["d"]
    assert run.step.start[0].context == {"day": 1, "rows": 3, "b": True, "c": True}
    assert run.step.finished is None
    step = run.end("d", rows=0)
    assert step.finished is not None
    assert step.finished.status is Fate.DONE
    assert step.finished.context == {"day": 1, "rows": 0, "b": True, "c": True}
    assert step.finished.error is None
    assert run.state.outcome == step.finished


def test_tasks_start_in_the_order_they_are_declared() -> None:
    run = Run(task("z"), task("y"), task("c", "y"), task("b", "y"), task("a", "y"), begin={})
    assert run.started == ["z", "y"]
    run.end("y")
    assert run.started == ["c", "b", "a"]


def test_later_dependencies_win_where_neither_saw_the_other() -> None:
    for after in (("a", "b"), ("b", "a")):
        run = Run(task("a"), task("b"), task("c", *after), begin={"x": 0})
        run.end("b", x="b")
        run.end("a", x="a")
        assert run.step.start[0].context == {"x": after[-1]}


def test_a_branch_that_passes_a_value_on_does_not_undo_what_another_wrote() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c"), begin={"x": 0})
    run.end("a", x=1)
    run.end("b", x=2)
    run.end("c", y=3)
    assert run.step.start[0].context == {"x": 2, "y": 3}


def test_a_task_overrides_what_it_has_seen_however_after_is_ordered() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "b", "a"), begin={})
    run.end("a", x="a")
    run.end("b", x="b")
    assert run.step.start[0].context == {"x": "b"}


def test_values_are_replaced_whole() -> None:
    run = Run(task("a"), task("b", "a"), begin={"x": {"one": 1}})
    run.end("a", x={"two": 2})
    assert run.step.start[0].context == {"x": {"two": 2}}


def test_input_can_be_asked_for_later() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "b"), begin={"x": 0})
    run.end("a", x=1)
    expected = run.step.start[0].context
    run.end("b", x=2)
    assert input_of(run.workflow, run.state, "b") == expected == {"x": 1}


def test_skips_propagate_and_always_ends_them() -> None:
    run = Run(
        task("a"),
        task("b", "a", rule=context("go", "equals", True)),
        task("c", "b"),
        task("d", "c"),
        task("e", "d", "a", rule=always()),
        begin={"go": False},
    )
    run.end("a", n=1)
    assert run.states == {"a": DONE, "b": SKIPPED, "c": SKIPPED, "d": SKIPPED, "e": RUNNING}
    assert run.step.start[0].context == {"go": False, "n": 1}
    finished = run.end("e").finished
    assert finished is not None
    assert finished.status is Fate.DONE


def test_a_run_in_which_everything_is_skipped_is_done_at_once() -> None:
    run = Run(task("a", rule=context("go", "exists")), task("b", "a"), begin={})
    assert run.step.finished is not None
    assert run.step.finished.status is Fate.DONE
    assert run.states == {"a": SKIPPED, "b": SKIPPED}


def test_a_failure_that_nothing_handles_fails_the_run_when_all_has_ended() -> None:
    run = Run(task("a"), task("b"), task("c", "a"), task("tidy", "c", rule=always()), begin={})
    assert run.end("a", FAILED).finished is None
    assert run.states["c"] is SKIPPED
    assert run.started == ["tidy"]
    run.end("tidy")
    finished = run.end("b", n=1).finished
    assert finished is not None
    assert (finished.status, finished.error) == (Fate.FAILED, "task 'a' failed: a broke")
    assert finished.context == {"n": 1}


def test_several_failures_are_all_named() -> None:
    run = Run(task("a"), task("b"), task("c"), begin={})
    for name in "cba":
        step = run.end(name, FAILED)
    assert step.finished is not None
    assert step.finished.error == "task 'a' failed: a broke (and 2 more: b, c)"


def test_a_failure_is_handled_by_a_task_that_ran_because_of_it() -> None:
    run = Run(task("a"), task("fix", "a", rule=failed("a")), begin={})
    run.end("a", FAILED)
    assert run.started == ["fix"]
    finished = run.end("fix").finished
    assert finished is not None
    assert (finished.status, finished.error) == (Fate.DONE, None)


def test_a_failure_in_the_handling_needs_handling_itself() -> None:
    run = Run(task("a"), task("fix", "a", rule=failed("a")), begin={})
    run.end("a", FAILED)
    finished = run.end("fix", FAILED).finished
    assert finished is not None
    assert finished.error == "task 'fix' failed: fix broke"


def test_a_rule_that_names_a_failure_but_did_not_run_handles_nothing() -> None:
    rule = all_of(failed("a"), context("retry", "equals", True))
    run = Run(task("a"), task("fix", "a", rule=rule), begin={})
    finished = run.end("a", FAILED).finished
    assert finished is not None
    assert finished.status is Fate.FAILED


def test_a_task_cancelled_by_hand_counts_as_a_failure() -> None:
    run = Run(task("a"), task("b", "a"), begin={})
    finished = run.end("a", CANCELLED).finished
    assert finished is not None
    assert (finished.status, finished.error) == (Fate.FAILED, "task 'a' cancelled")
    assert run.states == {"a": CANCELLED, "b": SKIPPED}


def test_what_a_failed_task_put_out_is_not_passed_on() -> None:
    run = Run(task("a"), task("b", "a", rule=always()), begin={})
    run.end("a", FAILED, half="done")
    assert run.step.start[0].context == {}


# --- pause, cancel, repetition


def test_a_paused_run_starts_nothing_and_loses_nothing() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "a", rule=failed("a")), begin={})
    run(RunPaused())
    run.end("a", n=1)
    assert run.started == []
    assert run.states == {"a": DONE, "b": PENDING, "c": PENDING}
    run(RunResumed())
    assert run.started == ["b"]
    assert run.step.start[0].context == {"n": 1}
    assert run.states["c"] is SKIPPED


def test_a_run_may_be_paused_before_it_starts() -> None:
    run = Run(task("a"))
    run(RunPaused())
    run(RunStarted({"n": 1}))
    assert run.started == []
    run(RunResumed())
    assert run.started == ["a"]
    assert run.step.start[0].context == {"n": 1}


def test_resuming_what_has_not_started_starts_nothing() -> None:
    run = Run(task("a", rule=context("n", "exists")))
    run(RunPaused())
    run(RunResumed())
    assert run.states == {"a": PENDING}
    run(RunStarted({"n": 1}))
    assert run.started == ["a"]


def test_a_paused_run_with_nothing_left_to_start_ends() -> None:
    run = Run(task("a"), begin={})
    run(RunPaused())
    finished = run.end("a").finished
    assert finished is not None
    assert finished.status is Fate.DONE


def test_cancel_ends_the_run_and_names_what_runs() -> None:
    run = Run(task("a"), task("b"), task("c"), task("d", "c"), begin={"x": 0})
    run.end("b", x=1)
    step = run(RunCancelled("changed my mind"))
    assert step.stop == ("a", "c")
    assert run.states == {"a": CANCELLED, "b": DONE, "c": CANCELLED, "d": CANCELLED}
    assert step.finished is not None
    assert step.finished.status is Fate.CANCELLED
    assert step.finished.error == "changed my mind"
    assert step.finished.context == {"x": 1}


def test_cancel_before_the_start() -> None:
    run = Run(task("a"))
    finished = run(RunCancelled()).finished
    assert finished is not None
    assert (finished.status, finished.context) == (Fate.CANCELLED, {})
    run(RunStarted({}))
    assert run.started == []


@pytest.mark.parametrize(
    "event",
    [
        RunStarted({"again": True}),
        TaskEnded("a", FAILED, None, "again"),
        TaskEnded("a", DONE, {"x": 9}),
        TaskEnded("c", DONE),  # not started
        TaskEnded("z", DONE),  # not a task
        RunResumed(),
    ],
)
def test_an_event_that_says_nothing_new_changes_nothing(event: RunEvent) -> None:
    run = Run(task("a"), task("b", "a"), task("c", "b"), begin={})
    run.end("a", x=1)
    before = run.state
    assert run(event) == Step(before)


def test_pausing_twice_changes_nothing() -> None:
    run = Run(task("a"), begin={})
    run(RunPaused())
    assert run(RunPaused()) == Step(run.state)


@pytest.mark.parametrize(
    "event",
    [RunStarted({}), TaskEnded("a", FAILED), RunPaused(), RunResumed(), RunCancelled()],
)
def test_nothing_happens_after_the_end(event: RunEvent) -> None:
    run = Run(task("a"), begin={})
    run.end("a")
    assert run(event) == Step(run.state)


# --- retried


def test_a_retry_runs_again_what_failed_and_what_was_skipped_for_it() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "b"), task("d", "a"), begin={"x": 1})
    run.end("a", a=1)
    run.end("d", d=1)
    run.end("b", FAILED)
    assert run.state.outcome is not None
    assert run.states == {"a": DONE, "b": FAILED, "c": SKIPPED, "d": DONE}
    run(RunRetried())
    assert run.started == ["b"]
    assert run.step.start[0].context == {"x": 1, "a": 1}
    assert run.states == {"a": DONE, "b": RUNNING, "c": PENDING, "d": DONE}
    run.end("b", b=1)
    assert run.started == ["c"]
    step = run.end("c")
    assert step.finished is not None
    assert step.finished.status is Fate.DONE
    assert step.finished.context == {"x": 1, "a": 1, "b": 1, "d": 1}


def test_a_retry_decides_again_about_all_that_comes_after() -> None:
    """What cleaned up after the failure cleans up after the next attempt as well."""
    run = Run(task("a"), task("clean", "a", rule=always()), begin={})
    run.end("a", FAILED)
    run.end("clean", swept=1)
    run(RunRetried())
    assert run.states == {"a": RUNNING, "clean": PENDING}
    run.end("a")
    assert run.started == ["clean"]


def test_a_retry_leaves_a_failure_that_was_handled() -> None:
    run = Run(task("a"), task("page", "a", rule=failed("a")), task("b"), begin={})
    run.end("a", FAILED)
    run.end("page", paged=1)
    run.end("b", FAILED)
    run(RunRetried())
    assert run.states == {"a": FAILED, "page": DONE, "b": RUNNING}
    step = run.end("b")
    assert step.finished is not None
    assert step.finished.status is Fate.DONE


def test_a_run_may_fail_and_be_retried_again_and_again() -> None:
    run = Run(task("a"), task("b", "a"), begin={})
    for _ in range(3):
        run.end("a", FAILED)
        run(RunRetried())
        assert run.started == ["a"]
    run.end("a")
    run.end("b", FAILED)
    run(RunRetried())
    assert run.started == ["b"]


def test_a_retry_of_a_cancelled_run_goes_on_where_it_was() -> None:
    run = Run(task("a"), task("b", "a"), task("c", "b"), begin={})
    run.end("a", a=1)
    run(RunPaused())
    run(RunCancelled())
    assert run.states == {"a": DONE, "b": CANCELLED, "c": CANCELLED}
    run(RunRetried())
    assert run.started == ["b"]
    assert run.states == {"a": DONE, "b": RUNNING, "c": PENDING}


def test_a_retry_starts_again_what_nobody_is_at_work_on_any_more() -> None:
    """Its job was cancelled with that of the run, which the run did not hear of."""
    run = Run(task("a"), task("b"), begin={})
    run.end("a", a=1)
    run(RunRetried())
    assert run.started == ["b"]
    assert run.states == {"a": DONE, "b": RUNNING}


def test_a_run_that_is_done_is_not_retried() -> None:
    run = Run(task("a"), begin={})
    run.end("a")
    assert run(RunRetried()) == Step(run.state)


def test_the_state_given_is_left_as_it_was() -> None:
    run = Run(task("a"), task("b", "a"), begin={})
    before, encoded = run.state, msgspec.json.encode(run.state)
    advance(run.workflow, before, TaskEnded("a", DONE, {"x": 1}), 9)
    advance(run.workflow, before, RunCancelled(), 9)
    assert msgspec.json.encode(before) == encoded


def test_a_run_of_another_structure_is_not_carried_on() -> None:
    state = RunState.of(Workflow("flow", [task("a")]))
    with pytest.raises(AssertionError, match="a run of"):
        advance(Workflow("flow", [task("b")]), state, RunStarted({}), 1)


def test_each_task_knows_when_it_was_started_and_when_it_ended() -> None:
    tasks = (task("a"), task("b", "a"), task("c", "a", rule=failed("a")), task("d", "b"))
    run = Run(*tasks, begin={})
    assert run.times == {"a": (1, None), **dict.fromkeys("bcd", (None, None))}
    run.end("a")
    assert run.times == {"a": (1, 2), "b": (2, None), "c": (None, 2), "d": (None, None)}
    run(RunPaused())
    assert run.times["b"] == (2, None)
    run(RunCancelled())
    assert run.times == {"a": (1, 2), "b": (2, 4), "c": (None, 2), "d": (None, 4)}
    run(RunRetried())
    assert run.times == {"a": (1, 2), "b": (5, None), "c": (None, 2), "d": (None, None)}
    run.end("b", FAILED)
    assert run.times["b"] == (5, 6)


def test_a_state_of_a_release_that_kept_no_times_goes_on() -> None:
    run = Run(task("a"), task("b", "a"), begin={})
    stored = (
        f'{{"structure":"{run.workflow.structure}","context":{{}},'
        '"tasks":{"a":{"state":"running"},"b":{}}}'
    )
    run.state = msgspec.json.decode(stored, type=RunState)
    run.end("a")
    assert run.times == {"a": (None, 2), "b": (2, None)}


@pytest.mark.parametrize(
    ("status", "result", "error", "expected"),
    [
        (Status.DONE, b'{"n":1}', None, TaskEnded("a", DONE, {"n": 1})),
        (Status.DONE, None, None, TaskEnded("a", DONE)),
        (
            Status.DONE,
            b"[1]",
            None,
            TaskEnded("a", FAILED, None, "it returned a list, not a dict or None"),
        ),
        (Status.FAILED, None, "boom", TaskEnded("a", FAILED, None, "boom")),
        (Status.DEAD, None, "crashed", TaskEnded("a", FAILED, None, "crashed")),
        (Status.CANCELLED, None, "by hand", TaskEnded("a", CANCELLED, None, "by hand")),
    ],
)
def test_how_a_job_ended_is_how_its_task_ended(
    status: Status, result: bytes | None, error: str | None, expected: TaskEnded
) -> None:
    payload = ending(7, status, result, error)
    assert TaskEnded.of("a", msgspec.json.decode(payload, type=Ending)) == expected


def test_events_are_data() -> None:
    for event in (
        RunStarted({"a": 1}),
        TaskEnded("a", FAILED, None, "x"),
        RunPaused(),
        RunCancelled("y"),
    ):
        assert msgspec.json.decode(msgspec.json.encode(event), type=RunEvent) == event


# --- the picture


def test_the_tree() -> None:
    run = Run(
        task("extract"),
        task("clean", "extract"),
        task("check", "extract"),
        task("load", "clean", "check"),
        task("alert", "check", rule=failed("check")),
        task("report"),
        begin={},
    )
    assert tree(run.workflow) == "\n".join(
        [
            "flow v1",
            "├─ extract",
            "│  ├─ clean",
            "│  └─ check",
            "│     ├─ load (also after clean)",
            "│     └─ alert (if failed(check))",
            "└─ report",
        ]
    )
    run.end("extract")
    run.end("clean")
    run(TaskEnded("check", FAILED, None, "Traceback:\n  somewhere\nValueError: boom"))
    assert tree(run.workflow, run.state) == "\n".join(
        [
            "flow v1 running",
            "├─ ✓ extract done",
            "│  ├─ ✓ clean done",
            "│  └─ ✗ check failed: ValueError: boom",
            "│     ├─ ○ load skipped (also after clean)",
            "│     └─ ▶ alert running (if failed(check))",
            "└─ ▶ report running",
        ]
    )


def test_the_title_says_how_the_run_stands() -> None:
    run = Run(task("a"))
    titles = [tree(run.workflow, run.state).splitlines()[0]]
    for event in (RunStarted({}), RunPaused(), RunCancelled()):
        run(event)
        titles.append(tree(run.workflow, run.state).splitlines()[0])
    assert titles == ["flow v1 pending", "flow v1 running", "flow v1 paused", "flow v1 cancelled"]
    assert tree(run.workflow, run.state).splitlines()[1] == "└─ ⊘ a cancelled"
