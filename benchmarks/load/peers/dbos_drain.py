"""Drain no-op workflows with DBOS on SQLite: `dbos_drain.py FILE JOBS`, in DBOS's environment."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from importlib.metadata import version
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient
from sqlalchemy import Engine, event

QUEUE = "bench_queue"
# No `worker_concurrency`, the default: the whole backlog is claimed in one transaction. 100 at a
# time was slower, and so were workflows that are not async.
# `polling_interval_sec` is 1 by default. It hardly matters here: one poll claims everything.
POLLING_INTERVAL_S = 0.02
ENQUEUE_BATCH = 500

SYNCHRONOUS_FULL = 2

opened: set[tuple[int, str]] = set()
"""PRAGMA synchronous and journal_mode of every connection that DBOS opened."""


@event.listens_for(Engine, "connect")
def sync_every_commit(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    opened.add((synchronous, connection.execute("PRAGMA journal_mode").fetchone()[0]))


class FirstFetch:
    """When the worker first asked for what is in our queue: it waits an interval before that."""

    def __init__(self) -> None:
        self.at = 0.0
        event.listen(Engine, "before_cursor_execute", self._seen)

    def _seen(self, _c: Any, _cursor: Any, statement: str, values: Any, *_rest: Any) -> None:
        if "workflow_status" in statement and QUEUE in values:
            self.at = time.perf_counter()
            event.remove(Engine, "before_cursor_execute", self._seen)


def main(file: str, jobs: int) -> None:
    observer = sqlite3.connect(file, isolation_level=None)
    # DBOS leaves the journal to SQLite, which keeps its mode in the file. With a write-ahead log it
    # drained 1.4 times as fast as with the rollback journal that SQLite starts with.
    observer.execute("PRAGMA journal_mode=WAL").fetchall()
    url = f"sqlite:///{file}"
    config: Any = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    DBOS.migrate(url)

    client = DBOSClient(system_database_url=url)
    client.register_queue(QUEUE, polling_interval_sec=POLLING_INTERVAL_S)
    engine = sqlalchemy.create_engine(url)
    begin = time.perf_counter()
    for start in range(0, jobs, ENQUEUE_BATCH):
        # There is no bulk way; `enqueue_in_transaction` at least commits many at once.
        with engine.begin() as transaction:
            for _ in range(min(ENQUEUE_BATCH, jobs - start)):
                client.enqueue_in_transaction(
                    transaction, {"queue_name": QUEUE, "workflow_name": "noop"}
                )
    enqueue_s = time.perf_counter() - begin
    engine.dispose()
    client.destroy()

    DBOS(config=config)
    ran = 0
    all_ran = threading.Event()

    @DBOS.workflow(name="noop")
    async def noop() -> None:
        nonlocal ran  # on the one event loop of DBOS
        ran += 1
        if ran >= jobs:
            all_ran.set()

    first_fetch = FirstFetch()
    DBOS.launch()
    all_ran.wait()
    succeeded = "SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'"
    while (done := observer.execute(succeeded).fetchone()[0]) < jobs:
        time.sleep(0.01)  # the last outcomes are still to be written
    seconds = time.perf_counter() - first_fetch.at

    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs are done")
    if opened != {(SYNCHRONOUS_FULL, "wal")}:
        raise RuntimeError(f"not durable: {opened}")
    print(
        json.dumps(
            {
                "peer": "dbos",
                "jobs": jobs,
                "seconds": seconds,
                "jobs_per_s": jobs / seconds,
                "enqueue_per_s": jobs / enqueue_s,
                "version": version("dbos"),
                "durability": "synchronous=2 journal_mode=wal",
            }
        ),
        flush=True,
    )
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    os._exit(0)  # its background threads may linger, and everything is said
