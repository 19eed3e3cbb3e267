"""Trigger rules: whether a workflow task runs, once all tasks it comes after have ended.

Rules are data. They can be stored, shown and compared, and mean the same wherever they are read:

    all_of(success("extract"), context("rows", "greater_than", 0))

A rule replaces the default, which is that every dependency is done: `context(...)` alone also
holds after a failure, so say `all_of(success("extract"), context(...))` where that matters.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fairway.errors import InvalidConfig
from fairway.runtime.words import brief
from fairway.wire.encoding import NOT_JSON, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WorkflowContext: TypeAlias = dict[str, Any]
"""What tasks pass on: a JSON object."""
Op: TypeAlias = Literal[
    "equals",
    "not_equals",
    "greater_than",
    "less_than",
    "contains",
    "not_contains",
    "exists",
    "not_exists",
]
OPS: Final[tuple[Op, ...]] = get_args(Op)
End: TypeAlias = Literal["success", "failed", "skipped"]


class TaskState(Enum):
    """Where a task of a run is."""

    PENDING = "pending"
    RUNNING = "running"
    """Started, or waiting to be tried again: a job has it."""
    DONE = "done"
    FAILED = "failed"
    """Its job failed for good."""
    SKIPPED = "skipped"
    """Its rule did not hold."""
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (TaskState.PENDING, TaskState.RUNNING)


class Always(Struct, frozen=True, tag="always"):
    """Whatever came of the dependencies."""


class TaskIs(Struct, frozen=True, tag="task"):
    """A task ended in this way."""

    task: str
    end: End


class ContextIs(Struct, frozen=True, tag="context"):
    """The task's input, under one key, compares like this."""

    key: str
    op: Op
    value: Any = UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.key, str):
            raise self._wrong("a key is a string")
        if self.op not in OPS:
            raise self._wrong(f"{self.op!r} is none of {', '.join(OPS)}")
        if self.op in ("exists", "not_exists"):
            if self.value is not UNSET:
                raise self._wrong(f"{self.op} takes no value")
        elif self.value is UNSET:
            raise self._wrong(f"{self.op} needs a value")
        elif self.op in ("greater_than", "less_than") and not _ordered(self.value):
            raise self._wrong(f"{self.op} needs a number or a string")

    def _wrong(self, why: str) -> InvalidConfig:
        return InvalidConfig(f"context {self.key!r}: {why}")


class Combined(Struct, frozen=True):
    """Several rules taken together."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        if not self.rules:
            raise InvalidConfig(f"{self.__struct_config__.tag} needs at least one rule")
        for one in self.rules:
            check_rule(one)


class AllOf(Combined, frozen=True, tag="all_of"):
    """Every one holds."""


class AnyOf(Combined, frozen=True, tag="any_of"):
    """At least one holds."""


class NoneOf(Combined, frozen=True, tag="none_of"):
    """Not one holds."""


Rule: TypeAlias = Always | TaskIs | ContextIs | AllOf | AnyOf | NoneOf

FAILURES: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED})
ENDS: Final[Mapping[End, frozenset[TaskState]]] = MappingProxyType(
    {
        "success": frozenset({TaskState.DONE}),
        "failed": FAILURES,
        "skipped": frozenset({TaskState.SKIPPED}),
    }
)


def check_rule(rule: object) -> None:
    """Raise `InvalidConfig` for what is no rule, such as a function."""
    if not isinstance(rule, Rule):
        raise InvalidConfig(
            f"a rule is made by `fairway.jobs.rules`, such as success('load'), not {brief(rule)}"
        )


def always() -> Rule:
    """Run when the dependencies have ended, whatever came of them."""
    return Always()


def success(task: str) -> Rule:
    """Run if `task` is done."""
    return TaskIs(task, "success")


def failed(task: str) -> Rule:
    """Run if `task` failed, or was cancelled by hand. A task that runs by this *handles* it."""
    return TaskIs(task, "failed")


def skipped(task: str) -> Rule:
    """Run if `task` was skipped."""
    return TaskIs(task, "skipped")


def context(key: str, op: Op, value: object = UNSET) -> Rule:
    """Run if the task's input compares like this; `OPS` are the ways.

    Values are compared as JSON: `1` equals `1.0` and not `true`. Only numbers are greater or less
    than numbers, and strings than strings. A string contains a part, a list an item, an object a
    key. A missing key satisfies the `not_` ways and no others; one that is null is not missing.
    """
    return ContextIs(key, op, value if value is UNSET else _as_json(key, value))


def all_of(*rules: Rule) -> Rule:
    """Run if all of these hold."""
    return AllOf(rules)


def any_of(*rules: Rule) -> Rule:
    """Run if one of these holds."""
    return AnyOf(rules)


def none_of(*rules: Rule) -> Rule:
    """Run if none of these holds."""
    return NoneOf(rules)


def holds(
    rule: Rule, state_of: Callable[[str], TaskState], task_input: Callable[[], WorkflowContext]
) -> bool:
    """Whether a rule is true. The input is asked for only if the rule looks at it."""
    match rule:
        case Always():
            return True
        case TaskIs(task, end):
            return state_of(task) in ENDS[end]
        case ContextIs(key, op, value):
            return _compare(task_input(), key, op, value)
        case AllOf(rules):
            return all(holds(one, state_of, task_input) for one in rules)
        case AnyOf(rules):
            return any(holds(one, state_of, task_input) for one in rules)
        case NoneOf(rules):
            return not any(holds(one, state_of, task_input) for one in rules)


def named(rule: Rule) -> Iterator[str]:
    """The tasks a rule names."""
    match rule:
        case TaskIs(task, _):
            yield task
        case AllOf(rules) | AnyOf(rules) | NoneOf(rules):
            for one in rules:
                yield from named(one)


def handles(rule: Rule, *, denied: bool = False) -> Iterator[str]:
    """The tasks whose failure a rule names as a reason to run; under `none_of` it is none."""
    match rule:
        case TaskIs(task, end):
            if end == "failed" and not denied:
                yield task
        case AllOf(rules) | AnyOf(rules):
            for one in rules:
                yield from handles(one, denied=denied)
        case NoneOf(rules):
            for one in rules:
                yield from handles(one, denied=not denied)


def rule_text(rule: Rule) -> str:
    """A rule the way it is written."""
    match rule:
        case Always():
            return "always()"
        case TaskIs(task, end):
            return f"{end}({task})"
        case ContextIs(key, op, value):
            tail = "" if value is UNSET else f" {msgspec.json.encode(value).decode()}"
            return f"context({key} {op}{tail})"
        case AllOf(rules):
            return f"all_of({', '.join(map(rule_text, rules))})"
        case AnyOf(rules):
            return f"any_of({', '.join(map(rule_text, rules))})"
        case NoneOf(rules):
            return f"none_of({', '.join(map(rule_text, rules))})"


def _as_json(key: str, value: object) -> Any:
    """The value as it comes back from JSON, so that a rule means the same before and after."""
    try:
        return msgspec.json.decode(encode(value))
    except NOT_JSON as wrong:
        raise InvalidConfig(f"context {key!r}: the value is not JSON: {wrong}") from None


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(value: object) -> bool:
    return _number(value) or isinstance(value, str)


def _equal(one: Any, other: Any) -> bool:
    """Equal as JSON, where `true` is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _greater(one: Any, other: Any) -> bool:
    comparable = (_number(one) and _number(other)) or (
        isinstance(one, str) and isinstance(other, str)
    )
    return comparable and bool(one > other)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(_equal(item, part) for item in whole)
    return isinstance(whole, dict) and isinstance(part, str) and part in whole


_WAYS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "equals": _equal,
    "greater_than": _greater,
    "less_than": lambda one, other: _greater(other, one),
    "contains": _contains,
    "exists": lambda one, other: True,
}


def _compare(task_input: WorkflowContext, key: str, op: str, value: Any | UnsetType) -> bool:
    way = op.removeprefix("not_")
    found = key in task_input and _WAYS[way](task_input[key], value)
    return found if way == op else not found
