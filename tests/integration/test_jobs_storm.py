"""Eight processes on one PostgreSQL, each as fast as it can, and what must be conserved."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec
import psycopg

from fairway.jobs.job import Filter, Limits, NewJob, Status
from fairway.jobs.stores.postgres import PostgresStore
from tests.support.jobs_storm_child import StormAnswers
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.jobs.job import Job
    from tests.conftest import Campaign

PROCESSES = 8
SCHEMA = "jobs_storm"
LIMITED, ALL = 3, 5


def most_at_once(held: Iterable[tuple[int, str, int, int]]) -> int:
    """How many claims were held at one moment, at the most."""
    moments = sorted(
        moment for _, _, since_ns, until_ns in held for moment in ((since_ns, 1), (until_ns, -1))
    )
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def test_eight_processes_at_full_speed_break_no_promise(campaign: Campaign) -> None:
    rounds = campaign.rounds(share=12, full=200)
    jobs = campaign.rounds(share=60, full=2_000)

    async def prepare() -> tuple[list[int], int, list[int]]:
        store = PostgresStore(postgres_url(), schema=SCHEMA)
        await store.open()
        await store.set_limits("limited", Limits(concurrency=LIMITED))
        await store.set_limits("*", Limits(concurrency=ALL))
        added = []
        for queue in ("limited", "free"):
            added += await store.enqueue([NewJob(kind="work", queue=queue)] * jobs)
        (machine,) = await store.enqueue([NewJob(kind="machine", queue="machine")])
        victims = await store.enqueue([NewJob(kind="victim", queue="victims")] * rounds)
        await store.aclose()
        return [one.id for one in added], machine.id, [one.id for one in victims]

    async def left() -> tuple[list[Status], Counter[str | None], int, list[Job]]:
        store = PostgresStore(postgres_url(), schema=SCHEMA)
        await store.open()
        work = await store.browse(Filter(kind="work", limit=1_000_000))
        keyed = await store.browse(Filter(kind="keyed", limit=1_000_000))
        tenants = await store.browse(Filter(kind="tenant", limit=1_000_000))
        others = [
            *await store.browse(Filter(kind="machine")),
            *await store.browse(Filter(kind="victim")),
        ]
        await store.aclose()
        keys = Counter(job.unique_key for job in keyed)
        return [job.status for job in work], keys, len(tenants), others

    try:
        work, machine, victims = asyncio.run(prepare())
        assert victims == list(range(victims[0], victims[0] + rounds))
        answers = storm(rounds, machine, victims[0])
        states, live, tenants, others = asyncio.run(left())
    finally:
        with psycopg.connect(postgres_url(), autocommit=True) as connection:
            connection.execute(f"drop schema if exists {SCHEMA} cascade")
    # A unique key stands for one job, whoever asked, and one of those who asked has made it.
    holders = defaultdict(set)
    fresh: Counter[str] = Counter()
    for one in answers:
        for key, id, new in one.keys:
            holders[key].add(id)
            fresh[key] += new
    assert {key: ids for key, ids in holders.items() if len(ids) != 1} == {}
    assert set(fresh.values()) == {1}
    assert live == Counter(dict.fromkeys(holders, 1))
    assert len(holders) == 3 * rounds
    # Every job is done, and once.
    assert set(states) == {Status.DONE}
    assert Counter(id for one in answers for id in one.done) == Counter(work)
    # No limit is passed at any moment.
    held = [each for one in answers for each in one.held]
    limited = most_at_once(each for each in held if each[1] == "limited")
    assert limited <= LIMITED
    assert most_at_once(held) <= ALL
    # Nobody is refused a new tenant.
    assert tenants == len({id for one in answers for id in one.tenants}) == 2 * rounds * PROCESSES
    # Of those who cancel or discard a job one does.
    assert Counter(id for one in answers for id in one.cancelled) == Counter(victims)
    assert Counter(id for one in answers for id in one.discarded) == Counter(victims)
    # Every signal is given once to a step that is committed, and of those alike one is fresh.
    sent = Counter(text for one in answers for text in one.sent)
    assert set(sent.values()) == {1}
    assert len(sent) == rounds * (1 + PROCESSES)
    assert Counter(text for one in answers for text in one.given) == sent
    assert [(job.id, job.status) for job in others] == [(machine, Status.WAITING)]
    campaign.tally["signal"] = len(sent)
    campaign.tally["key asked for"] = sum(len(one.keys) for one in answers)
    campaign.tally["job done"] = len(work)
    campaign.tally["limited at once"] = limited
    campaign.tally["transaction repeated"] = sum(one.repeated for one in answers)


def storm(*arguments: int) -> list[StormAnswers]:
    children = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.jobs_storm_child"),
                *(postgres_url(), SCHEMA, *map(str, (number, *arguments))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.read(1) == b"."
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.flush()
        return [
            msgspec.json.decode(child.communicate()[0].splitlines()[-1], type=StormAnswers)
            for child in children
        ]
    finally:
        for child in children:
            child.kill()
            child.wait()
