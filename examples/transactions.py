"""Enqueue within a transaction of your own: the job exists if you commit, else it never was.

Runs on SQLite; given the URL of a PostgreSQL database it runs there as well.
"""

# pyright: basic
# (asyncpg has no types)
import asyncio
import importlib.util
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import apsw

from fairway import Fairway
from fairway.errors import Invalid
from fairway.jobs.job import Filter
from fairway.jobs.stores.sqlite import SqliteStore


def shop(directory: Path, jobs: str | None = None) -> tuple[Fairway, Any]:
    app = Fairway(directory, jobs=jobs)

    @app.job
    async def send_receipt(id: int) -> None: ...

    return app, send_receipt


# --8<-- [start:apsw]
async def order_with_apsw(place: Path, send_receipt: Any) -> None:
    connection = apsw.Connection(str(place / "jobs.db"))  # your tables live beside the jobs
    connection.set_busy_timeout(5_000)
    connection.execute("create table if not exists orders (id integer primary key)")
    with connection:  # commits, or rolls back if something is raised
        connection.execute("insert into orders values (7)")
        await send_receipt.using(within=connection).enqueue(id=7)
    connection.close()


# --8<-- [end:apsw]


# --8<-- [start:sqlite3]
async def order_with_sqlite3(place: Path, send_receipt: Any) -> None:
    store = SqliteStore(place / "jobs.db")  # named, not opened: jobs run in another process
    connection = sqlite3.connect(place / "jobs.db")
    with connection:
        connection.execute("insert into orders values (8)")
        await store.enqueue([send_receipt.order(id=8).job], within=connection)
    connection.close()


# --8<-- [end:sqlite3]


# --8<-- [start:asyncpg]
async def order_with_asyncpg(url: str, send_receipt: Any) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("insert into orders values (7)")
        await send_receipt.using(within=connection).enqueue(id=7)
    await connection.close()


# --8<-- [end:asyncpg]


# --8<-- [start:psycopg]
async def order_with_psycopg(url: str, send_receipt: Any) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url) as connection:  # commits at its end
        await connection.execute("insert into orders values (8)")
        await send_receipt.using(within=connection).enqueue(id=8)


# --8<-- [end:psycopg]


# --8<-- [start:sqlalchemy]
async def order_with_sqlalchemy(url: str, send_receipt: Any) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("insert into orders values (9)"))
        await send_receipt.using(within=session).enqueue(id=9)
    await engine.dispose()


# --8<-- [end:sqlalchemy]


async def ids(app: Fairway) -> list[int]:
    return sorted(job.id for job in await app.jobs.browse(Filter()))


async def on_sqlite(place: Path) -> None:
    app, send_receipt = shop(place)
    async with app:
        await order_with_apsw(place, send_receipt)
        assert await ids(app) == [1]
        connection = sqlite3.connect(place / "jobs.db")
        # --8<-- [start:refused]
        try:
            await send_receipt.using(within=connection).enqueue(id=8)
        except Invalid as refusal:
            print(refusal)
        # --8<-- [end:refused]
        connection.close()
    await order_with_sqlite3(place, send_receipt)
    async with app:
        assert await ids(app) == [1, 2]


async def on_postgres(place: Path, url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("create table orders (id int primary key)")
    app, send_receipt = shop(place, url)
    async with app:
        await order_with_asyncpg(url, send_receipt)
        await order_with_psycopg(url, send_receipt)
        if importlib.util.find_spec("sqlalchemy"):
            await order_with_sqlalchemy(url, send_receipt)
        orders = await connection.fetchval("select count(*) from orders")
        assert len(await ids(app)) == orders
    await connection.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(on_sqlite(Path(directory, "one")))
        for url in sys.argv[1:]:
            asyncio.run(on_postgres(Path(directory, "two"), url))
