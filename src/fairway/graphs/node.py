"""A node of a graph: a function, what it takes and what it gives, as its annotations say."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fairway.errors import InvalidConfig
from fairway.graphs.context import FiringContext
from fairway.runtime.amounts import length_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Isolation: TypeAlias = Literal["none", "process"]


@dataclass(frozen=True, slots=True)
class NodeParameter:
    """One parameter: an edge from the source or node it is named after."""

    name: str
    accepts: tuple[Any, ...]
    """The types it takes; several if it is a union. `Any` takes all."""
    optional: bool
    """Whether it may be absent."""


@dataclass(frozen=True, slots=True)
class Node:
    """A function of a graph."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[NodeParameter, ...]
    context: str | None
    """The parameter that is given the `FiringContext`, if it asks for one."""
    gives: tuple[Any, ...]
    """The types it returns, None left out; several if it is a union."""
    is_async: bool
    blocking: bool = False
    isolation: Isolation = "none"
    timeout_s: float | None = None
    gives_none: bool = True
    """Whether it may return None, as it declares."""

    @property
    def where(self) -> str:
        """The function and the place of its definition, for messages."""
        return f"{self.name!r} ({place_of(self.function)})"

    @property
    def inline(self) -> bool:
        """Whether it is called as it is: on the loop, to its end."""
        return not (self.is_async or self.blocking or self.isolation == "process")


def node_of(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    blocking: bool = False,
    isolation: Isolation = "none",
    timeout_s: float | None = None,
    scope: Mapping[str, Any] | None = None,
) -> Node:
    """Read a function. `scope` is where it was defined, if that is not a module."""
    if not inspect.isroutine(inspect.unwrap(function)):
        raise InvalidConfig(f"node {name or function!r} is not a function: write a def around it")
    called = name or function.__name__
    label = f"node {called!r} ({place_of(function)})"
    is_async = inspect.iscoroutinefunction(function)
    if blocking and is_async:
        raise InvalidConfig(f"{label} is async: leave out blocking=True, or make it a plain def")
    if blocking and isolation == "process":
        raise InvalidConfig(f"{label} runs in a thread or in a process: choose one")
    if isolation not in ("none", "process"):
        raise InvalidConfig(f"{label}: isolation is 'none' or 'process', not {isolation!r}")
    if timeout_s is not None:
        length_ns(f"{label}: timeout_s", timeout_s)
    if timeout_s is not None and not (is_async or blocking or isolation == "process"):
        raise InvalidConfig(
            f"{label} runs on the event loop, where nothing can stop it: make it async,"
            " or give it blocking=True or isolation='process' with its timeout_s"
        )
    hints = _hints(function, label, scope)
    context = None
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidConfig(
                f"{label} takes any number of inputs with {parameter.name!r}: name each of them"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidConfig(
                f"{label} takes {parameter.name!r} by position only: leave out the '/', inputs are"
                " given by name"
            )
        hint = hints.get(parameter.name, Any)
        if isinstance(hint, type) and issubclass(hint, FiringContext):
            context = parameter.name
            continue
        accepts = members(hint)
        optional = type(None) in accepts or parameter.default is None
        accepts = tuple(each for each in accepts if each is not type(None)) or (Any,)
        parameters.append(NodeParameter(parameter.name, accepts, optional))
    if context is not None and isolation == "process":
        raise InvalidConfig(
            f"{label} runs in another process, where the firing is out of reach: let it return what"
            f" a node without isolation then does with {context!r}"
        )
    returned = members(hints.get("return", Any))
    gives = tuple(each for each in returned if each is not type(None))
    return Node(
        called,
        function,
        tuple(parameters),
        context,
        gives,
        is_async,
        blocking,
        isolation,
        timeout_s,
        Any in returned or type(None) in returned,
    )


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type that it is."""
    if hint is None:
        return (type(None),)
    if get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(member for each in get_args(hint) for member in members(each))
    return (hint,)


def fits(given: Any, taken: Any) -> bool:
    """Whether a value of one type may be given where the other is taken."""
    if given is Any or taken in (Any, object) or given == taken:
        return True
    inside = get_args(taken)
    if inside and get_args(given) not in ((), inside):
        return False
    # list[Quote] fits list and Sequence; what is inside was checked where it was made.
    given, taken = get_origin(given) or given, get_origin(taken) or taken
    if (given is int and taken in (float, complex)) or is_protocol(taken):
        return True  # what has the methods of a protocol is not ours to say
    if is_typeddict(taken) or not (isinstance(given, type) and isinstance(taken, type)):
        return False
    return issubclass(given, taken)


def is_protocol(hint: Any) -> bool:
    return bool(getattr(hint, "_is_protocol", False))


def named(hint: Any) -> str:
    """A type as people write it."""
    if hint is Any:
        return "Any"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "built in"


def _hints(
    function: Callable[..., Any], label: str, scope: Mapping[str, Any] | None
) -> dict[str, Any]:
    try:
        return get_type_hints(inspect.unwrap(function), localns=dict(scope) if scope else None)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidConfig(
            f"{label}: its annotations name something unknown: {error}; types of inputs are needed"
            " at run time, not only under TYPE_CHECKING"
        ) from None
