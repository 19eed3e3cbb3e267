"""What the user declared: kinds of jobs, their arguments, and everything decided about them.

A kind knows how to turn arguments into a `NewJob` (and refuses those that do not fit, with the
field named) and how to read a claim back. It runs nothing.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, fields
from hashlib import sha256
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args, get_type_hints

import msgspec

from fairway.core.backoff import BackoffConfig
from fairway.errors import InvalidConfig, InvalidRequest
from fairway.jobs.context import Context
from fairway.jobs.job import KEY_MAX, MAX_ATTEMPTS, MAX_CRASHES, NO_TENANT, RUN, JobBatch, NewJob
from fairway.jobs.times import SECOND_NS, TIME_MAX_NS, timeout_ns
from fairway.runtime.words import brief
from fairway.wire.encoding import NOT_JSON, check_numbers, encode_given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeGuard

BACKOFF: Final = BackoffConfig(base_ns=SECOND_NS, cap_ns=300 * SECOND_NS, jitter=0.25)
"""1 s, doubled after each failure, at most 5 minutes, less up to a quarter by chance."""
TRIES_MAX: Final = 1_000_000

Isolation = Literal["none", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """At most one job per key, while it lives and for `window_ns` after it was enqueued."""

    key: str | None = None
    """A template over the arguments, such as `order-{id}`; None takes all of them."""
    window_ns: int = 0

    def __post_init__(self) -> None:
        _check_template("unique", self.key)
        if not _is_int(self.window_ns) or not 0 <= self.window_ns <= TIME_MAX_NS:
            raise InvalidConfig("window_ns is 0 or more, and a hundred years at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds for every job of a kind, unless it is enqueued with something else."""

    queue: str = "default"
    """Where it waits."""
    priority: int = 0
    """-1000 to 1000; 750 and more is the most urgent band."""
    max_attempts: int = MAX_ATTEMPTS
    """Tries in all, deaths of its worker included. Raising it outlasts longer outages of what the
    job needs; a job that can never succeed is tried longer."""
    max_crashes: int = MAX_CRASHES
    """How often its worker may die while it has the job, before it is put aside as dead."""
    backoff: BackoffConfig = BACKOFF
    """How long to wait between attempts."""
    timeout_ns: int | None = None
    """How long one run may take."""
    partition_key: str | None = None
    """A template over the arguments: at most one job per key runs, over all workers."""
    strict: bool = False
    """Jobs of one key run in the order they were enqueued, whatever becomes of each."""
    tenant: str = NO_TENANT
    """A template over the arguments: tenants take turns."""
    unique: Unique | None = None
    isolation: Isolation = "none"
    """`process` runs it in a process of its own, which a timeout or a cancel ends."""

    def __post_init__(self) -> None:
        if wrong := wrong_queue(self.queue) or wrong_priority(self.priority):
            raise InvalidConfig(wrong)
        for limit in (self.max_attempts, self.max_crashes):
            if not _is_int(limit) or not 1 <= limit <= TRIES_MAX:
                raise InvalidConfig(
                    f"max_attempts and max_crashes are at least 1, and {TRIES_MAX:,} at most"
                )
        if self.timeout_ns is not None and not 0 < self.timeout_ns <= TIME_MAX_NS:
            raise InvalidConfig("a timeout is positive, and a hundred years at most")
        if self.isolation not in get_args(Isolation):
            raise InvalidConfig(
                f"isolation is none or process, not {brief(self.isolation)}: a synchronous job"
                " runs in a thread anyway"
            )
        if not isinstance(self.backoff, BackoffConfig):
            raise InvalidConfig(f"backoff is a BackoffConfig, not {brief(self.backoff)}")
        if not isinstance(self.strict, bool):
            raise InvalidConfig(f"strict is True or False, not {brief(self.strict)}")
        _check_template("partition_key", self.partition_key)
        _check_template("tenant", self.tenant)


class TaskOptions(TypedDict, total=False):
    """What a task of a workflow may be declared with: see `Options`."""

    queue: str
    priority: int
    max_attempts: int
    max_crashes: int
    backoff: BackoffConfig
    timeout: float | None
    isolation: Isolation


class JobOptions(TypedDict, total=False):
    """What a job or a machine may be declared with: see `Options`."""

    name: str | None
    version: int
    queue: str
    priority: int
    max_attempts: int
    max_crashes: int
    backoff: BackoffConfig
    timeout: float | None
    partition_key: str | None
    strict: bool
    tenant: str
    unique: bool | str | Unique
    isolation: Isolation


def wrong_queue(name: object) -> str | None:
    """What is wrong with the name of a queue that jobs are to wait in."""
    if name in ("", "*"):
        return "a queue has a name, and `*` stands for all of them"
    return wrong_text("queue", name)


def wrong_priority(priority: object) -> str | None:
    if _is_int(priority) and -1000 <= priority <= 1000:
        return None
    return f"a priority is a whole number between -1000 and 1000, not {brief(priority)}"


def wrong_text(what: str, text: object) -> str | None:
    """What is wrong with a name or a key: every store can keep it, and find it again."""
    if not isinstance(text, str):
        return f"its {what} is a string, not {brief(text)}"
    if len(text) > KEY_MAX:
        return f"its {what} is longer than {KEY_MAX} characters"
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        return f"its {what} holds half a character: a lone surrogate"
    return f"its {what} holds a zero byte" if "\0" in text else None


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_template(what: str, template: object) -> None:
    if template is None:
        return
    if not isinstance(template, str):
        raise InvalidConfig(f"{what} is a template such as 'order-{{id}}', not {brief(template)}")
    try:
        list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidConfig(f"the template {template!r} of {what}: {error}") from None


def _needed(template: str) -> Iterator[str]:
    """The arguments that a template is filled with, those inside of formats too."""
    for _, name, form, _ in Formatter().parse(template):
        if name is not None:
            yield re.split(r"[.\[]", name)[0]
            yield from _needed(form or "")


def options_of(
    *, timeout: float | None = None, unique: bool | str | Unique = False, **given: Any
) -> Options:
    """Options as people write them: seconds, and `unique` as a flag or a template."""
    if unique is True:
        unique = Unique()
    elif isinstance(unique, str):
        unique = Unique(key=unique)
    elif unique is not False and not isinstance(unique, Unique):
        raise InvalidConfig(f"unique is True, a template or a Unique, not {brief(unique)}")
    if unknown := given.keys() - _GIVEN:
        raise InvalidConfig(f"there is no option {min(unknown)!r}: there are {', '.join(_GIVEN)}")
    return Options(timeout_ns=timeout_ns(timeout), unique=unique or None, **given)


_GIVEN: Final = tuple(
    one.name for one in fields(Options) if one.name not in ("timeout_ns", "unique")
)


@dataclass(frozen=True, slots=True)
class Order:
    """A job to be, with its arguments checked: what `spawn` and `enqueue` take."""

    job: NewJob


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of job: a function, or a state machine."""

    name: str
    version: int
    options: Options
    arguments: type[msgspec.Struct]
    """The arguments of the function, or the state of the machine."""
    initial: str
    steps: Mapping[str, StepCall]
    decoder: msgspec.json.Decoder[Any] = field(repr=False)
    is_machine: bool
    declared: Any = None
    """The function or class it was made of, for a process to find it again."""
    is_task: bool = False
    """Whether it is a task of a workflow, and is given the context."""

    def __post_init__(self) -> None:
        if not self.name or (wrong := wrong_text("name", self.name)):
            raise InvalidConfig(wrong if self.name else "a job has a name")
        if not _is_int(self.version) or not 0 <= self.version < 2**31:
            raise InvalidConfig(
                f"job {self.name!r}: a version is a number, not {brief(self.version)}"
            )
        options, known = self.options, set(self.arguments.__struct_fields__)
        unique = options.unique.key if options.unique is not None else None
        for what, template in (
            ("partition_key", options.partition_key),
            ("tenant", options.tenant),
            ("unique", unique),
        ):
            for needed in _needed(template or ""):
                if needed not in known:
                    raise InvalidConfig(
                        f"job {self.name!r}: the template {template!r} of {what} needs {needed!r},"
                        f" and its arguments are {', '.join(sorted(known)) or 'none'}"
                    )

    def call(self, step: StepCall, state: Any, context: Context[Any] | None) -> Any:
        """Call a step as it was written: a method of the state, or a function of its arguments."""
        if self.is_machine:
            return step.call(state, context) if step.wants_context else step.call(state)
        arguments = {name: getattr(state, name) for name in state.__struct_fields__}
        return step.call(context, **arguments) if step.wants_context else step.call(**arguments)

    def job(self, values: Mapping[str, Any], **given: Any) -> NewJob:
        """A job with these arguments. Raises `InvalidRequest` naming the one that does not fit."""
        return self.job_with(self._checked(values), **given)

    def jobs(self, many: Iterable[Mapping[str, Any]], **given: Any) -> Sequence[NewJob]:
        """A job for each of these arguments, as `job` makes them."""
        states = self._all_checked(list(many))
        if not states or self._templated:
            return [self.job_with(state, **given) for state in states]
        first = self.job_with(states[0], **given)
        try:
            encoded = list(map(msgspec.json.encode, states))
        except NOT_JSON:
            encoded = [self._encoded(state) for state in states]  # to say why
        try:
            for state, one in zip(states, encoded, strict=True):
                check_numbers(one, state)
        except ValueError as error:
            raise InvalidRequest(f"job {self.name!r}: an argument is not JSON: {error}") from None
        return JobBatch(first, encoded)

    def _all_checked(self, many: list[Mapping[str, Any]]) -> list[msgspec.Struct]:
        try:
            checked: list[msgspec.Struct] = msgspec.convert(many, list[self.arguments])  # type: ignore[name-defined]
            return checked
        except (msgspec.ValidationError, UnicodeError):
            return [self._checked(values) for values in many]  # to say which, and by its name

    def _checked(self, values: Mapping[str, Any]) -> msgspec.Struct:
        """The arguments, or the state, of these values."""
        try:
            return msgspec.convert(values, self.arguments)
        except (msgspec.ValidationError, UnicodeError):
            pass  # perhaps a value is an object with the right attributes
        try:
            return msgspec.convert(dict(values), self.arguments, from_attributes=True)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"job {self.name!r}: {_with_argument_names(str(error))}") from None
        except (TypeError, ValueError):
            raise InvalidRequest(
                f"job {self.name!r}: its arguments are a mapping, not {brief(values)}"
            ) from None

    def _encoded(self, state: msgspec.Struct) -> bytes:
        """The arguments as they are stored; refused if they could not be read back."""
        return encode_given(state, f"job {self.name!r}: an argument")

    @property
    def _templated(self) -> bool:
        """Whether a job's key, tenant or uniqueness depends on its arguments."""
        options = self.options
        return (
            options.unique is not None or options.partition_key is not None or "{" in options.tenant
        )

    def job_with(self, state: msgspec.Struct, **given: Any) -> NewJob:
        """A job with arguments that were checked already."""
        options = self.options
        unique = options.unique
        key = given.pop("unique_key", None)
        window_ns = given.pop("window_ns", None)
        encoded = self._encoded(state)
        if key is None and unique is not None:
            rest = _filled(unique.key, state) if unique.key else _short(encoded)
            key = f"{self.name}:{rest}"
        partition_key = given.pop("partition_key", None)
        if partition_key is None and options.partition_key is not None:
            partition_key = _filled(options.partition_key, state)
        tenant = given.pop("tenant", None)
        if tenant is None:
            tenant = _filled(options.tenant, state) if "{" in options.tenant else options.tenant
        named = {"tenant": tenant, "partition_key": partition_key, "unique_key": key}
        for what, text in named.items():
            if text is not None and (wrong := wrong_text(what, text)):
                raise InvalidRequest(f"job {self.name!r}: {wrong}")
        return NewJob(
            kind=self.name,
            version=self.version,
            state=encoded,
            step=self.initial,
            queue=given.pop("queue", None) or options.queue,
            tenant=tenant,
            priority=_or(given.pop("priority", None), options.priority),
            max_attempts=options.max_attempts,
            max_crashes=options.max_crashes,
            partition_key=partition_key,
            strict=options.strict,
            unique_key=key,
            window_ns=_or(window_ns, unique.window_ns if unique is not None else 0),
            **given,
        )


@dataclass(frozen=True, slots=True)
class StepCall:
    """How a step is called."""

    call: Callable[..., Any]
    is_async: bool
    wants_context: bool


def name_of(declared: object, what: str, name: object = None) -> str:
    """What a function or class is declared as. Raises `InvalidConfig` for what is neither."""
    if not callable(declared):
        raise InvalidConfig(f"{what} is a function or a class, not {brief(declared)}")
    called = getattr(declared, "__name__", None) if name in (None, "") else name
    if called is None:
        raise InvalidConfig(f"{what}: {brief(declared)} has no name of its own: give `name`")
    if wrong := wrong_text("name", called):
        raise InvalidConfig(f"{what}: {wrong}")
    return str(called)


def function_kind(function: Callable[..., Any], name: str, version: int, options: Options) -> Kind:
    """The kind of a plain function: its parameters are the job's arguments."""
    hints = _hints(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidConfig(f"job {name!r}: its parameters are not known: {error}") from None
    wants_context = bool(parameters) and _is_context(parameters[0], hints)
    fields: list[Any] = []
    for parameter in parameters[wants_context:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidConfig(
                f"job {name!r}: parameter {parameter.name!r} takes any number of values;"
                " a job's arguments are stored, so each has a name"
            )
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    try:
        arguments = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True, module=__name__
        )
        decoder = msgspec.json.Decoder(arguments)
    except TypeError as error:
        raise InvalidConfig(f"job {name!r}: {error}") from None
    step = StepCall(function, inspect.iscoroutinefunction(function), wants_context)
    return Kind(name, version, options, arguments, RUN, {RUN: step}, decoder, False, function)


def machine_kind(
    state: type, name: str, version: int, options: Options, initial: str | None
) -> Kind:
    """The kind of a state machine: a struct whose public methods are its steps."""
    if not (isinstance(state, type) and issubclass(state, msgspec.Struct)):
        raise InvalidConfig(
            f"machine {name!r}: its class is a msgspec.Struct; the fields are the state that is"
            " saved, the methods are the steps"
        )
    steps = {}
    for step, method in vars(state).items():
        if step.startswith("_") or not inspect.isfunction(method):
            continue
        wants_context = len(inspect.signature(method).parameters) > 1
        steps[step] = StepCall(method, inspect.iscoroutinefunction(method), wants_context)
    if not steps:
        raise InvalidConfig(f"machine {name!r} has no steps: each public method is one")
    first = initial or next(iter(steps))
    if first not in steps:
        raise InvalidConfig(f"machine {name!r} has no step {first!r} to begin with")
    decoder = msgspec.json.Decoder(state)
    return Kind(name, version, options, state, first, steps, decoder, True, state)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    # What it returns, and the type of its context, may be known to checkers alone.
    wanted = {
        name: hint
        for name, hint in getattr(function, "__annotations__", {}).items()
        if name not in ("return", "ctx")
    }

    def arguments() -> None: ...

    arguments.__annotations__ = wanted
    scope = getattr(inspect.unwrap(function), "__globals__", None)
    try:
        return get_type_hints(arguments, globalns=scope, include_extras=True)
    except NameError as error:
        raise InvalidConfig(
            f"job {function.__qualname__!r}: its annotations name something unknown: {error};"
            " types of arguments are needed at run time, not only under TYPE_CHECKING"
        ) from None


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    hint = hints.get(parameter.name)
    return parameter.name == "ctx" or (isinstance(hint, type) and issubclass(hint, Context))


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: type(value)(value))
    return value


def _filled(template: str, state: msgspec.Struct) -> str:
    try:
        return template.format(**msgspec.structs.asdict(state))
    except (KeyError, IndexError, AttributeError) as error:
        raise InvalidRequest(f"the template {template!r} needs {error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the template {template!r} cannot be filled: {error}") from None


def _short(arguments: bytes) -> str:
    """What stands for all arguments in a key: themselves, unless they are long."""
    text = arguments.decode()
    return text if len(text) <= KEY_MAX // 2 else sha256(arguments).hexdigest()


def _or(given: Any, otherwise: Any) -> Any:
    return otherwise if given is None else given


def _with_argument_names(message: str) -> str:
    """msgspec says `$.id`; a caller knows the argument `id`."""
    return (
        message.replace("Object missing required field", "missing argument")
        .replace("Object contains unknown field", "unknown argument")
        .replace("`$.", "`")
    )
