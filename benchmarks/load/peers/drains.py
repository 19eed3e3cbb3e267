"""How fast another job queue drains a backlog of no-op jobs, as its own documentation tunes it.

    drain("pgqueuer", server.url(), JOBS["pgqueuer"])  # PostgreSQL: the URL of a server
    drain("huey", "/some/directory", JOBS["huey"])     # SQLite: a directory on the disk to measure

Each `NAME_drain.py` runs in the peer's interpreter as one process: it makes the schema, enqueues
the backlog, and only then starts its worker and the clock, which stops when the last job is
committed as done. It counts the jobs in the database and fails if one is missing, or if the
database would not sync every commit.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks.load.peers.driver import figures, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 300

POSTGRES = ("pgqueuer", "awa-pg", "procrastinate")
SQLITE = ("huey", "dbos")

JOBS = {"pgqueuer": 50_000, "awa-pg": 20_000, "procrastinate": 1_500, "huey": 10_000, "dbos": 1_500}
"""A backlog that each drains in 3 to 8 seconds on two cores, if the disk is not busy otherwise."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a driver printed."""

    peer: str
    jobs: int
    seconds: float
    jobs_per_s: float
    enqueue_per_s: float
    version: str
    durability: str
    """The settings as the peer's own connections reported them."""


def drain(
    peer: str, place: str, jobs: int, *, timeout: float = TIMEOUT_S
) -> tuple[Drained, None] | tuple[None, str]:
    """Drain a new backlog in a new database, and return the figures, or None and the reason.

    `place` is the URL of a PostgreSQL server for a peer in `POSTGRES`, where a database is made and
    dropped, and a directory for one in `SQLITE`, where a file is made and removed.
    """
    if peer not in JOBS:
        raise ValueError(f"no peer {peer!r}; there are: {', '.join(JOBS)}")
    reason = missing(peer)
    if reason is not None:  # no database is made for nobody
        return None, reason
    script = f"{peer.replace('-', '_')}_drain.py"
    task = f"drain {jobs:,} jobs"
    fresh = _database(place, peer) if peer in POSTGRES else _file(place)
    try:
        with fresh as target:
            return figures(peer, script, [target, str(jobs)], Drained, task=task, timeout=timeout)
    except psycopg.Error as error:
        return None, f"no database for {peer}: {error}"


@contextmanager
def _database(server: str, peer: str) -> Iterator[str]:
    """The URL of a new, empty database: what one round leaves behind must not slow the next."""
    name = f"peer_{peer.replace('-', '_')}"
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            connection.execute(drop)


@contextmanager
def _file(directory: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="peer-", dir=directory) as fresh:
        yield str(Path(fresh) / "jobs.db")
