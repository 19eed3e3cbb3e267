"""`Fairway`: the parts of the runtime over one data directory, and what the user declared.

Embedded in a process it needs no server; `fairway serve module:app` puts HTTP in front of the same
object. Entering it takes the data directory, recovers, and starts the services; leaving it stops
admitting, drains and closes.
"""

from __future__ import annotations

import logging
import secrets
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast, overload

import msgspec

from fairway.core.lanes import LaneLimits
from fairway.errors import (
    Closing,
    InvalidConfig,
    InvalidRequest,
    OutcomeUnknown,
    OutOfDate,
    TryLater,
    WriteFailed,
)
from fairway.graphs.engine import Graphs
from fairway.graphs.graph import Graph
from fairway.graphs.source import Source
from fairway.jobs.clockwork import Schedule, catchup_of, scheduled_context, times_of
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.flows import Flow, triggering
from fairway.jobs.forwarding import Forwarder
from fairway.jobs.handles import JobDecorator, JobFunction, JobHandle, Machine
from fairway.jobs.kinds import (
    Order,
    function_kind,
    machine_kind,
    name_of,
    options_of,
    wrong_text,
)
from fairway.jobs.part import JobsPart, store_at
from fairway.jobs.store import Inspected
from fairway.jobs.worker import WorkerConfig
from fairway.kernel.kernel import Kernel
from fairway.kernel.opening import STANDBY_NS, Opening
from fairway.parts import PARTS, Assembly, Declared, TopicSource
from fairway.runtime.clock import sleep_ns
from fairway.runtime.targets import target_of
from fairway.runtime.telemetry import Telemetry
from fairway.runtime.turn import TURN
from fairway.runtime.usercode import interrupts
from fairway.runtime.words import brief
from fairway.storage.wals import directory_of
from fairway.storage.writer import WriterConfig
from fairway.streams.engine import Streams, StreamsConfig
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.handle import Lost, Read, Record, TopicHandle
from fairway.wire.topics import RouterConfig, TopicPatch, check_name, match_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from types import TracebackType
    from typing import Self, Unpack

    from fairway.errors import AlreadyOwned
    from fairway.graphs.graph import GraphOptions
    from fairway.graphs.source import SourceOptions
    from fairway.jobs.context import Context
    from fairway.jobs.job import NewJob
    from fairway.jobs.kinds import JobOptions
    from fairway.jobs.schedule import CatchupConfig
    from fairway.jobs.store import JobStore
    from fairway.kernel.part import Part
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.log import Log
    from fairway.storage.wal import Wal
    from fairway.topics.handle import RemoteTopics
    from fairway.wire.topics import RouterOptions, TopicOptions

T = TypeVar("T")
PartT = TypeVar("PartT", bound="Part")
P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Fairway", "Lost", "Read", "Record", "TopicHandle"]

S = TypeVar("S", bound=msgspec.Struct)

WORKER: Final = WorkerConfig()
"""Work on every queue that a declared job waits in, as eagerly as by default."""
MIB: Final = 1024 * 1024
WRITER: Final = WriterConfig(total=LaneLimits(items=65_536, size=256 * MIB))
DATA: Final = "fairway-data"
EPOCH_BITS: Final = 32
"""How far apart the epochs of two logs begin: a few thousand topics of each do not meet."""
logger = logging.getLogger("fairway")


class Fairway:
    """A durable runtime in this process.

        app = Fairway()                       # ./fairway-data on SQLite
        orders = app.topic("orders", Order)

        async with app:
            await orders.append(Order(id=1))

    A directory has one owner: `AlreadyOwned` names the process that has it.
    """

    def __init__(
        self,
        place: str | Path | Wal | Callable[[], Wal] = DATA,
        *,
        standby: bool = False,
        writer: WriterConfig = WRITER,
        topics: TopicsConfig | None = None,
        streams: StreamsConfig | None = None,
        jobs: str | Path | JobStore | None = None,
        worker: WorkerConfig | None = WORKER,
        turn: TurnBudget = TURN,
    ) -> None:
        """Topics live in `place`, and so do jobs unless `jobs` says where.

        A place has one owner. With `standby`, entering waits until whoever has it lets go, or is
        gone for as long as its lease: then this process takes over topics and graphs. (Jobs need
        none of this: any number of processes work on them.)

        `worker` says how this process works on them; None, not at all: another one does. `turn` is
        how much is done in one turn of the event loop.
        """
        self.turn = turn
        self._opening = Opening(place, standby=standby)
        self.wait_for_job_store = False
        """Whether a database of the jobs that cannot be used yet is waited for, as the commands do,
        or is an error."""
        self.first_epoch: int | None = None
        """Where a new log begins to count the incarnations of its topics; drawn by chance if None,
        so that a cursor of another log, which was here before, does not fit by accident. A test
        that must repeat itself to the byte sets it."""
        self._jobs_place = jobs
        self._worker = worker
        self._kinds = Kinds()
        self.flows: dict[str, Flow] = {}
        """The workflows that were declared, by name."""
        self._schedules: dict[str, Schedule] = {}
        self._forwarders: dict[str, Forwarder] = {}
        self.remote_topics: RemoteTopics | None = None
        """The way to the topics of a running server, in a process that only works on jobs."""
        self._declared_graphs: list[Graph] = []
        self.telemetry = Telemetry()
        self._writer = writer
        self._topics_config = topics
        self._streams_config = streams
        self._declared: dict[str, TopicHandle[Any]] = {}
        self._routers: dict[str, RouterConfig] = {}
        self._log: Log | None = None
        self._kernel: Kernel | None = None
        self._starting: tuple[Part, ...] = ()
        self._parts: dict[type[Part], Part] = {}
        self._stack: AsyncExitStack | None = None

    @overload
    def topic(self, name: str, type: type[T], **config: Unpack[TopicOptions]) -> TopicHandle[T]: ...
    @overload
    def topic(
        self, name: str, type: Any = Any, **config: Unpack[TopicOptions]
    ) -> TopicHandle[Any]: ...
    def topic(self, name: str, type: Any = Any, **config: Any) -> TopicHandle[Any]:
        """Declare a topic: what its records are, and its configuration (see `TopicConfig`).

        It is created, or configured so, when the app starts. One that was asked for later, or was
        deleted since, is made when it is appended to, read or watched. In `fairway worker` it is
        made then, too, if the worker's key may do so; if not, `NotFound` is raised.
        """
        check_name(name)
        try:
            patch = msgspec.convert(config, TopicPatch)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"topic {name!r}: {error}") from None
        known = self._declared.get(name)
        if known is not None:
            asked = type is not Any or bool(config)
            if asked and (known.type, known.patch) != (type, patch):
                raise InvalidConfig(f"topic {name!r} is declared twice, and differently")
            return known
        handle: TopicHandle[Any] = TopicHandle(self, name, type, patch)
        self._declared[name] = handle
        return handle

    def route(
        self,
        source: str,
        dest: str,
        *,
        name: str | None = None,
        **config: Unpack[RouterOptions],
    ) -> None:
        """Declare a router from one topic to another (see `RouterConfig`).

        `filter` is a tag, or a prefix of tags such as "eu.*".
        """
        given = {**config, "filter": match_of(config.get("filter"))}
        try:
            router = msgspec.convert({"source": source, "dest": dest, **given}, RouterConfig)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"router from {source!r} to {dest!r}: {error}") from None
        self._routers[name or f"{source}->{dest}"] = router

    # The order matters: a first parameter for the context is not an argument, and what a coroutine
    # comes to is the result.
    @overload
    def job(
        self, function: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context[Any], P], R], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, **options: Unpack[JobOptions]) -> JobDecorator: ...
    def job(self, *functions: Callable[..., Any], **given: Any) -> Any:
        """Declare a function, sync or async, as a job; its parameters are the job's arguments.

            @app.job(queue="mail", partition_key="order-{id}", max_attempts=5)
            async def send_receipt(ctx: Context, id: int) -> None: ...

            await send_receipt.enqueue(id=7)

        What each option buys and costs is in the reference, and in `fairway.jobs.kinds.Options`.
        """

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            name = name_of(function, "a job", given.pop("name", None))
            version = given.pop("version", 1)
            options = options_of(**given)
            kind = function_kind(function, name, version, options)
            if options.isolation == "process":
                target_of(
                    function, f"job {name!r}"
                )  # what no other process could find is refused here
            self._kinds.add(kind)
            return JobFunction(self._running_jobs, kind)

        if len(functions) > 1:
            raise InvalidConfig("jobs are declared one by one")
        return declare(*functions) if functions else declare

    @overload
    def machine(
        self, state: type[S], /, *, initial: str | None = None, **options: Unpack[JobOptions]
    ) -> Machine[S]: ...
    @overload
    def machine(
        self, *, initial: str | None = None, **options: Unpack[JobOptions]
    ) -> Callable[[type[S]], Machine[S]]: ...
    def machine(self, *states: type[Any], **given: Any) -> Any:
        """Declare a durable state machine: a `msgspec.Struct` whose public methods are its steps.

            class Order(msgspec.Struct):
                id: int

                async def place(self, ctx: Context[Order]) -> Outcome:
                    return ctx.wait("payment", then="paid", timeout_s=3600)

            orders = app.machine(Order, queue="orders")
            await orders.start(Order(id=7))

        A step returns how it goes on; the state is committed before anything else runs. It is a
        decorator, too; mypy then takes the name for the class still, and knows no `start`.
        """

        def declare(state: type[Any]) -> Machine[Any]:
            name = name_of(state, "a machine", given.pop("name", None))
            version = given.pop("version", 1)
            initial = given.pop("initial", None)
            kind = machine_kind(state, name, version, options_of(**given), initial)
            self._kinds.add(kind)
            return Machine(self._running_jobs, kind)

        if len(states) > 1:
            raise InvalidConfig("machines are declared one by one")
        return declare(*states) if states else declare

    def workflow(
        self,
        name: str,
        *,
        version: int = 1,
        queue: str = "default",
        timeout: float | None = None,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str = "UTC",
        catchup: str | CatchupConfig = "skip",
        context: Mapping[str, Any] | None = None,
    ) -> Flow:
        """Declare a workflow: a graph of tasks with a shared context, kept in the database.

            nightly = app.workflow("nightly")

            @nightly.task
            async def extract() -> dict: ...

            @nightly.task(after=extract)
            def load(rows: int) -> None: ...

        Its tasks are jobs of `queue`; `timeout` is for a whole run, in seconds. With `cron` or
        `every_s` runs start by themselves, with `context` and `scheduled_at_ms`; so do those that
        are started by hand, with what is given to them added.
        """
        if name in self.flows:
            raise InvalidConfig(f"workflow {name!r} is declared twice")
        flow = Flow(
            self._running_jobs,
            lambda id, fresh: JobHandle(self._running_jobs, id, fresh=fresh),
            name,
            version=version,
            queue=queue,
            timeout_s=timeout,
            context=context,
        )
        if cron is not None or every_s is not None:
            self.schedule(
                name, flow, cron=cron, every_s=every_s, zone=zone, catchup=catchup, values=context
            )
        self.flows[name] = flow
        return flow

    def schedule(
        self,
        name: str,
        target: Flow | JobFunction[..., Any],
        *,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str = "UTC",
        catchup: str | CatchupConfig = "skip",
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Enqueue a job, or start a workflow, at the times of a cron expression or interval.

        Each time fires once, however many workers there are. `catchup` says what becomes of times
        that passed while none ran: `skip`, `latest_only` or `run_all`. `values` are the arguments
        of the job, or the context of the run.
        """
        if not name or (wrong := wrong_text("name", name)):
            raise InvalidConfig(f"schedule {brief(name)}: {wrong if name else 'it has no name'}")
        if name in self._schedules:
            raise InvalidConfig(f"schedule {name!r} is declared twice")
        times, missed = times_of(cron, every_s, zone), catchup_of(catchup)
        if isinstance(target, Flow):
            flow = target
            flow.schedule_with(values)

            def job(at_ns: int) -> NewJob:
                return flow.order(scheduled_context(at_ns, values)).job

        else:
            if not isinstance(target, JobFunction | Machine):
                raise InvalidConfig(
                    f"schedule {name!r} is for a job or a workflow of this app, not {brief(target)}"
                )
            kind = target.kind
            try:
                kind.job(values or {})  # what does not fit is told now, not at night
            except InvalidRequest as misfit:
                raise InvalidConfig(f"schedule {name!r}: {misfit}") from None

            def job(at_ns: int) -> NewJob:
                return kind.job(values or {})

        self._schedules[name] = Schedule(
            name=name,
            times=times,
            job=job,
            catchup=missed,
        )

    def trigger(
        self, target: Flow, *, every_s: float, name: str | None = None, queue: str = "default"
    ) -> Callable[[Callable[..., Any]], JobFunction[..., Any]]:
        """Declare a function that is asked every so often whether to start a run.

        It returns the context of a run to start, or None. A context that a run is at work on
        already starts no second one.
        """

        if not isinstance(target, Flow):
            raise InvalidConfig(f"a trigger starts runs of a workflow, not of {brief(target)}")
        times_of(None, every_s, "UTC")  # refused before anything is declared

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            called = name_of(function, "a trigger", name)
            # One asking at a time: a slow one puts the next off, it does not run beside it.
            asked = self.job(
                name=f"trigger.{called}",
                queue=queue,
                partition_key=f"trigger.{called}",
                max_attempts=3,
            )(triggering(function, target))
            self.schedule(f"trigger.{called}", asked, every_s=every_s)
            return asked

        return declare

    async def enqueue(self, *orders: Order, within: Any = None) -> list[JobHandle[Any]]:
        """Enqueue jobs of any kinds, all or none of them; durable when this returns."""
        for order in orders:
            if not isinstance(order, Order):
                raise InvalidRequest(f"`job.order(...)` makes what is enqueued, not {brief(order)}")
        added = await self.jobs.enqueue([order.job for order in orders], within=within)
        return [JobHandle(self._running_jobs, one.id, fresh=one.fresh) for one in added]

    def _running_jobs(self) -> Jobs:
        return self.jobs

    @property
    def jobs(self) -> Jobs:
        """Jobs, to look at and to steer, once the app is entered."""
        return self.part(JobsPart).engine

    def forward(
        self,
        topic: str | TopicHandle[Any],
        job: JobFunction[..., Any],
        *,
        name: str | None = None,
        arguments: Callable[[Any], dict[str, Any]] | None = None,
    ) -> None:
        """Declare a router from a topic to a job: each record is enqueued as one, exactly once.

        The record's data are the job's arguments, or what `arguments` makes of it.
        """
        source = topic if isinstance(topic, str) else topic.name
        called = name or f"{source}->{job.kind.name}"
        if called in self._forwarders:
            raise InvalidConfig(f"router {called!r} is declared twice")
        self.topic(source)
        self._forwarders[called] = Forwarder(
            called,
            TopicSource(lambda: self.topics, source),
            self._running_jobs,
            job.kind,
            arguments,
        )

    def source(self, name: str, type: type[T], **options: Unpack[SourceOptions]) -> Source[T]:
        """Declare a source of graphs: what its boundaries are, and where they come from.

        See `fairway.graphs.source.Source` for the options. A topic is a source already.
        """
        return Source(name, type, **options)

    @overload
    def graph(self, declared: str, /, *, when: Any, **options: Unpack[GraphOptions]) -> Graph: ...
    @overload
    def graph(
        self,
        declared: None = None,
        /,
        *,
        when: Any,
        name: str | None = None,
        **options: Unpack[GraphOptions],
    ) -> Callable[[Callable[..., Any]], Graph]: ...
    def graph(self, declared: str | None = None, /, *, when: Any, **options: Any) -> Any:
        """Declare a graph: by its name, to add nodes to; or as the one function that it is.

            pricing = app.graph("pricing", when=any_(quotes, rates))

            @app.graph(when=any_(quotes, orders))
            def value(quotes: Quote, orders: Order) -> float: ...

        See `fairway.graphs.graph.Graph` for the options. It runs while the app does.
        """
        if declared is not None:
            return self.add_graph(Graph(declared, when=when, **options))
        scope = sys._getframe(1).f_locals

        def declare(function: Callable[..., Any]) -> Graph:
            name = options.pop("name", None) or function.__name__
            graph = Graph(name, when=when, **options)
            graph.add(function, scope=scope)
            return self.add_graph(graph)

        return declare

    def add_graph(self, graph: Graph) -> Graph:
        """Declare a graph that was made without the app, such as one of a library."""
        if any((g.tenant, g.name) == (graph.tenant, graph.name) for g in self._declared_graphs):
            raise InvalidConfig(f"graph {graph.name!r} is declared twice")
        self._declared_graphs.append(graph)
        return graph

    def part(self, kind: type[PartT]) -> PartT:
        """A part of the running app by its class: `app.part(Graphs)`."""
        return cast("PartT", self._entered(self._parts.get(kind)))

    @property
    def graphs(self) -> Graphs:
        """The graphs that run, to look at and to steer, once the app is entered."""
        return self.part(Graphs)

    @property
    def log(self) -> Log:
        """The log underneath, once the app is entered."""
        return self._entered(self._log)

    @property
    def kernel(self) -> Kernel:
        """What all parts share, once the app is entered."""
        return self._entered(self._kernel)

    @property
    def topics(self) -> Topics:
        """The engine underneath, once the app is entered."""
        return self.part(Topics)

    def _entered(self, found: T | None) -> T:
        if found is None:
            raise Closing("the app is not running: enter it with `async with app:`")
        return found

    @property
    def place(self) -> str | Path | Wal | Callable[[], Wal]:
        """Where the log is."""
        return self._opening.place

    @place.setter
    def place(self, place: str | Path | Wal | Callable[[], Wal]) -> None:
        self._opening.place = place

    @property
    def standby(self) -> bool:
        """Whether entering waits until the log is free."""
        return self._opening.standby

    @standby.setter
    def standby(self, standby: bool) -> None:
        self._opening.standby = standby

    @property
    def when_standing_by(self) -> list[Callable[[AlreadyOwned], None]]:
        """Told each time entering begins to wait for another process, and for which."""
        return self._opening.when_standing_by

    @property
    def streams(self) -> Streams:
        """The Durable Streams of this app, once it is entered."""
        return self.part(Streams)

    @property
    def stands_by_again(self) -> bool:
        """Whether it can be entered once more after another process took the log over."""
        return self._opening.repeats

    @property
    def progress(self) -> dict[str, object]:
        """How far recovery has come."""
        if self._opening.stands_by or self._stands_by_next:
            return {"standing_by": True}
        progress: dict[str, object] = {"replay_progress": 0.0}
        for part in self._starting:
            progress |= part.progress()
        return progress

    @property
    def _stands_by_next(self) -> bool:
        """Whether another process has the log by now, and this one waits for it from here on."""
        return self._log is not None and self._log.lost is not None and self.stands_by_again

    async def __aenter__(self) -> Self:
        """Start. One that stood by goes on to do so if its store fails while it takes over."""
        reason = ""
        while True:
            try:
                await self._start()
                return self
            except (TryLater, OutOfDate, WriteFailed, OutcomeUnknown) as error:
                if not (self._opening.stood_by and self.stands_by_again):
                    raise
                if str(error) != reason:
                    logger.warning("standing by: %s", error)
                reason, self._opening.stands_by = str(error), True
            await sleep_ns(STANDBY_NS)

    async def _start(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self._forget_started)
            stack.enter_context(interrupts())
            if self._opening.creates:
                await self._inspect_jobs()
            log = await self._opening.open(stack, self._writer, self.telemetry, self.turn)
            kernel = await stack.enter_async_context(
                Kernel(
                    log,
                    telemetry=self.telemetry,
                    reserve=self._opening.reserve,
                    first_epoch=self.first_epoch or 1 + secrets.randbits(EPOCH_BITS),
                )
            )
            assembly = Assembly(kernel, self._declared_so_far())
            for make in PARTS:
                part = make(assembly)
                assembly.parts[type(part)] = part
            self._starting = tuple(assembly.parts.values())
            # The files of the log stay as they are until its topics were read. Whatever is wrong
            # with those of other parts has to be met before that: a refused start changes none.
            for part in self._starting:
                await part.inspect()
            self._log, self._kernel = log, kernel
            for part in self._starting:
                self._parts[type(part)] = part  # it is open for its own code as soon as it can be
                await stack.enter_async_context(part)
            self._stack = stack.pop_all()

    async def _inspect_jobs(self) -> None:
        """Before a log is made: it would stay, if jobs that lie there already are refused later."""
        store = self._declared_so_far().job_store
        if isinstance(store, Inspected):
            with suppress(TryLater):  # only busy: their part looks again, and may wait
                await store.inspect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._stack is not None
        self._opening.stands_by = self._opening.stood_by = self._stands_by_next
        await self._stack.__aexit__(kind, error, trace)

    def _forget_started(self) -> None:
        self._log = self._kernel = self._stack = None
        self._starting = ()
        self._parts = {}

    @asynccontextmanager
    async def working(
        self,
        worker: WorkerConfig | None = None,
        *,
        topics: RemoteTopics | None = None,
        store: JobStore | None = None,
    ) -> AsyncIterator[JobsPart]:
        """Work on jobs, and on nothing else: the log is left to the server that owns it.

        Any number of processes may do this at once. `topics` is how topic handles reach the
        server; without it they are refused. `store` is another place for jobs than the app's own.
        """
        declared = self._declared_so_far(worker, store)
        part = JobsPart(
            declared.job_store,
            declared.kinds,
            declared.worker,
            declared.schedules,
            declared.telemetry,
            wait_for_store=declared.wait_for_job_store,
        )
        self._parts[JobsPart] = part
        self.remote_topics = topics
        try:
            with interrupts():
                async with part:
                    yield part
        finally:
            self._parts, self.remote_topics = {}, None

    def _declared_so_far(
        self, worker: WorkerConfig | None = None, store: JobStore | None = None
    ) -> Declared:
        place: Any = self._place_of_jobs if store is None else store
        for flow in self.flows.values():
            flow.declare(self._kinds)
        worker = worker or (self._worker if self._kinds.newest else None)
        if worker is WORKER:
            worker = WorkerConfig(queues={queue: FeederConfig() for queue in self.queues})
        return Declared(
            topics=self._declared,
            topics_config=self._topics_config,
            streams_config=self._streams_config,
            routers=self._routers,
            job_store=store_at(place) if isinstance(place, str | Path) else place,
            jobs_on_our_disk=_on_one_disk(self.place, place),
            kinds=self._kinds,
            worker=worker,
            schedules=self._schedules,
            forwarders=self._forwarders.values(),
            graphs=self._declared_graphs,
            telemetry=self.telemetry,
            wait_for_job_store=self.wait_for_job_store,
        )

    @property
    def _place_of_jobs(self) -> Any:
        if self._jobs_place is not None:
            return self._jobs_place
        return self.place if isinstance(self.place, str | Path) else "memory:"

    @property
    def queues(self) -> list[str]:
        """Every queue that a declared job waits in."""
        for flow in self.flows.values():
            flow.declare(self._kinds)
        return sorted({kind.options.queue for kind in self._kinds.by_version.values()})


def _on_one_disk(one: object, other: object) -> bool:
    """Whether both are directories, and of one file system."""
    paths = [directory_of(place) for place in (one, other) if isinstance(place, str | Path)]
    found = [path for path in paths if path is not None and path.is_dir()]
    return len(found) == 2 and len({path.stat().st_dev for path in found}) == 1
