"""Scenes for callers that meet at one job store: what is there, and what each may ask of it.

A scene is set up by the same calls on PostgreSQL and on its twin in memory. Then some of its acts
are played at once, and what came of them must be what comes of them one after the other, in some
order, on the twin. Jobs are called by their labels, as in `job_histories`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fairway.core.priority import Band
from fairway.jobs.job import Fate, Filter, Limits, NewJob, ReadyLine, Reaped, Settlement, Status
from fairway.jobs.store import Promoted, TopicCursor, Want
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.stores.postgres import PostgresStore
from fairway.testing.loop import WALL_START_NS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from fairway.jobs.job import Claim
    from fairway.jobs.store import Exchanged, JobStore

SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
OLD_NS, DUE_NS, SOON_NS = (WALL_START_NS + hours * HOUR_NS for hours in (-2, 0, 1))
EVERYTHING = Filter(limit=10_000)


@dataclass
class Cast:
    """What a scene was set up with: its jobs and workers by name, and what they hold."""

    ids: dict[str, int] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)

    async def add(self, store: JobStore, label: str, **fields: Any) -> None:
        (added,) = await store.enqueue([new(label, **fields)])
        self.ids[label] = added.id

    async def hire(self, store: JobStore, *names: str, ttl_ns: int = HOUR_NS) -> None:
        for name in names:
            self.workers[name] = await store.register(name, ttl_ns)

    async def give(self, store: JobStore, worker: str, *labels: str, queue: str = "q") -> None:
        """A worker claims the first jobs of a queue, which are these."""
        wants = [Want(line(queue), len(labels))]
        out = await store.exchange(self.workers[worker], 1, wants=wants)
        assert tuple(claim.trace for claim in out.claims) == labels, (out.claims, labels)
        for claim in out.claims:
            assert claim.trace is not None
            self.claims[claim.trace] = claim
            self.ids[claim.trace] = claim.id

    async def settle(
        self, store: JobStore, worker: str, label: str, fate: Fate, **more: Any
    ) -> None:
        one = Settlement(claim=self.claims[label], fate=fate, **more)
        await store.exchange(self.workers[worker], 2, [one])


def new(label: str, **fields: Any) -> NewJob:
    return NewJob(kind="work", **{"queue": "q", "trace": label, **fields})


def line(queue: str = "q", band: Band = Band.B1, tenant: str = "") -> ReadyLine:
    return ReadyLine(queue, tenant, band)


Ask: TypeAlias = "Callable[[JobStore, Cast], Awaitable[Any]]"


class Act(NamedTuple):
    """One call of a store, and what of its answer is promised to whoever calls beside others."""

    ask: Ask
    summarize: Callable[[Any, Mapping[int, str]], Any]
    parts: tuple[tuple[Ask, ...], ...] = ()
    """The same as several calls, where others may come between, each with what may be asked
    instead; what is read of them is added up."""
    passing: tuple[Ask, ...] = ()
    """What may be asked instead of the last call if another act claims, too."""
    idle: tuple[Ask, ...] = ()
    """What may be asked instead if the same act is played twice: the other has all of it in hand,
    and this one passes it by."""


def enqueue(*jobs: NewJob) -> Act:
    return Act(
        lambda store, cast: store.enqueue(list(jobs)),
        lambda added, names: [(names[one.id], one.fresh) for one in added],
    )


def follow(seq: int, *jobs: NewJob) -> Act:
    """The jobs of records up to `seq`, for whoever comes first."""
    return Act(
        lambda store, cast: store.enqueue(list(jobs), cursor=TopicCursor("c", 1, seq)),
        lambda added, names: [(names[one.id], one.fresh) for one in added],
    )


def enqueue_within(*jobs: NewJob) -> Act:
    """In a transaction of the caller's; the twin knows no such thing and needs none."""

    async def ask(store: JobStore, cast: Cast) -> Any:
        if not isinstance(store, PostgresStore):
            return await store.enqueue(list(jobs))
        async with store._connections.connection() as connection, connection.transaction():
            return await store.enqueue(list(jobs), within=connection)

    return Act(ask, lambda added, names: [(names[one.id], one.fresh) for one in added])


def exchange(
    worker: str,
    *fates: tuple[str, Fate] | tuple[str, Fate, dict[str, Any]],
    wants: Mapping[ReadyLine, int] | None = None,
    probe: bool = False,
    passes: tuple[str, ...] = (),
) -> Act:
    """What it settles and what it claims are one commit. But that a claim misses what others make
    ready, or room that they make, while it is under way is no promise broken: it may look as if it
    came before or after, or as if it had asked for less. More than it may have it never gets.

    `passes`: jobs whose key has no strict order. A claim passes by those that another one looks at,
    which may leave them where they are since their key is taken; a later one of the key is next.
    """

    async def settle(store: JobStore, cast: Cast) -> Exchanged:
        return await store.exchange(cast.workers[worker], 5, _settlements(cast, fates))

    def claim(*most: int, past: tuple[str, ...] = ()) -> Ask:
        asked = [Want(line, n) for line, n in zip(wants or {}, most, strict=True) if n]

        async def ask(store: JobStore, cast: Cast) -> Exchanged:
            with _looked_at_by_another(store, [cast.ids[label] for label in past]):
                return await store.exchange(cast.workers[worker], 5, wants=asked)

        return ask

    async def ask(store: JobStore, cast: Cast) -> Exchanged:
        return await store.exchange(
            cast.workers[worker],
            5,
            _settlements(cast, fates),
            [Want(*want) for want in (wants or {}).items()],
            ["q"] if probe else [],
        )

    def summarize(out: Exchanged, names: Mapping[int, str]) -> Any:
        claims = sorted(
            (
                names[one.id], one.attempt, one.crashes, one.step, one.timed_out,
                tuple((signal.name, signal.payload) for signal in one.signals),
                tuple((names[child.id], child.status.ended) for child in one.children),
            )
            for one in out.claims
        )  # fmt: skip
        ended = sorted((names[one.id], one.status.word, one.error) for one in out.ended)
        return Counter(
            [
                *(("claim", *claim) for claim in claims),
                *(("stale", names[id]) for id in out.stale),
                *(("ended", *one) for one in ended),
            ]
        )

    parts: list[tuple[Ask, ...]] = [(settle,)] if fates else []
    passing: list[Ask] = []
    if wants:
        fewer = list(itertools.product(*(range(most, -1, -1) for most in wants.values())))
        parts.append(tuple(claim(*most) for most in fewer))
        passed = (
            some for n in range(len(passes)) for some in itertools.combinations(passes, n + 1)
        )
        passing = [claim(*most, past=some) for some in passed for most in fewer]
    return Act(ask, summarize, tuple(parts), tuple(passing))


@contextmanager
def _looked_at_by_another(store: JobStore, jobs: Sequence[int]) -> Iterator[None]:
    """For the twin: these jobs are there, and a claim does not see them."""
    assert isinstance(store, MemoryStore) or not jobs
    rows = [store._rows[job] for job in jobs] if isinstance(store, MemoryStore) else []
    hidden = [row for row in rows if row.status is Status.READY]
    for row in hidden:
        row.status = Status.SCHEDULED
    yield
    for row in hidden:
        row.status = Status.READY


def _settlements(cast: Cast, fates: Any) -> list[Settlement]:
    return [
        Settlement(claim=cast.claims[label], fate=fate, **dict(*more))
        for label, fate, *more in fates
    ]


def signal(label: str, name: str, payload: bytes, dedup: str | None = None) -> Act:
    return Act(
        lambda store, cast: store.signal(cast.ids[label], name, payload, dedup=dedup),
        lambda out, names: (out.job is not None, out.fresh),
    )


def cancel(*labels: str) -> Act:
    return Act(
        lambda store, cast: store.cancel([cast.ids[label] for label in labels]),
        lambda out, names: tuple(sorted(names[id] for id in ids) for ids in out),
    )


def retry(*labels: str) -> Act:
    return Act(
        lambda store, cast: store.retry([cast.ids[label] for label in labels]),
        lambda out, names: [names[id] for id in out],
    )


def discard(*labels: str) -> Act:
    return Act(
        lambda store, cast: store.discard([cast.ids[label] for label in labels]),
        lambda out, names: ["discarded"] * len(out),
    )


def beside_prune(act: Callable[..., Act], *labels: str) -> Act:
    """Several at once are one commit, but a prune goes day by day and may come between them."""
    whole = act(*labels)
    parts = tuple((act(label).ask,) for label in labels)
    return Act(whole.ask, lambda out, names: Counter(whole.summarize(out, names)), parts)


def unregister(worker: str) -> Act:
    return _unanswered(lambda store, cast: store.unregister(cast.workers[worker]))


def count_lost(worker: str, label: str) -> Act:
    return _unanswered(
        lambda store, cast: store.count_lost(cast.workers[worker], [cast.claims[label]])
    )


def progress(worker: str, label: str) -> Act:
    return _unanswered(
        lambda store, cast: store.progress(cast.workers[worker], {cast.ids[label]: b"1"})
    )


def pause(queue: str, paused: bool) -> Act:
    return _unanswered(lambda store, cast: store.set_paused(queue, paused))


def _unanswered(ask: Ask) -> Act:
    return Act(ask, lambda out, names: None)


def note(*times: int) -> Act:
    """Times of a schedule, to be fired by whoever notes them first."""
    return Act(
        lambda store, cast: store.timetable.record("daily", times, max(times)),
        lambda out, names: list(out),
    )


def set_limit(queue: str, concurrency: int | None) -> Act:
    limits = Limits(concurrency=concurrency)
    return _unanswered(lambda store, cast: store.set_limits(queue, limits))


async def _reaps_nothing(store: JobStore, cast: Cast) -> Reaped:
    return Reaped(0, 0, 0)


async def _promotes_nothing(store: JobStore, cast: Cast) -> Promoted:
    return Promoted(0, frozenset(), None)


REAP = Act(
    lambda store, cast: store.reap(1000),
    lambda out, names: (out.returned, out.dead),
    idle=(_reaps_nothing,),
)
PROMOTE = Act(
    lambda store, cast: store.promote(1000),
    lambda out, names: out.moved,
    idle=(_promotes_nothing,),
)
# How many it moved is open: one that is set aside or taken meanwhile is left for the next time.
AGE = Act(lambda store, cast: store.age(1000), lambda out, names: None)
PRUNE = Act(lambda store, cast: store.prune(HOUR_NS), lambda out, names: out)


class Scene(NamedTuple):
    """What is there, and who may come."""

    set_up: Callable[[JobStore, Cast], Awaitable[None]]
    acts: dict[str, Act]
    wait_ns: int = 0
    """How much time passes between the two."""


async def _keys(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v")
    await cast.add(store, "running", unique_key="r")
    await cast.add(store, "parent")
    await cast.give(store, "w", "running", "parent")
    await cast.add(store, "ended", unique_key="u")
    await store.cancel([cast.ids["ended"]])
    await cast.add(store, "standing", unique_key="s", window_ns=9 * HOUR_NS)
    await store.cancel([cast.ids["standing"]])
    await cast.add(store, "live", unique_key="l")


async def _limits(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v", "u")
    await cast.hire(store, "dead", ttl_ns=SECOND_NS)
    for label in ("w1", "d1"):
        await cast.add(store, label)
    await cast.give(store, "w", "w1")
    await cast.give(store, "dead", "d1")
    for number in range(4):
        await cast.add(store, f"n{number}")
    await cast.add(store, "other", queue="p")
    await store.set_limits("q", Limits(concurrency=3))


async def _no_limits(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v", "u")
    await cast.add(store, "w1")
    await cast.give(store, "w", "w1")
    for number in range(4):
        await cast.add(store, f"n{number}")
    await cast.add(store, "other", queue="p")


async def _lines(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v")
    await cast.add(store, "w1")
    await cast.add(store, "alike")
    await cast.add(store, "low", priority=-1000)
    await cast.give(store, "w", "w1")


async def _partition_keys(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v", "u")
    for label in ("k0", "k1", "k2"):
        await cast.add(store, label, partition_key="k", priority=800)
    for label in ("s0", "s1"):
        await cast.add(store, label, partition_key="s", strict=True, priority=800)
    wants = [Want(line(band=Band.B4), 1)]
    (claim,) = (await store.exchange(cast.workers["w"], 1, wants=wants)).claims
    assert claim.trace == "k0"
    cast.claims["k0"] = claim


async def _signals(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v")
    for label in ("waits", "runs"):
        await cast.add(store, label)
    await cast.give(store, "w", "waits", "runs")
    wait = {"step": "then", "names": ("go",), "delay_ns": SECOND_NS}
    await cast.settle(store, "w", "waits", Fate.WAIT, **wait)
    await cast.add(store, "deals", queue="p")
    await cast.give(store, "w", "deals", queue="p")
    await cast.settle(store, "w", "deals", Fate.WAIT, **wait)
    await store.signal(cast.ids["deals"], "go", b"0", dedup="dealt")
    await cast.give(store, "w", "deals", queue="p")


async def _family(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v", "u")
    await cast.add(store, "parent")
    await cast.give(store, "w", "parent")
    children = tuple(new(label) for label in ("one", "two"))
    await cast.settle(store, "w", "parent", Fate.SPAWN, step="then", children=children)
    await cast.give(store, "w", "one")
    await cast.give(store, "v", "two")
    await cast.add(store, "alone")
    await store.cancel([cast.ids["alone"]])


async def _readers(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w")
    await cast.add(store, "ended", unique_key="u")
    await store.cancel([cast.ids["ended"]])
    await store.enqueue([new("r0")], cursor=TopicCursor("c", 1, 1))


async def _ends(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w")
    await cast.add(store, "bad", unique_key="u")
    await cast.add(store, "parent")
    await cast.give(store, "w", "bad", "parent")
    await cast.settle(store, "w", "bad", Fate.FAILED)
    await cast.add(store, "gone")
    await store.cancel([cast.ids["gone"]])


async def _workers(store: JobStore, cast: Cast) -> None:
    await cast.hire(store, "w", "v")
    await cast.hire(store, "late", ttl_ns=SECOND_NS)
    for label in ("w1", "w2", "l1"):
        await cast.add(store, label, max_crashes=1)
    await cast.give(store, "w", "w1", "w2")
    await cast.give(store, "late", "l1")
    await cast.add(store, "n1")


async def _times(store: JobStore, cast: Cast) -> None:
    await store.timetable.put("daily", "one")
    await store.timetable.record("daily", [OLD_NS], OLD_NS)


async def _retried(store: JobStore, cast: Cast) -> None:
    """A parent that was cancelled while it waited, and children that are being stopped."""
    await _family(store, cast)
    await store.cancel([cast.ids["parent"]])
    await cast.add(store, "waits", queue="p")
    await cast.give(store, "u", "waits", queue="p")
    wait = {"step": "then", "names": ("go",), "delay_ns": SECOND_NS}
    await cast.settle(store, "u", "waits", Fate.WAIT, **wait)
    await store.signal(cast.ids["waits"], "other", b"0", dedup="other")
    await store.cancel([cast.ids["waits"]])


_LOOK = {line(): 2}
_TOP = {line(band=Band.B4): 3}
_SPAWN = {"step": "then", "children": (new("child", unique_key="u"), new("kid", unique_key="r"))}
_WAIT = {"step": "then", "names": ("go",)}
_CHILD = new("child", unique_key="u")

SCENES: dict[str, Scene] = {
    "unique keys": Scene(
        _keys,
        {
            "enqueue u": enqueue(new("n1", unique_key="u")),
            "enqueue u again": enqueue(new("n2", unique_key="u"), new("n3")),
            "enqueue r and u": enqueue(new("n4", unique_key="r"), new("n5", unique_key="u")),
            "enqueue s and l": enqueue(new("n6", unique_key="s"), new("n7", unique_key="l")),
            "end running": exchange("w", ("running", Fate.DONE)),
            "end running and claim": exchange("w", ("running", Fate.DONE), wants=_LOOK),
            "spawn u and r": exchange("w", ("parent", Fate.SPAWN, _SPAWN)),
            "retry ended": retry("ended"),
            "retry both": retry("standing", "ended"),
            "cancel live": cancel("live"),
            "prune": PRUNE,
        },
        wait_ns=2 * HOUR_NS // 4,
    ),
    "limits": Scene(
        _limits,
        {
            "claim": exchange("v", wants=_LOOK),
            "claim too": exchange("u", wants={line(): 2, line("p"): 1}),
            "claim and look": exchange("v", wants=_LOOK, probe=True),
            "end one and claim": exchange("w", ("w1", Fate.DONE), wants=_LOOK),
            "retry one and claim": exchange("w", ("w1", Fate.RETRY), wants=_LOOK),
            "limit q": set_limit("q", 2),
            "limit all": set_limit("*", 3),
            "no limit": set_limit("q", None),
            "reap": REAP,
        },
        wait_ns=2 * SECOND_NS,
    ),
    "new limits": Scene(
        _no_limits,
        {
            "claim": exchange("v", wants=_LOOK),
            "claim too": exchange("u", wants={line(): 2, line("p"): 1}),
            "claim and look": exchange("v", wants=_LOOK, probe=True),
            "end one and claim": exchange("w", ("w1", Fate.DONE), wants=_LOOK),
            "retry one and claim": exchange("w", ("w1", Fate.RETRY), wants=_LOOK),
            "limit q": set_limit("q", 2),
            "limit all": set_limit("*", 2),
        },
    ),
    "new ready lines": Scene(
        _lines,
        {
            "enqueue": enqueue(new("n1", tenant="t"), new("n2", tenant="s")),
            "enqueue too": enqueue(new("n3", tenant="s"), new("n4", tenant="t")),
            "claim": exchange("v", wants={line(tenant="t"): 1, line(band=Band.B0): 1}),
            "claim other": exchange("v", wants=_LOOK),
            "age": AGE,
            "age too": AGE,
            "set aside": exchange("w", ("w1", Fate.RELEASE, {"skill": "work"})),
        },
        wait_ns=4 * SECOND_NS,
    ),
    "partition keys": Scene(
        _partition_keys,
        {
            "claim": exchange("v", wants=_TOP, passes=("k1", "k2")),
            "claim too": exchange("u", wants=_TOP, passes=("k1", "k2")),
            "end k0": exchange("w", ("k0", Fate.DONE)),
            "end k0 and claim": exchange("w", ("k0", Fate.DONE), wants=_TOP, passes=("k1", "k2")),
            "put k0 off": exchange("w", ("k0", Fate.RETRY, {"delay_ns": SECOND_NS})),
            "cancel k1": cancel("k1"),
            "cancel s0": cancel("s0"),
            "enqueue k3": enqueue(new("k3", partition_key="k", priority=800)),
        },
    ),
    "signals": Scene(
        _signals,
        {
            "signal": signal("waits", "go", b"1"),
            "signal once": signal("waits", "go", b"2", "once"),
            "signal once again": signal("waits", "go", b"3", "once"),
            "promote": PROMOTE,
            "cancel": cancel("waits"),
            "claim": exchange("v", wants=_LOOK),
            "park the other": exchange("w", ("runs", Fate.WAIT, _WAIT)),
            "park the other for a time": exchange(
                "w", ("runs", Fate.WAIT, {**_WAIT, "delay_ns": SECOND_NS})
            ),
            "signal the other": signal("runs", "go", b"4"),
            "cancel the other": cancel("runs"),
            "deal and end": exchange("w", ("deals", Fate.DONE)),
            "deal and wait": exchange("w", ("deals", Fate.WAIT, _WAIT)),
            "signal what is dealt with": signal("deals", "go", b"5", "dealt"),
            "signal more": signal("deals", "go", b"6", "more"),
            "reap": REAP,
            "retry what dealt": retry("deals"),
        },
        wait_ns=2 * SECOND_NS,
    ),
    "family": Scene(
        _family,
        {
            "end one": exchange("w", ("one", Fate.DONE)),
            "end one and claim": exchange("w", ("one", Fate.DONE), wants=_LOOK),
            "fail two": exchange("v", ("two", Fate.FAILED)),
            "end two and claim": exchange("v", ("two", Fate.DONE), wants=_LOOK),
            "cancel the parent": cancel("parent"),
            "cancel two": cancel("two"),
            "claim": exchange("u", wants=_LOOK),
            "retry": retry("alone"),
            "prune": PRUNE,
        },
    ),
    "taken up again": Scene(
        _retried,
        {
            "retry the parent": retry("parent"),
            "end one": exchange("w", ("one", Fate.CANCELLED)),
            "end two": exchange("v", ("two", Fate.DONE)),
            "claim": exchange("u", wants=_LOOK),
            "cancel the parent": cancel("parent"),
            "retry what waited": retry("waits"),
            "signal what waited": signal("waits", "go", b"1"),
            "signal the other again": signal("waits", "other", b"2", "other"),
            "promote": PROMOTE,
        },
        wait_ns=2 * SECOND_NS,
    ),
    "readers of a topic": Scene(
        _readers,
        {
            "follow": follow(2, new("r1")),
            "follow too": follow(2, new("r2"), new("r3", tenant="t")),
            "follow further": follow(3, new("r4", unique_key="u")),
            "enqueue u": enqueue(new("n1", unique_key="u")),
            "claim": exchange("w", wants=_LOOK),
        },
    ),
    "transactions of callers": Scene(
        _keys,
        {
            "enqueue u": enqueue(new("n1", unique_key="u")),
            "enqueue u within": enqueue_within(new("n2", unique_key="u"), new("n3")),
            "enqueue r, u within": enqueue_within(
                new("n4", unique_key="r"), new("n5", unique_key="u")
            ),
            "enqueue to a new line within": enqueue_within(new("n6", tenant="t")),
            "enqueue to a new line": enqueue(new("n7", tenant="t")),
            "end running": exchange("w", ("running", Fate.DONE)),
            "retry ended": retry("ended"),
            "cancel live": cancel("live"),
            "claim": exchange("v", wants=_LOOK),
        },
        wait_ns=2 * HOUR_NS // 4,
    ),
    "what ended": Scene(
        _ends,
        {
            "discard bad": discard("bad"),
            "discard both": beside_prune(discard, "gone", "bad"),
            "retry bad": retry("bad"),
            "retry both": beside_prune(retry, "bad", "gone"),
            "enqueue u": enqueue(new("n1", unique_key="u")),
            "spawn u": exchange(
                "w", ("parent", Fate.SPAWN, {"step": "then", "children": (_CHILD,)})
            ),
            "cancel the parent": cancel("parent"),
            # How many are left for it by those who discard meanwhile is open.
            "prune": _unanswered(PRUNE.ask),
        },
        wait_ns=2 * HOUR_NS,
    ),
    "workers": Scene(
        _workers,
        {
            "w leaves": unregister("w"),
            "end w1": exchange("w", ("w1", Fate.DONE)),
            "end w2 and claim": exchange("w", ("w2", Fate.DONE), wants=_LOOK),
            "claim": exchange("v", wants=_LOOK),
            "too late": exchange("late", ("l1", Fate.DONE)),
            "late reports a loss": count_lost("late", "l1"),
            "w reports a loss": count_lost("w", "w1"),
            "progress": progress("w", "w1"),
            "cancel w1": cancel("w1"),
            "pause": pause("q", True),
            "go on": pause("q", False),
            "reap": REAP,
        },
        wait_ns=2 * SECOND_NS,
    ),
    "times of schedules": Scene(
        _times,
        {
            "note": note(OLD_NS, DUE_NS),
            "note too": note(DUE_NS, SOON_NS),
            "note further": note(SOON_NS),
            "new spec": _unanswered(lambda store, cast: store.timetable.put("daily", "two")),
            "pause": _unanswered(lambda store, cast: store.timetable.set_paused("daily", True)),
            "link": _unanswered(lambda store, cast: store.timetable.link("daily", OLD_NS, 7)),
            # One that another looks at just now is left to that one.
            "look for the lost": _unanswered(lambda store, cast: store.timetable.lost(0, 10)),
            "forget": Act(
                lambda store, cast: store.timetable.forget(HOUR_NS), lambda out, names: out
            ),
        },
        wait_ns=SECOND_NS,
    ),
}


async def looks(store: JobStore, cast: Cast) -> tuple[dict[int, str], dict[str, Any]]:
    """The names of jobs, and all that is promised of them."""
    jobs = await store.browse(EVERYTHING)
    names = {job.id: job.trace or "" for job in jobs}
    workers = {number: name for name, number in cast.workers.items()}
    state: dict[str, Any] = {
        names[job.id]: (
            # Whether it was looked at while its key was taken is open.
            (Status.READY if job.status is Status.BLOCKED else job.status).word,
            job.step,
            job.attempt,
            job.crashes,
            job.retries,
            workers.get(job.worker or 0),
            job.cancelling,
            # The words for a death are the store's own.
            job.error is not None if job.status is Status.DEAD else job.error,
            names.get(job.parent or 0),
            job.waits_for,
        )
        for job in jobs
    }
    for key in ("u", "r", "s", "l"):
        holder = await store.find_by_key(key)
        state[f"key {key}"] = holder and names[holder.id]
    for one in await store.queues():
        if one.limits != Limits():
            state[f"limit {one.name}"] = one.limits.concurrency
        if one.paused:
            state[f"paused {one.name}"] = True
    state["cursor"] = await store.cursor("c")
    for entry in await store.timetable.entries():
        state[f"schedule {entry.name}"] = (entry.spec, entry.paused, entry.handled_wall_ns)
        state[f"firings of {entry.name}"] = [
            (one.at_wall_ns, one.job) for one in await store.timetable.firings(entry.name, 100)
        ]
    return names, state
