"""A PostgreSQL server for one benchmark, with settings that suit all parties alike."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # no checkpoint in the middle of a drain because of its size
    "checkpoint_timeout": "15min",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
}


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server of our own, gone afterwards."""
    server = PostgresServer()
    with (server.directory / "data" / "postgresql.auto.conf").open("a") as conf:
        conf.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
    with server:
        yield server.url()


@contextmanager
def database(server: str, name: str) -> Iterator[str]:
    """The URL of a new, empty database: what one round leaves behind must not slow the next."""
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            connection.execute(drop)
