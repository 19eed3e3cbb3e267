"""Limits that stand in a store since before they were checked: workers go on, and say so."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Limits, NewJob, Status
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.worker import Worker, WorkerConfig
from tests.support.jobs_child import store_at
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from pathlib import Path

SPOILT = ["0.0", "-1.0", "1e-320", "'NaN'::float8", "'Infinity'::float8"]
schemas = itertools.count(1)


def write_down(place: str, queue: str, rate: str) -> None:
    """Set what no release would take today."""
    kind, _, rest = place.partition(":")
    if kind == "postgres":
        import psycopg

        schema, _, url = rest.partition(":")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                f"update {schema}.queue set rate_per_s = {rate}, burst = 0 where name = '{queue}'"
            )
    else:
        import apsw

        connection = apsw.Connection(rest)
        connection.execute(
            f"UPDATE queue SET rate_per_s = {rate}, burst = 0 WHERE name = '{queue}'"
        )
        connection.close()


@pytest.mark.parametrize(
    ("kind", "rate"),
    [*(("postgres", rate) for rate in SPOILT), *(("sqlite", rate) for rate in SPOILT[:3])],
)
def test_a_worker_outlives_limits_that_cannot_be_kept(
    kind: str, rate: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = schema = f"limits_{next(schemas)}"  # each is warned of once
    place = f"{schema}:{postgres_url()}" if kind == "postgres" else str(tmp_path / "jobs.db")
    place = f"{kind}:{place}"

    async def scenario() -> None:
        store = store_at(place)
        await store.open()
        kinds = Kinds()

        async def plain() -> None:
            pass

        kinds.add(function_kind(plain, "plain", 1, Options()))
        engine = Jobs(store, kinds)
        await engine.limit(queue, Limits(rate_per_s=1.0))
        write_down(place, queue, rate)
        config = WorkerConfig(queues={queue: FeederConfig()})
        worker = Worker(store, kinds.by_version, config, on_ended=engine.on_ended)
        engine.attach(worker)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run())
            added = await engine.enqueue(
                [NewJob(kind="plain", queue=queue), NewJob(kind="plain", queue=queue)]
            )
            first, second = (one.id for one in added)
            await engine.result(first, 60)  # the bucket held one
            assert any("cannot be kept" in record.message for record in caplog.records)
            if "Infinity" not in rate:
                assert (await engine.find(second)).status is Status.READY
            await engine.limit(queue, Limits())
            await engine.result(second, 60)
            await worker.drain()
            running.cancel()
        await store.aclose()

    asyncio.run(scenario())
