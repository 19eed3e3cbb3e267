"""Drain no-op jobs with Huey on SQLite: `huey_drain.py FILE JOBS`, in Huey's own environment.

Huey deletes a job before it runs it and acknowledges nothing afterwards: a job is done, and as good
as lost in a crash, from then on. So this is one commit a job, where the others make two.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from importlib.metadata import version

from huey import SqliteHuey

# `-w 4 -k thread`: the threads share one connection behind a lock, so that more of them only let
# one run a job while another fetches. Four were a little faster than one or two, within the spread.
WORKERS = 4

SYNCHRONOUS_FULL = 2


def main(file: str, jobs: int) -> None:
    # `fsync=True` is PRAGMA synchronous=FULL. `journal_mode` is "wal" by default, the faster one.
    # `results=False`: a no-op has none to store.
    huey = SqliteHuey("bench", filename=file, fsync=True, results=False)
    ran = 0
    lock = threading.Lock()
    all_ran = threading.Event()

    @huey.task()
    def noop() -> None:
        nonlocal ran
        with lock:
            ran += 1
            if ran >= jobs:
                all_ran.set()

    begin = time.perf_counter()
    for _ in range(jobs):
        noop()  # there is no bulk way: `map` and groups enqueue one by one as well
    enqueue_s = time.perf_counter() - begin
    if (queued := huey.pending_count()) != jobs:
        raise RuntimeError(f"{queued} of {jobs} jobs are queued")

    # The one connection that all its threads use.
    synchronous = huey.storage.conn.execute("PRAGMA synchronous").fetchone()[0]
    journal = huey.storage.conn.execute("PRAGMA journal_mode").fetchone()[0]
    if synchronous != SYNCHRONOUS_FULL:
        raise RuntimeError(f"not durable: synchronous={synchronous}")

    # `periodic=False` and no health checks: less beside the work.
    consumer = huey.create_consumer(
        workers=WORKERS, worker_type="thread", periodic=False, check_worker_health=False
    )
    begin = time.perf_counter()
    consumer.start()
    all_ran.wait()
    seconds = time.perf_counter() - begin
    consumer.stop(graceful=True)

    if ran != jobs or huey.pending_count():
        raise RuntimeError(f"{ran} of {jobs} jobs ran, {huey.pending_count()} are still queued")
    print(
        json.dumps(
            {
                "peer": "huey",
                "jobs": jobs,
                "seconds": seconds,
                "jobs_per_s": jobs / seconds,
                "enqueue_per_s": jobs / enqueue_s,
                "version": version("huey"),
                "durability": f"synchronous={synchronous} journal_mode={journal}",
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
