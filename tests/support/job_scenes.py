"""Scenes for callers that meet at one job store: what is there, and what each may ask of it.

A scene is set up by the same calls on PostgreSQL and on its twin in memory. Then some of its acts
are played at once, and what came of them must be what comes of them one after the other, in some
order, on the twin. Jobs are called by their labels, as in `job_histories`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fairway.core.priority import Band
from fairway.jobs.job import Fate, Filter, Lane, Limits, NewJob, Settlement, Status
from fairway.jobs.store import Want

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fairway.jobs.job import Claim
    from fairway.jobs.store import Exchanged, JobStore

SECOND_NS = 1_000_000_000
HOUR_NS = 3_600 * SECOND_NS
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
        wants = [Want(lane(queue), len(labels))]
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


def lane(queue: str = "q", band: Band = Band.B1, tenant: str = "") -> Lane:
    return Lane(queue, tenant, band)


Ask: TypeAlias = "Callable[[JobStore, Cast], Awaitable[Any]]"


class Act(NamedTuple):
    """One call of a store, and what of its answer is promised to whoever calls beside others."""

    ask: Ask
    tell: Callable[[Any, Mapping[int, str]], Any]
    parts: tuple[tuple[Ask, ...], ...] = ()
    """The same as several calls, where others may come between, each with what may be asked
    instead; what they tell is added up."""


def enqueue(*jobs: NewJob) -> Act:
    return Act(
        lambda store, cast: store.enqueue(list(jobs)),
        lambda added, names: [(names[one.id], one.fresh) for one in added],
    )


def exchange(
    worker: str,
    *fates: tuple[str, Fate] | tuple[str, Fate, dict[str, Any]],
    wants: Mapping[Lane, int] | None = None,
    probe: bool = False,
) -> Act:
    """What it settles and what it claims are one commit. But that a claim misses what others make
    ready, or room that they make, while it is under way is no promise broken: it may look as if it
    came before or after, or as if it had asked for less. More than it may have it never gets."""

    async def settle(store: JobStore, cast: Cast) -> Exchanged:
        return await store.exchange(cast.workers[worker], 5, _settlements(cast, fates))

    def claim(*most: int) -> Ask:
        asked = [Want(lane, n) for lane, n in zip(wants or {}, most, strict=True) if n]
        return lambda store, cast: store.exchange(cast.workers[worker], 5, wants=asked)

    async def ask(store: JobStore, cast: Cast) -> Exchanged:
        return await store.exchange(
            cast.workers[worker],
            5,
            _settlements(cast, fates),
            [Want(*want) for want in (wants or {}).items()],
            ["q"] if probe else [],
        )

    def tell(out: Exchanged, names: Mapping[int, str]) -> Any:
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
    if wants:
        fewer = itertools.product(*(range(most, -1, -1) for most in wants.values()))
        parts.append(tuple(claim(*most) for most in fewer))
    return Act(ask, tell, tuple(parts))


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


def set_limit(queue: str, concurrency: int | None) -> Act:
    limits = Limits(concurrency=concurrency)
    return Act(lambda store, cast: store.set_limits(queue, limits), lambda out, names: None)


REAP = Act(lambda store, cast: store.reap(1000), lambda out, names: (out.returned, out.dead))
PROMOTE = Act(lambda store, cast: store.promote(1000), lambda out, names: out.moved)
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


async def _lanes(store: JobStore, cast: Cast) -> None:
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
    wants = [Want(lane(band=Band.B4), 1)]
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


_LOOK = {lane(): 2}
_TOP = {lane(band=Band.B4): 3}
_SPAWN = {"step": "then", "children": (new("child", unique_key="u"), new("kid", unique_key="r"))}
_WAIT = {"step": "then", "names": ("go",)}

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
            "claim too": exchange("u", wants={lane(): 2, lane("p"): 1}),
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
            "claim too": exchange("u", wants={lane(): 2, lane("p"): 1}),
            "claim and look": exchange("v", wants=_LOOK, probe=True),
            "end one and claim": exchange("w", ("w1", Fate.DONE), wants=_LOOK),
            "retry one and claim": exchange("w", ("w1", Fate.RETRY), wants=_LOOK),
            "limit q": set_limit("q", 2),
            "limit all": set_limit("*", 2),
        },
    ),
    "new lanes": Scene(
        _lanes,
        {
            "enqueue": enqueue(new("n1", tenant="t"), new("n2", tenant="s")),
            "enqueue too": enqueue(new("n3", tenant="s"), new("n4", tenant="t")),
            "claim": exchange("v", wants={lane(tenant="t"): 1, lane(band=Band.B0): 1}),
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
            "claim": exchange("v", wants=_TOP),
            "claim too": exchange("u", wants=_TOP),
            "end k0": exchange("w", ("k0", Fate.DONE)),
            "end k0 and claim": exchange("w", ("k0", Fate.DONE), wants=_TOP),
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
    return names, state
