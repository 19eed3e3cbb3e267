"""Random histories of a job store: what to do next, how to do it, and what must hold throughout.

    Draw     picks the next `Step` from a seed and a `Book` of what is known so far
    Side     plays steps on one store and answers in words that do not depend on the store
    Watch    looks at one store after each step: legal moves, one holder of a key, nothing lost
    History  plays the same steps on a store and on a `MemoryStore` and compares every answer

Stores number jobs, workers and signals as they like. Here a job is called by its label, which is
its `trace`, a worker by the order of its registration, and a signal by what it carries.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import json, structs

from fairway.core.priority import Band
from fairway.jobs.job import (
    ENDED,
    RUN,
    Ending,
    Fate,
    Filter,
    Limits,
    NewJob,
    ReadyLine,
    Settlement,
    Status,
)
from fairway.jobs.moves import MOVES
from fairway.jobs.presence import KnownKind, Offer
from fairway.jobs.store import NO_OFFER, TopicCursor, Want

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fairway.jobs.job import Child, Claim, Job, Signal
    from fairway.jobs.store import Exchanged, JobStore, LeaseRenewer

UNIT_NS: Final = 2_000_000_000
"""Every duration is a multiple: 200 points of priority, so that waiting climbs band by band."""
QUEUES: Final = ("a", "b")
TENANTS: Final = ("", "", "t")
PRIORITIES: Final = (0, 0, 0, 0, 300, 800, -600)
KEYS: Final = MappingProxyType({"k": False, "m": False, "strict": True})
"""Partition keys, and whether their jobs run strictly in order."""
UNIQUE: Final = ("u1", "u2", "u3")
NAMES: Final = ("s1", "s2")
ENDING: Final = "ending"
"""The signal by which some children report."""
EVERYTHING: Final = Filter(limit=100_000)


class Disagreement(AssertionError):
    """A store broke a promise, or did not do what its twin did."""


@dataclass(eq=False, slots=True)
class At:
    """A time or a duration, equal to another within what a running clock leaves open."""

    ns: int
    slack_ns: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, At):
            return NotImplemented
        return abs(self.ns - other.ns) <= max(self.slack_ns, other.slack_ns)

    __hash__ = None  # type: ignore[assignment]


class Step(NamedTuple):
    """One thing to do, in labels."""

    verb: str
    args: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.verb} " + " ".join(f"{name}={value}" for name, value in self.args.items())


class Held(NamedTuple):
    """A claim by the names of things: it names the same claim in every store."""

    worker: int
    label: str
    token: int


class Report(NamedTuple):
    """A settlement by the names of things."""

    held: Held
    fate: Fate
    fields: dict[str, Any]


@dataclass
class Book:
    """What is known so far, from the answers: enough to choose the next step sensibly."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    labels: int = 0
    expires_ns: list[int] = field(default_factory=list)
    tokens: Counter[int] = field(default_factory=Counter)
    claims: list[Held] = field(default_factory=list)
    lines: list[ReadyLine] = field(default_factory=list)
    seqs: Counter[str] = field(default_factory=Counter)
    limits: dict[str, Limits] = field(default_factory=dict)

    def label(self) -> str:
        self.labels += 1
        return f"j{self.labels}"

    def held_by(self, worker: int) -> list[Held]:
        """The claims that a worker has, going by the last look at the store."""
        last = {held.label: held for held in self.claims}
        return [
            held
            for label, held in last.items()
            if held.worker == worker
            and label in self.jobs
            and self.jobs[label]["status"] is Status.RUNNING
            and self.jobs[label]["worker"] == worker
        ]

    def note(self, step: Step, answer: Any, state: State, now_ns: int) -> None:
        self.jobs = state.jobs
        args = step.args
        if step.verb == "register":
            self.expires_ns.append(now_ns + args["ttl_ns"])
        elif step.verb == "set_limits":
            self.limits[args["queue"]] = args["limits"]
        elif step.verb == "unregister":
            self.expires_ns[args["worker"]] = 0
        elif step.verb == "renew" and answer["alive"]:
            known = self.expires_ns[args["worker"]]
            self.expires_ns[args["worker"]] = max(known, now_ns + args["ttl_ns"])
        elif step.verb == "exchange":
            worker, token = args["worker"], args["token"]
            self.claims += [Held(worker, label, token) for label in answer["claims"]]
            for queue, lines in answer["lines"].items():
                self.lines = [*lines, *(one for one in self.lines if one.queue != queue)]


class Draw:
    """Chooses steps. The same source and the same answers give the same history."""

    WEIGHTS: Final = MappingProxyType(
        {
            "enqueue": 12,
            "register": 3,
            "unregister": 1,
            "exchange": 55,
            "renew": 5,
            "promote": 6,
            "reap": 6,
            "age": 3,
            "signal": 16,
            "cancel": 4,
            "retry": 3,
            "progress": 1,
            "set_paused": 1,
            "set_limits": 2,
            "prune": 2,
            "find": 2,
            "cursor": 1,
            "advance": 9,
        }
    )

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._payloads = 0
        self._awaited: dict[str, tuple[str, ...]] = {}  # what jobs waited for when last heard of
        self._sent: list[tuple[str, str]] = []  # signals with a dedup key: to send again

    def step(self, book: Book, now_ns: int) -> Step:
        """The next thing to do, at `now_ns` by the store's clock."""
        rng = self.rng
        alive = [worker for worker, until in enumerate(book.expires_ns) if until > now_ns]
        verb = rng.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        if len(alive) < 2 and rng.random() < (0.2 if alive else 0.8):
            verb = "register"
        if verb in ("unregister", "exchange", "renew", "progress") and not book.expires_ns:
            verb = "register"
        args: dict[str, Any] = getattr(self, f"_{verb}")(book, now_ns, alive)
        return Step(verb, args) if args is not None else Step("advance", {"ns": UNIT_NS})

    def _worker(self, book: Book, alive: Sequence[int]) -> int:
        """Mostly one that lives, and among those mostly one with claims."""
        if not alive or self.rng.random() < 0.1:
            return self.rng.randrange(len(book.expires_ns))
        busy = [worker for worker in alive if book.held_by(worker)]
        return self.rng.choice(busy if busy and self.rng.random() < 0.5 else list(alive))

    def _some(self, book: Book, *wanted: Status) -> str | None:
        """A job, in one of these states if there is one."""
        if not book.jobs:
            return None
        fitting = [label for label, job in book.jobs.items() if job["status"] in wanted]
        if fitting and self.rng.random() < 0.8:
            return self.rng.choice(fitting)
        return self.rng.choice(list(book.jobs))

    def _payload(self) -> bytes:
        self._payloads += 1
        return b'{"n":%d}' % self._payloads

    def _new(self, book: Book, now_ns: int, *, child: bool = False) -> NewJob:
        rng = self.rng
        fields: dict[str, Any] = {}
        if rng.random() < 0.25:
            fields["delay_ns"] = rng.randint(1, 4) * UNIT_NS
        elif rng.random() < 0.1:
            fields["at_wall_ns"] = now_ns + rng.randint(-2, 3) * UNIT_NS
        if rng.random() < 0.2:
            fields["unique_key"] = rng.choice(UNIQUE)
            fields["window_ns"] = rng.choice([0, 0, 3 * UNIT_NS])
        fields["priority"] = rng.choice(PRIORITIES)
        if not child and rng.random() < 0.45:
            # All jobs of a key are in the top band of their lines: which of two lines gets a free
            # key is for the store to say.
            fields["partition_key"] = rng.choice(list(KEYS))
            fields["strict"] = KEYS[fields["partition_key"]]
            fields["priority"] = 800
        return NewJob(
            kind=rng.choice(["mail", "sum"]),
            state=self._payload(),
            version=rng.choice([1, 2]),
            step=rng.choice([RUN, "start"]),
            queue=rng.choice(QUEUES),
            tenant=rng.choice(TENANTS),
            max_attempts=rng.choice([2, 3, 20]),
            max_crashes=rng.choice([1, 1, 2, 5]),
            notify=ENDING if child and rng.random() < 0.4 else None,
            trace=book.label(),
            **fields,
        )

    def _enqueue(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        jobs = tuple(self._new(book, now_ns) for _ in range(self.rng.randint(1, 4)))
        cursor = None
        if self.rng.random() < 0.15:
            name = self.rng.choice(["orders", "mails"])
            book.seqs[name] += self.rng.randint(0, 2)
            cursor = TopicCursor(name, self.rng.choice([1, 1, 1, 2]), book.seqs[name])
        return {"jobs": jobs, "cursor": cursor}

    def _register(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        rng = self.rng
        offer = NO_OFFER
        if rng.random() < 0.8:
            kinds = [KnownKind(kind, 1, (RUN, "start")) for kind in ("mail", "sum")]
            queues = dict.fromkeys(rng.sample(QUEUES, rng.choice([1, 2])), 3)
            offer = Offer(queues=queues, kinds=rng.sample(kinds, rng.choice([1, 2])))
        return {"ttl_ns": rng.choice([2, 3, 6, 30]) * UNIT_NS, "offer": offer}

    def _unregister(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any] | None:
        idle = [worker for worker in range(len(book.expires_ns)) if not book.held_by(worker)]
        return {"worker": self.rng.choice(idle)} if idle else None

    def _exchange(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        rng = self.rng
        worker = self._worker(book, alive)
        book.tokens[worker] += rng.randint(1, 3)
        held = [one for one in book.held_by(worker) if rng.random() < 0.6]
        if book.claims and rng.random() < 0.2:
            old = rng.choice(book.claims[-20:])
            # Each worker counts its own tokens: no worker would report a claim of another's under
            # the same number, and no store could tell it from the worker's own claim of that job.
            theirs = old.worker != worker
            if old not in held and not (theirs and old._replace(worker=worker) in book.claims):
                held.insert(rng.randint(0, len(held)), old)
        lines = [
            rng.choice(book.lines)
            if book.lines and rng.random() < 0.8
            else ReadyLine(rng.choice(QUEUES), rng.choice(TENANTS), rng.choice([Band.B1, Band.B4]))
            for _ in range(rng.choice([0, 1, 2, 3, 4, 4]))
        ]
        return {
            "worker": worker,
            "token": book.tokens[worker],
            "reports": tuple(self._report(book, now_ns, one) for one in held),
            "wants": tuple(Want(line, rng.randint(1, 3)) for line in dict.fromkeys(lines)),
            "probe": QUEUES if rng.random() < 0.7 else rng.sample(QUEUES, rng.randint(0, 1)),
        }

    def _report(self, book: Book, now_ns: int, held: Held) -> Report:
        rng = self.rng
        fate = rng.choices(list(Fate), [3, 2, 1, 5, 4, 7, 4, 2])[0]
        fields: dict[str, Any] = {"step": rng.choice([RUN, "start", "middle"])}
        if rng.random() < 0.5:
            fields["state"] = self._payload()
        if rng.random() < 0.1:
            fields["progress"] = self._payload()
        if fate is Fate.DONE:
            fields["result"] = rng.choice([None, self._payload()])
        if fate in (Fate.FAILED, Fate.RETRY):
            fields["error"] = rng.choice([None, "it broke"])
        if fate is Fate.RETRY:
            fields["delay_ns"] = rng.choice([0, 1, 2]) * UNIT_NS
            fields["counts"] = rng.random() < 0.5
        if fate is Fate.RELEASE and rng.random() < 0.4:
            fields["skill"] = rng.choice(["mail", "sum"])
            fields["error"] = "waits for somebody who knows it"
        if fate in (Fate.NEXT, Fate.WAIT, Fate.SPAWN) and rng.random() < 0.2:
            fields["skill"] = ""
        if fate is Fate.WAIT:
            fields["names"] = tuple(rng.sample((*NAMES, ENDING), rng.choice([1, 2, 2])))
            self._awaited[held.label] = fields["names"]
            fields["delay_ns"] = rng.choice([0, 1, 3]) * UNIT_NS
        if fate is Fate.SPAWN or (fate is Fate.NEXT and rng.random() < 0.2):
            fields["children"] = tuple(
                self._new(book, now_ns, child=True) for _ in range(rng.randint(0, 3))
            )
        if fate is Fate.SPAWN:
            if rng.random() < 0.3:
                fields["names"] = (ENDING,)
            fields["delay_ns"] = rng.choice([0, 0, 4]) * UNIT_NS
        if rng.random() < 0.2:
            fields["log"] = self._payload()
        return Report(held, fate, fields)

    def _renew(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        rng = self.rng
        worker = self._worker(book, alive)
        held = {one.label: one.token for one in book.held_by(worker) if rng.random() < 0.8}
        return {
            "worker": worker,
            "held": held,
            "ttl_ns": rng.choice([3, 10]) * UNIT_NS,
            "grace_ns": rng.choice([1, 2]) * UNIT_NS,
        }

    def _promote(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {"limit": self.rng.choice([1, 3, 1000])}

    def _reap(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {"limit": 1000}  # which ones a smaller limit takes is for the store to say

    def _age(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {"limit": self.rng.choice([1, 3, 1000])}

    def _signal(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any] | None:
        rng = self.rng
        target = self._some(book, Status.WAITING, Status.RUNNING)
        woken = [one for one in self._awaited if one in book.jobs]
        woken = [one for one in woken if book.jobs[one]["status"] is Status.READY]
        if woken and rng.random() < 0.4:  # by a timer, perhaps: it is not too late
            target = rng.choice(woken)
        dedup = rng.choice([None, None, "d1", "d2"])
        again = [(job, key) for job, key in self._sent[-8:] if job in book.jobs]
        if again and rng.random() < 0.3:
            target, dedup = rng.choice(again)
        if target is None:
            return None
        if dedup is not None:
            self._sent.append((target, dedup))
        awaited = [name for name in self._awaited.get(target, ()) if name != ENDING]
        return {
            "target": target,
            "key": rng.choice(UNIQUE) if rng.random() < 0.2 else None,
            "name": rng.choice(awaited or NAMES),
            "payload": self._payload(),
            "dedup": dedup,
        }

    def _cancel(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any] | None:
        states = self.rng.choice([(Status.WAITING,), (Status.RUNNING,), tuple(Status)])
        some = [self._some(book, *states) for _ in range(self.rng.randint(1, 2))]
        chosen = [label for label in some if label is not None]
        # How many of those that wait for a key try for it when several go at once is open.
        keyed = [label for label in chosen if book.jobs[label]["partition_key"] is not None]
        chosen = [label for label in chosen if label not in keyed[1:]]
        if not chosen:
            return None
        reason = self.rng.choice(["cancelled", "not needed"])
        return {"labels": tuple(dict.fromkeys(chosen)), "reason": reason}

    def _retry(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any] | None:
        label = self._some(book, Status.FAILED, Status.DEAD, Status.CANCELLED)
        busy = {job["parent"] for job in book.jobs.values() if job["status"] not in ENDED}
        over = [one for one in busy if one in book.jobs and book.jobs[one]["status"] in ENDED]
        if over and self.rng.random() < 0.5:  # its children may be in the way
            label = self.rng.choice(sorted(over))
        return {"labels": (label,)} if label else None

    def _progress(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        worker = self._worker(book, alive)
        labels = [one.label for one in book.held_by(worker)]
        other = self._some(book)
        return {
            "worker": worker,
            "values": {label: self._payload() for label in [*labels, *([other] if other else [])]},
        }

    def _set_paused(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {"queue": self.rng.choice(QUEUES), "paused": self.rng.random() < 0.25}

    def _set_limits(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        rng = self.rng
        limits = rng.choice(
            [
                Limits(),
                Limits(),
                Limits(concurrency=rng.randint(1, 4)),
                Limits(rate_per_s=rng.choice([0.25, 0.5, 1.0]), burst=rng.randint(1, 4)),
                Limits(concurrency=rng.randint(2, 4), rate_per_s=0.5, burst=3),
            ]
        )
        return {"queue": rng.choice([*QUEUES, "*"]), "limits": limits}

    def _prune(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {
            "older_than_ns": self.rng.choice([3, 6, 12]) * UNIT_NS,
            "failed_ns": self.rng.choice([None, 24 * UNIT_NS]),
            "dedup_ns": self.rng.choice([None, 0, 3 * UNIT_NS]),
        }

    def _find(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any] | None:
        label = self._some(book)
        return {"label": label, "key": self.rng.choice(UNIQUE)} if label else None

    def _cursor(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {"name": self.rng.choice(["orders", "mails", "nobody"])}

    def _advance(self, book: Book, now_ns: int, alive: Sequence[int]) -> dict[str, Any]:
        return {"ns": self.rng.choice([1, 1, 2, 3, 5]) * UNIT_NS}


class State(NamedTuple):
    """All that can be seen of a store."""

    order: list[str]
    """Every job, newest first."""
    jobs: dict[str, dict[str, Any]]
    queues: dict[str, tuple[Any, ...]]


class Side:
    """One store that is asked in labels and answers in labels."""

    def __init__(self, store: JobStore, *, slack_ns: int = 0) -> None:
        self.store = store
        self.ids: dict[str, int] = {}
        self.labels: dict[int, str] = {}
        self.workers: list[int] = []
        self.claims: dict[Held, Claim] = {}
        self._slack_ns = slack_ns
        self._renewer: LeaseRenewer | None = None

    async def play(self, step: Step) -> Any:
        return await getattr(self, step.verb)(**step.args)

    def close(self) -> None:
        if self._renewer is not None:
            self._renewer.close()

    # Doing

    async def advance(self, ns: int) -> None:
        """Time is not the store's to move."""

    async def enqueue(self, jobs: Sequence[NewJob], cursor: TopicCursor | None) -> Any:
        added = await self.store.enqueue(jobs, cursor=cursor)
        for new, one in zip(jobs, added, strict=bool(added)):
            if one.fresh:
                self._learn(one.id, new.trace)
        return [(self.labels[one.id], one.fresh) for one in added]

    async def register(self, ttl_ns: int, offer: Offer) -> None:
        number = await self.store.register(f"w{len(self.workers)}", ttl_ns, offer)
        if number in self.workers:
            raise Disagreement(f"worker {number} was registered twice")
        self.workers.append(number)

    async def unregister(self, worker: int) -> None:
        await self.store.unregister(self.workers[worker])

    async def exchange(
        self,
        worker: int,
        token: int,
        reports: Sequence[Report],
        wants: Sequence[Want],
        probe: Collection[str],
    ) -> Any:
        out = await self.store.exchange(
            self.workers[worker],
            token,
            [
                Settlement(claim=self.claims[one.held], fate=one.fate, **one.fields)
                for one in reports
            ],
            wants,
            probe,
        )
        for one in reports:
            if one.fields.get("children"):
                parent = self.ids[one.held.label]
                for job in await self.store.browse(Filter(parent=parent, limit=1000)):
                    self._learn(job.id, job.trace)
        for claim in out.claims:
            self._learn(claim.id, claim.trace)
            self.claims[Held(worker, self.labels[claim.id], token)] = claim
        return self._exchanged(out)

    async def renew(self, worker: int, held: Mapping[str, int], ttl_ns: int, grace_ns: int) -> Any:
        if self._renewer is None:
            self._renewer = self.store.lease_renewer()
        known = {self.ids[label]: token for label, token in held.items()}
        out = self._renewer.renew(self.workers[worker], known, ttl_ns, grace_ns)
        return {
            "alive": out.alive,
            "cancel": self._reasons(out.cancel),
            "released": out.released,
        }

    async def promote(self, limit: int) -> Any:
        out = await self.store.promote(limit)
        return out.moved, out.lines, self._at(out.next_due_ns)

    async def reap(self, limit: int) -> Any:
        out = await self.store.reap(limit)
        died = sorted((self.labels[one.id], one.kind, one.attempt) for one in out.died)
        return (*out[:4], died)

    async def age(self, limit: int) -> int:
        return await self.store.age(limit)

    async def signal(
        self, target: str, key: str | None, name: str, payload: bytes, dedup: str | None
    ) -> Any:
        out = await self.store.signal(key or self.ids[target], name, payload, dedup=dedup)
        return self._name(out.job), out.fresh, out.woken

    async def cancel(self, labels: Sequence[str], reason: str) -> Any:
        out = await self.store.cancel([self.ids[label] for label in labels], reason=reason)
        return self._named(out.ended), self._named(out.running)

    async def retry(self, labels: Sequence[str]) -> Any:
        return self._named(await self.store.retry([self.ids[label] for label in labels]))

    async def progress(self, worker: int, values: Mapping[str, bytes]) -> None:
        by_id = {self.ids[label]: value for label, value in values.items()}
        await self.store.progress(self.workers[worker], by_id)

    async def set_paused(self, queue: str, paused: bool) -> None:
        await self.store.set_paused(queue, paused)

    async def set_limits(self, queue: str, limits: Limits) -> None:
        await self.store.set_limits(queue, limits)

    async def prune(self, older_than_ns: int, failed_ns: int | None, dedup_ns: int | None) -> int:
        return await self.store.prune(
            older_than_ns, failed_older_than_ns=failed_ns, dedup_older_than_ns=dedup_ns
        )

    async def find(self, label: str, key: str) -> Any:
        one = await self.store.find(self.ids[label])
        keyed = await self.store.find_by_key(key)
        details = await self.attempts(label), await self.why_waits(label)
        return one and self._job(one), keyed and self._job(keyed), details

    async def why_waits(self, label: str) -> dict[str, Any] | None:
        reason = await self.store.why_waits(self.ids[label])
        if reason is None:
            return None
        fields = structs.asdict(reason)
        fields["holder"] = self._name(reason.holder)
        fields["until_wall_ns"] = self._at(reason.until_wall_ns)
        fields["wait_ns"] = At(reason.wait_ns, self._slack_ns or 1000)  # how it is rounded is open
        return fields

    async def attempts(self, label: str) -> list[dict[str, Any]]:
        """The attempts of a job, and their logs."""
        attempts = []
        for one in await self.store.attempts(self.ids[label]):
            fields = structs.asdict(one)
            fields["worker"] = self.workers.index(one.worker)
            for name in ("started_wall_ns", "ended_wall_ns"):
                fields[name] = self._at(fields[name])
            log = await self.store.attempt_log(self.ids[label], one.number)
            attempts.append({**fields, "log": log})
        return attempts

    async def cursor(self, name: str) -> TopicCursor | None:
        return await self.store.cursor(name)

    async def state(self) -> State:
        """Look at everything."""
        jobs = await self.store.browse(EVERYTHING)
        queues = await self.store.queues()
        unused = (False, Limits(), 0, 0, 0, 0, 0)  # whether such a queue is listed is open
        states = {one.name: structs.astuple(one)[1:] for one in queues}
        seen = {name: counts for name, counts in states.items() if counts != unused}
        for job in jobs:
            self._learn(job.id, job.trace)
        rows = {self.labels[job.id]: self._job(job) for job in jobs}
        if len(rows) != len(jobs):
            raise Disagreement("a job is listed twice")
        return State([self.labels[job.id] for job in jobs], rows, seen)

    # Naming

    def _learn(self, id: int, label: str | None) -> None:
        assert label is not None
        if self.labels.setdefault(id, label) != label or self.ids.setdefault(label, id) != id:
            raise Disagreement(f"{label} and {self.labels[id]} are both job {id}")

    def _name(self, id: int | None) -> str | None:
        return None if id is None else self.labels[id]

    def _named(self, ids: Iterable[int]) -> list[str]:
        return sorted(self.labels[id] for id in ids)

    def _reasons(self, cancelled: Mapping[int, str]) -> dict[str, str]:
        return {self.labels[id]: reason for id, reason in cancelled.items()}

    def _at(self, ns: int | None) -> At | None:
        return None if ns is None else At(ns, self._slack_ns)

    def _exchanged(self, out: Exchanged) -> dict[str, Any]:
        return {
            "claims": {
                label: self._claim(claim)
                for label, claim in sorted((self.labels[one.id], one) for one in out.claims)
            },
            "stale": self._named(out.stale),
            "lines": {queue: sorted(lines) for queue, lines in out.lines.items()},
            "woken": set(out.woken),
            "held_back": {
                queue: At(ns, self._slack_ns or 1000)  # how it is rounded is open
                for queue, ns in out.held_back_ns.items()
            },
            "ended": sorted(
                (self.labels[id], status.word, result, _promised_error(status, error))
                for id, status, result, error in out.ended
            ),
            "cancelling": self._reasons(out.cancelling),
        }

    def _claim(self, claim: Claim) -> dict[str, Any]:
        numbers = [signal.id for signal in claim.signals]
        if numbers != sorted(set(numbers)):
            raise Disagreement(f"signals {numbers} do not come in the order they were sent")
        fields = structs.asdict(claim)
        fields["id"] = self.labels[claim.id]
        fields["parent"] = self._name(claim.parent)
        # In which order several children report that end in one call is open.
        fields["signals"] = [one for one in map(self._signal, claim.signals) if one[0] != ENDING]
        fields["endings"] = sorted(
            one for one in map(self._signal, claim.signals) if one[0] == ENDING
        )
        fields["children"] = [self._child(child) for child in claim.children]
        return fields

    def _signal(self, signal: Signal) -> tuple[str, Any]:
        if signal.name != ENDING:
            return signal.name, signal.payload
        ended = json.decode(signal.payload, type=Ending)
        error = _promised_error(Status[ended.status.upper()], ended.error)
        return signal.name, (self.labels[ended.id], ended.status, bytes(ended.result), str(error))

    def _child(self, child: Child) -> tuple[Any, ...]:
        error = _promised_error(child.status, child.error)
        # One that lives may be claimed in the same exchange, before or after its parent.
        status = child.status if child.status.ended else None
        return self.labels[child.id], child.kind, status, child.result, error

    def _job(self, job: Job) -> dict[str, Any]:
        fields = structs.asdict(job)
        fields["id"] = self.labels[job.id]
        fields["parent"] = self._name(job.parent)
        for name in ("worker", "ran_by"):
            number = fields[name]
            fields[name] = None if number is None else self.workers.index(number)
        fields["error"] = _promised_error(job.status, job.error)
        for name in ("enqueued_wall_ns", "due_wall_ns", "finished_wall_ns", "started_wall_ns"):
            fields[name] = self._at(fields[name])
        return fields


def _promised_error(status: Status, error: str | None) -> str | bool | None:
    """An error as far as it is promised: the words for a death are the store's own."""
    return error is not None if status is Status.DEAD else error


_TO_READY = {(Status.BLOCKED, Status.READY), (Status.WAITING, Status.READY)}
_SETTLED = {(Status.RUNNING, to) for to in MOVES[Status.RUNNING] if to is not Status.DEAD}
_CLAIMED = {(Status.READY, Status.RUNNING), (Status.READY, Status.BLOCKED)}
_REAPED = {(Status.RUNNING, to) for to in (Status.READY, Status.DEAD, Status.CANCELLED)}
_CANCELLED = {
    (one, Status.CANCELLED) for one in Status if one not in ENDED and one is not Status.RUNNING
}
EFFECTS: Final[Mapping[str, tuple[set[tuple[Status, Status]], ...]]] = MappingProxyType(
    {
        "exchange": (_SETTLED | _TO_READY, _CLAIMED),
        "renew": (
            {(Status.RUNNING, Status.READY), (Status.RUNNING, Status.CANCELLED)} | _TO_READY,
        ),
        "reap": (_REAPED | _TO_READY,),
        "promote": ({(Status.SCHEDULED, Status.READY), (Status.WAITING, Status.READY)},),
        "signal": ({(Status.WAITING, Status.READY)},),
        "cancel": (_CANCELLED | _TO_READY,),
        "retry": (
            {
                (one, to)
                for one in ENDED
                if one is not Status.DONE
                for to in (Status.READY, Status.WAITING)
            },
        ),
    }
)
"""Which moves each call may make, one stage after the other. Any other call makes none."""


def reached(verbs: Iterable[str], before: Iterable[Status]) -> set[Status]:
    """Where a job that was in one of these states may be after these calls."""
    found = set(before)
    for verb in verbs:
        for edges in EFFECTS.get(verb, ()):
            more = found
            while more := {to for one, to in edges if one in more} - found:
                found |= more
    return found


class Watch:
    """Looks at one store after every step. Raises `Disagreement` at the first broken promise."""

    def __init__(self) -> None:
        self._last: dict[str, Status] = {}
        self._limits: dict[str, int | None] = {}
        self._steps: list[Step] = []
        self._pruned = 0

    def heed(self, step: Step, answer: Any) -> None:
        """A step was taken."""
        self._steps.append(step)
        if step.verb == "prune":
            self._pruned += answer
        if step.verb == "set_limits":
            self._limits[step.args["queue"]] = step.args["limits"].concurrency

    def see(self, answer: Any, state: State) -> None:
        """What the store looks like now, after the last step and its answer."""
        verbs = [step.verb for step in self._steps]
        now = {label: job["status"] for label, job in state.jobs.items()}
        for label, status in now.items():
            known = self._last.get(label)
            start = [known] if known is not None else [Status.READY, Status.SCHEDULED]
            if status not in reached(verbs, start):
                was = known.word if known is not None else "nothing"
                raise Disagreement(f"{label} went from {was} to {status.word} by {verbs}")
        lost = self._last.keys() - now.keys()
        if len(lost) > self._pruned:  # more can be pruned than were seen: they came in between
            raise Disagreement(f"{sorted(lost)} are lost after {verbs}")
        for label in lost:
            if not reached(verbs, [self._last[label]]) & ENDED:
                raise Disagreement(f"{label} was pruned and had not ended")
        self._keys(state)
        self._queues(answer, state)
        self._last, self._steps, self._pruned = now, [], 0

    def _keys(self, state: State) -> None:
        holders = Counter(
            job["partition_key"]
            for job in state.jobs.values()
            if job["status"] is Status.RUNNING and job["partition_key"] is not None
        )
        for key, count in holders.items():
            if count > 1:
                raise Disagreement(f"key {key!r} has {count} holders")

    def _queues(self, answer: Any, state: State) -> None:
        counted = Counter((job["queue"], job["status"]) for job in state.jobs.values())
        columns = (
            Status.READY, Status.SCHEDULED, Status.WAITING, Status.BLOCKED, Status.RUNNING,
        )  # fmt: skip
        for name in {job["queue"] for job in state.jobs.values()} | state.queues.keys():
            counts = state.queues.get(name, (False, Limits(), 0, 0, 0, 0, 0))[2:]
            if counts != tuple(counted[name, status] for status in columns):
                raise Disagreement(f"queue {name!r} counts {counts}, its jobs say otherwise")
        if self._steps[-1].verb == "exchange":
            claimed = {claim["queue"] for claim in answer["claims"].values()}
            running = {queue: counted[queue, Status.RUNNING] for queue in QUEUES}
            running["*"] = sum(running.values())
            for queue in claimed | ({"*"} if claimed else set()):
                limit = self._limits.get(queue)
                if limit is not None and running[queue] > limit:
                    raise Disagreement(f"{running[queue]} of queue {queue!r} run, over {limit}")


class Clocked:
    """The clock of the twin: set before each step to what the store under test takes for now."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.ns


class History:
    """One random history of a store beside its twin in memory, treated alike."""

    def __init__(
        self, rig: Any, twin: JobStore, clock: Clocked, rng: random.Random, tally: Counter[str]
    ) -> None:
        self.rig = rig
        self.clock = clock
        self.draw = Draw(rng)
        self.book = Book()
        self.watch = Watch()
        self.twin = Side(twin, slack_ns=rig.slack_ns)
        self.real = Side(rig.store, slack_ns=rig.slack_ns)
        self.tally = tally
        self.steps: list[Step] = []

    async def run(self, steps: int, *, look_every: int = 1) -> None:
        """Play so many steps; compare every answer, and all that can be seen every few steps."""
        await self.twin.store.open()
        try:
            for number in range(1, steps + 1):
                await self._step(look=number % look_every == 0 or number == steps)
            for label in self.book.jobs:
                attempts = await self.real.attempts(label), await self.twin.attempts(label)
                _compare(f"the attempts of {label}", *attempts)
                self.tally["attempt"] += len(attempts[1])
                reasons = await self.real.why_waits(label), await self.twin.why_waits(label)
                _compare(f"why {label} waits", *reasons)
                if reasons[1] is not None:
                    self.tally[f"waits by {reasons[1]['why'].value}"] += 1
        except BaseException as failure:
            last = [str(step) for step in self.steps[-12:]]
            failure.add_note("\n  ".join([f"after {len(self.steps)} steps:", *last]))
            raise
        finally:
            self.real.close()

    async def _step(self, *, look: bool) -> None:
        step = self.draw.step(self.book, self.rig.wall_ns())
        self.steps.append(step)
        if step.verb == "advance":
            await self.rig.advance(step.args["ns"])
        self.clock.ns = self.rig.wall_ns()
        expected = await self.twin.play(step)
        found = await self.real.play(step)
        if step.verb == "exchange":
            self._leave_open(step, found)
            self._leave_open(step, expected)
        _compare(str(step), found, expected)
        wanted = await self.twin.state()
        self.watch.heed(step, found)
        if look:
            state = await self.real.state()
            _compare("the order of jobs", state.order, wanted.order)
            for label, job in state.jobs.items():
                _compare(f"{label} after {step}", job, wanted.jobs[label])
            _compare(f"queues after {step}", state.queues, wanted.queues)
            self.watch.see(found, state)
        self._count(step, found, wanted)
        self.book.note(step, found, wanted, self.clock.ns)

    def _leave_open(self, step: Step, answer: dict[str, Any]) -> None:
        """Take out of the answer to an exchange what the contract does not say."""
        # Whether a line was woken whose job this same exchange then took.
        answer["woken"] -= {want.line for want in step.args["wants"]}
        if self.book.expires_ns[step.args["worker"]] <= self.clock.ns:
            answer["held_back"] = {}  # what the dead are answered
        elif self.book.limits.get("*", Limits()) != Limits():
            # When to ask again if the queue and all of them together are at their limits.
            answer["held_back"] = dict.fromkeys(answer["held_back"])

    def _count(self, step: Step, answer: Any, state: State) -> None:
        self.tally["step"] += 1
        self.tally[step.verb] += 1
        if step.verb == "exchange":
            self.tally["claim"] += len(answer["claims"])
            self.tally["stale"] += len(answer["stale"])
            self.tally["held back"] += len(answer["held_back"])
            for one in step.args["reports"]:
                self.tally[f"fate {one.fate.value}"] += one.held.label not in answer["stale"]
        for label, job in state.jobs.items():
            known = self.book.jobs.get(label)
            if known is None or known["status"] is not job["status"]:
                self.tally[f"to {job['status'].word}"] += 1
            self.tally["timed out"] += (
                step.verb == "promote"
                and known is not None
                and (known["status"] is Status.WAITING and job["status"] is Status.READY)
            )


def _compare(what: str, found: Any, expected: Any) -> None:
    if isinstance(found, dict) and isinstance(expected, dict) and "woken" in found:
        found = {**found, "woken": found["woken"] & expected["woken"]}  # it may name more
    if found == expected:
        return
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in found.keys() | expected.keys():
            if found.get(name) != expected.get(name):
                raise Disagreement(
                    f"{what}: {name} is {found.get(name)!r}, not {expected.get(name)!r}"
                )
    raise Disagreement(f"{what}: found {found!r}, not {expected!r}")
