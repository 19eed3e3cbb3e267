"""One of several processes that use one job store as fast as they can. Run with

    python -m tests.support.jobs_storm_child URL SCHEMA NUMBER ROUNDS MACHINE VICTIMS

MACHINE is the id of a job, VICTIMS that of the first of as many as there are rounds. It says one
byte when it is ready and begins when a line comes on stdin. In each round it asks for the same
unique keys and the same new tenants as all the others, now by itself, now within transactions of
its own; it cancels and discards the same victim, sends signals to one machine and prunes; and it
claims and settles jobs of queues with limits, and that machine. Then it works until nothing is
left, and prints what it was answered as one line of JSON.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any

import asyncpg
import msgspec

from fairway.core.priority import Band
from fairway.errors import TransactionConflict
from fairway.jobs.job import Claim, Fate, NewJob, ReadyLine, Settlement
from fairway.jobs.store import Want
from fairway.jobs.stores.postgres import PostgresStore

TTL_NS = 600 * 1_000_000_000
WORK = tuple(ReadyLine(queue, "", Band.B1) for queue in ("limited", "free", "machine"))
QUEUES = [line.queue for line in WORK]


class StormAnswers(msgspec.Struct):
    """What one process was answered."""

    keys: list[tuple[str, int, bool]] = []
    """A unique key, the job it stands for, and whether that is new."""
    held: list[tuple[int, str, int, int]] = []
    """A job that was claimed, its queue, when the claim was answered and when it was settled."""
    done: list[int] = []
    tenants: list[int] = []
    """Jobs that were enqueued for new tenants."""
    cancelled: list[int] = []
    """Jobs that ended by a cancel of ours."""
    discarded: list[int] = []
    sent: list[str] = []
    """Signals that were fresh."""
    given: list[str] = []
    """Signals that came with a claim whose step was committed."""
    repeated: int = 0
    """Transactions of its own that met others and were repeated, as the error says."""


class Stormer:
    def __init__(self, store: PostgresStore, url: str, number: int) -> None:
        self.store = store
        self.url = url
        self.rng = random.Random(number)
        self.answers = StormAnswers()
        self.token = 0
        self.held: dict[int, tuple[Any, int]] = {}

    async def run(self, rounds: int, machine: int, victims: int) -> None:
        self.worker = await self.store.register(f"storm {self.rng.random()}", TTL_NS)
        self.guest = await asyncpg.connect(self.url)
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()
        sys.stdin.readline()
        for number in range(rounds):
            await self.ask_for_keys([f"key {number} {part}" for part in "abc"])
            added = await self.store.enqueue(
                [NewJob(kind="tenant", queue="tenants", tenant=f"tenant {number}")] * 2
            )
            self.answers.tenants += [one.id for one in added]
            await self.exchange()
            self.answers.cancelled += (await self.store.cancel([victims + number])).ended
            await self.exchange()
            self.answers.discarded += await self.store.discard([victims + number])
            await self.send(machine, f"{number} of all", dedup=f"round {number}")
            await self.send(machine, f"{number} of {self.worker}")
            if self.rng.random() < 0.2:
                await self.store.prune(TTL_NS)
        while await self.exchange() or self.held:
            pass
        await self.guest.close()

    async def send(self, machine: int, text: str, dedup: str | None = None) -> None:
        out = await self.store.signal(machine, "go", msgspec.json.encode(text), dedup=dedup)
        assert out.job == machine, out
        if out.fresh:
            self.answers.sent.append(text)

    async def ask_for_keys(self, keys: list[str]) -> None:
        if self.rng.random() < 0.1:
            self.rng.shuffle(keys)
        if self.rng.random() < 0.5:
            await self.note(keys, await self.store.enqueue([_keyed(key) for key in keys]))
            return
        while True:
            await self.guest.execute("begin")
            try:
                added = []
                for key in keys:  # one by one, now and then out of order: a deadlock
                    added += await self.store.enqueue([_keyed(key)], within=self.guest)
                await self.guest.execute("commit")
            except TransactionConflict:
                await self.guest.execute("rollback")
                self.answers.repeated += 1
            else:
                await self.note(keys, added)
                return

    async def note(self, keys: list[str], added: Any) -> None:
        self.answers.keys += [
            (key, one.id, one.fresh) for key, one in zip(keys, added, strict=True)
        ]

    async def exchange(self) -> bool:
        """Settle what we hold and claim more; whether there is more."""
        self.token += 1
        settled = list(self.held.values())
        at_ns = time.monotonic_ns()
        out = await self.store.exchange(
            self.worker,
            self.token,
            [_settlement(claim) for claim, _ in settled],
            [Want(line, 2) for line in WORK],
            QUEUES if self.rng.random() < 0.3 or not settled else [],
        )
        assert not out.stale, out.stale
        for claim, since_ns in settled:
            self.answers.held.append((claim.id, claim.queue, since_ns, at_ns))
            self.answers.given += [msgspec.json.decode(one.payload) for one in claim.signals]
        self.answers.done += [one.id for one in out.ended]
        now_ns = time.monotonic_ns()
        self.held = {claim.id: (claim, now_ns) for claim in out.claims}
        return any(out.lines.values())


def _settlement(claim: Claim) -> Settlement:
    if claim.kind == "machine":
        return Settlement(claim=claim, fate=Fate.WAIT, step="then", names=("go",))
    return Settlement(claim=claim, fate=Fate.DONE)


def _keyed(key: str) -> NewJob:
    return NewJob(kind="keyed", queue="keyed", unique_key=key)


async def main(url: str, schema: str, *numbers: int) -> None:
    url += "&options=-c%20deadlock_timeout%3D20ms"
    number, *rest = numbers
    store = PostgresStore(url, schema=schema, lock_timeout_ns=TTL_NS)
    await store.open()
    try:
        stormer = Stormer(store, url, number)
        await stormer.run(*rest)
    finally:
        await store.aclose()
    print(msgspec.json.encode(stormer.answers).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
