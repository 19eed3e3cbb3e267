"""How a worker is configured in code, and how two versions of a job live side by side."""

import asyncio
import tempfile
from typing import Any

from fairway import Fairway
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.worker import WorkerConfig

SECOND_NS = 1_000_000_000

# --8<-- [start:config]
worker = WorkerConfig(
    queues={
        "default": FeederConfig(concurrency=10),
        "mail": FeederConfig(concurrency=500, prefetch=500, min_demand=50),  # many small jobs
    },
    lease_ttl_ns=30 * SECOND_NS,
    heartbeat_interval_ns=10 * SECOND_NS,
    drain_timeout_ns=25 * SECOND_NS,
)
# --8<-- [end:config]


def api(place: str) -> Fairway:
    # --8<-- [start:api]
    app = Fairway(place, worker=None)  # serves and enqueues; `fairway worker` does the work
    # --8<-- [end:api]
    return app


def pooled() -> Fairway:
    # --8<-- [start:pooler]
    from fairway.jobs.stores.postgres import PostgresStore

    store = PostgresStore("postgresql://pooler:6432/shop", statement_cache_size=0)
    app = Fairway("fairway-data", jobs=store)
    # --8<-- [end:pooler]
    return app


async def embedded(app: Fairway, url: str) -> None:
    # --8<-- [start:embedded]
    from fairway.client import AsyncClient, ServerTopics

    async with AsyncClient(url) as client, app.working(worker, topics=ServerTopics(client)):
        await asyncio.Event().wait()  # the worker runs until this task is cancelled
    # --8<-- [end:embedded]


async def main(directory: str) -> None:
    app = api(directory)

    # --8<-- [start:versions]
    @app.job(name="charge", version=1)  # what was enqueued before the deploy
    async def charge_dollars(order: int, dollars: float) -> str:
        return f"order {order}: {round(dollars * 100)} cents"

    @app.job(name="charge", version=2)
    async def charge(order: int, cents: int) -> str:
        return f"order {order}: {cents} cents"

    # --8<-- [end:versions]
    handles: list[Any] = []
    async with app.working(worker):
        handles.append(await charge_dollars.enqueue(order=1, dollars=4.2))
        handles.append(await charge.enqueue(order=2, cents=420))
        for handle in handles:
            print(await handle.result(timeout_s=30))


if __name__ == "__main__":
    pooled()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
