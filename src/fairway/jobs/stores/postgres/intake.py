"""Adding jobs in PostgreSQL: rows, their places in line, and the unique keys that keep some out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.jobs.job import Enqueued, JobBatch, distinct, line_of, states_of
from fairway.jobs.stores.postgres.columns import arrays_of, us, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairway.jobs.job import NewJob
    from fairway.jobs.stores.postgres.connections import Connections
    from fairway.jobs.stores.postgres.ready_lines import ReadyLineNumbers


class PostgresIntake:
    """Adds jobs."""

    def __init__(self, connections: Connections, lines: ReadyLineNumbers) -> None:
        self._connections = connections
        self._sql = connections.sql
        self._lines = lines

    async def add_uniform(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Add jobs for which `are_uniform` holds, in a statement that commits itself."""
        one = distinct(jobs)[0]
        await self._lines.ensure((line_of(one),))
        async with self._connections.connection() as connection:
            ids = await connection.fetchval(
                self._sql["enqueue_uniform"],
                states_of(jobs),
                self._lines[line_of(one)],
                *values_of(one),
            )
        return [Enqueued(id, True) for id in ids]

    async def add(
        self, connection: Any, jobs: Sequence[NewJob], lock_wait_ms: int | None = None
    ) -> list[Enqueued]:
        """Add jobs, whose ready lines have numbers, in the transaction of `connection`.

        `lock_wait_ms` is how long it waits for each unique key, if not as long as it waits anyway.
        """
        jobs = list(jobs)  # a batch makes them anew each time it is looked through
        if any(job.unique_key is not None for job in jobs):
            return await self._add_unique(connection, jobs, lock_wait_ms)
        rows = await connection.fetch(
            self._sql["enqueue"], *self._columns([None] * len(jobs), jobs)
        )
        return [Enqueued(int(id), True) for (id,) in rows]  # callers have codecs of their own

    async def _add_unique(
        self, connection: Any, jobs: Sequence[NewJob], lock_wait_ms: int | None
    ) -> list[Enqueued]:
        """Add jobs of which some have unique keys: those whose key is taken are not added."""
        if lock_wait_ms is None:
            rows = await connection.fetch(self._sql["numbers"], len(jobs))
        else:  # both in one round trip
            rows = await connection.fetch(
                self._sql["numbers_and_lock_wait"], len(jobs), lock_wait_ms
            )
        numbers = [int(row[0]) for row in rows]
        first: dict[str, tuple[int, int]] = {}
        for id, job in zip(numbers, jobs, strict=True):
            if job.unique_key is not None:
                first.setdefault(job.unique_key, (id, us(job.window_ns)))
        holders = await self.take_keys(connection, first)
        answers = []
        for id, job in zip(numbers, jobs, strict=True):
            holder = id if job.unique_key is None else holders[job.unique_key]
            answers.append(Enqueued(holder, holder == id))
        fresh = [job for job, answer in zip(jobs, answers, strict=True) if answer.fresh]
        if fresh:
            ids = [answer.id for answer in answers if answer.fresh]
            await connection.fetch(self._sql["enqueue"], *self._columns(ids, fresh))
        return answers

    async def take_keys(
        self, connection: Any, wanted: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        """Unique keys for jobs and their windows, if they are free; the job each now stands for.

        In two statements. The first one waits for whoever has a key in an open transaction. Only
        the second one sees what that transaction did: whether the job it made is alive.
        """

        def ask(keys: Sequence[str]) -> tuple[list[str], list[int], list[int]]:
            return list(keys), [wanted[key][0] for key in keys], [wanted[key][1] for key in keys]

        rows = await connection.fetch(self._sql["lock_keys"], *ask(list(wanted)))
        holders = {key: wanted[key][0] for (key,) in rows}
        if known := [key for key in wanted if key not in holders]:
            taken = await connection.fetch(self._sql["take_keys"], *ask(known))
            holders |= {key: int(job) for key, job in taken}
        return holders

    def _columns(self, ids: Sequence[int | None], jobs: Sequence[NewJob]) -> list[Sequence[Any]]:
        """What `enqueue` takes: jobs with the ids that they have, if they have any."""
        return [
            ids,
            [self._lines[line_of(job)] for job in jobs],
            [job.state for job in jobs],
            [us(job.delay_ns) for job in jobs],
            *arrays_of(jobs),
            [None if job.at_wall_ns is None else us(job.at_wall_ns) for job in jobs],
        ]


def are_uniform(jobs: Sequence[NewJob]) -> bool:
    """Whether jobs differ in their state alone and have nothing that needs care."""
    if isinstance(jobs, JobBatch):
        jobs = (jobs.first,)
    shape = (line_of(jobs[0]), values_of(jobs[0]))
    return all(
        job.unique_key is None
        and job.partition_key is None
        and job.parent is None
        and not job.delay_ns
        and job.at_wall_ns is None
        and (line_of(job), values_of(job)) == shape
        for job in jobs
    )
