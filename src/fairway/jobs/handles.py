"""What users hold: the job they declared, to enqueue it, and one they enqueued, to follow it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

import msgspec

from fairway.errors import InvalidRequest
from fairway.jobs.kinds import (
    Kind,
    Order,
    wrong_priority,
    wrong_queue,
    wrong_text,
)
from fairway.jobs.times import length_ns, time_ns
from fairway.runtime.words import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Self

    from fairway.jobs.context import Context
    from fairway.jobs.engine import Jobs
    from fairway.jobs.job import Job, NewJob
    from fairway.jobs.store import CancelResult

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
AT_MAX_NS: Final = 7_258_118_400 * 1_000_000_000
"""The year 2200, as over HTTP."""


class JobHandle(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A job in the store."""

    _jobs: Callable[[], Jobs]
    id: int
    fresh: bool = True
    """False if its unique key stood for a job already: this is that one."""

    def __repr__(self) -> str:
        return f"JobHandle({self.id})"

    async def result(self, timeout_s: float | None = None) -> R:
        """What it came to. Raises `JobFailed`, or `TimeoutError` if it takes longer."""
        value: R = await self._jobs().result(self.id, timeout_s)
        return value

    async def look(self) -> Job:
        """How it stands."""
        return await self._jobs().find(self.id)

    async def signal(self, name: str, payload: Any = None, *, dedup: str | None = None) -> bool:
        """Send it a signal; False if it had one of that dedup key already."""
        return await self._jobs().signal(self.id, name, payload, dedup=dedup)

    async def cancel(self, reason: str = "cancelled") -> CancelResult:
        return await self._jobs().cancel(self.id, reason=reason)


class _Declared:
    """A kind that was declared, and how its jobs are to be enqueued."""

    def __init__(
        self, jobs: Callable[[], Jobs], kind: Kind, given: Mapping[str, Any] | None = None
    ) -> None:
        self._jobs = jobs
        self._within: Any = None
        self._given = dict(given or {})
        self.kind = kind

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind.name!r})"

    def using(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        delay_s: float | None = None,
        at: datetime | None = None,
        key: str | None = None,
        window_s: float | None = None,
        partition_key: str | None = None,
        traceparent: str | None = None,
        within: Any = None,
    ) -> Self:
        """The same, enqueued with something else than was declared.

        `delay_s` or `at` start it later; `key` makes it unique, for at least `window_s`; `within`
        is a connection or session of yours: the job exists when your transaction commits.
        """
        if delay_s is not None and at is not None:
            raise InvalidRequest("a job starts after `delay_s` or `at` a time, not both")
        wrong = (queue is not None and wrong_queue(queue)) or (
            priority is not None and wrong_priority(priority)
        )
        texts = {"tenant": tenant, "key": key, "partition_key": partition_key}
        for what, text in {**texts, "traceparent": traceparent}.items():
            wrong = wrong or (text is not None and wrong_text(what, text))
        if not wrong and "" in (key, partition_key):
            wrong = "a key is not empty"
        if wrong:
            raise InvalidRequest(f"job {self.kind.name!r}: {wrong}")
        given: dict[str, Any] = {
            "queue": queue,
            "tenant": tenant,
            "priority": priority,
            "delay_ns": None if delay_s is None else max(0, time_ns("delay_s", delay_s)),
            "at_wall_ns": None if at is None else _wall_ns(at),
            "unique_key": key,
            "window_ns": None if window_s is None else length_ns("window_s", window_s),
            "partition_key": partition_key,
            "trace": traceparent,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        twin = type(self)(self._jobs, self.kind, {**self._given, **changed})
        twin._within = self._within if within is None else within
        return twin

    def _order(self, job: NewJob) -> Order:
        if self._within is not None:
            raise InvalidRequest(
                "whoever enqueues an order says `within` what: app.enqueue(..., within=...)"
            )
        return Order(job)

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[JobHandle[Any]]:
        added = await self._jobs().enqueue(jobs, within=self._within)
        return [JobHandle(self._jobs, one.id, fresh=one.fresh) for one in added]


class JobFunction(_Declared, Generic[P, R]):
    """A function that was declared as a job. Called, it runs here and now, like the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.steps[self.kind.initial].call(*args, **kwargs)

    def order(self, *args: P.args, **kwargs: P.kwargs) -> Order:
        """A job with these arguments, not enqueued: for `ctx.spawn` and `app.enqueue`."""
        return self._order(self._job(args, kwargs))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue one; durable when this returns. Arguments that do not fit are refused by name."""
        (handle,) = await self._enqueue([self._job(args, kwargs)])
        return handle

    async def enqueue_many(self, many: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Enqueue one for each set of arguments, all or none of them."""
        if not isinstance(many, Iterable):
            raise InvalidRequest(f"job {self.kind.name!r}: no list of arguments: {brief(many)}")
        return await self._enqueue(self.kind.jobs(many, **self._given))

    def _job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        values: Mapping[str, Any] = kwargs
        if args:
            names = self.kind.arguments.__struct_fields__
            if len(args) > len(names):
                raise InvalidRequest(
                    f"job {self.kind.name!r} takes {len(names)} arguments, not {len(args)}"
                )
            if twice := [name for name in names[: len(args)] if name in kwargs]:
                raise InvalidRequest(
                    f"job {self.kind.name!r}: argument {twice[0]!r} is given twice,"
                    " by its place and by its name"
                )
            values = {**dict(zip(names, args, strict=False)), **kwargs}
        return self.kind.job(values, **self._given)


class JobDecorator(Protocol):
    """Turns a function into a job. A first parameter for the context is not an argument."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[Any], P], R], /
    ) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


class Machine(_Declared, Generic[S]):
    """A state machine that was declared. Its class is the state; its methods are the steps."""

    def __call__(self, *args: Any, **fields: Any) -> S:
        """A state, as the class would make it."""
        state: S = self.kind.arguments(*args, **fields)  # type: ignore[assignment]
        return state

    def order(self, state: S) -> Order:
        """A machine that starts with this state, not enqueued."""
        return self._order(self._job(state))

    async def start(self, state: S) -> JobHandle[Any]:
        """Start one with this state; durable when this returns."""
        (handle,) = await self._enqueue([self._job(state)])
        return handle

    def _job(self, state: S) -> NewJob:
        if not isinstance(state, self.kind.arguments):
            raise InvalidRequest(
                f"machine {self.kind.name!r} starts with a {self.kind.arguments.__name__},"
                f" not with a {type(state).__name__}"
            )
        # What is stored is what can be read back: a field of the wrong type is refused here.
        try:
            fields = msgspec.to_builtins(state)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"machine {self.kind.name!r}: not JSON: {error}") from None
        return self.kind.job(fields, **self._given)


def _wall_ns(at: datetime) -> int:
    """Nanoseconds since 1970; a time before that has passed all the same."""
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidRequest("`at` is a datetime, and needs a time zone, such as datetime.now(UTC)")
    wall_ns = max(0, (at - _EPOCH) // timedelta(microseconds=1) * 1_000)
    if wall_ns > AT_MAX_NS:
        raise InvalidRequest("`at` is before the year 2200")
    return wall_ns
