"""The tables of jobs in PostgreSQL: their numbered migrations, and the statements that use them.

What each table is for stands in `migrations/`; the statements are in `statements.sql`, by name.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

from fairway.core.priority import (
    BONUS_MAX,
    MANUAL_MAX,
    MANUAL_MIN,
    POINT_NS,
    THRESHOLDS,
    Band,
)
from fairway.errors import UnknownFormat
from fairway.jobs import moves
from fairway.jobs.attempts import ATTEMPTS_MAX
from fairway.jobs.limits import SECOND_NS
from fairway.jobs.stores.postgres.columns import fragments
from fairway.storage.named_sql import named_sql

if TYPE_CHECKING:
    from collections.abc import Collection

    from fairway.jobs.job import Status
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections

MIGRATIONS = tuple(
    sorted(
        file.name
        for file in resources.files(f"{__package__}.migrations").iterdir()
        if file.name.endswith(".sql")
    )
)
"""The n-th of them brings a schema from version n to n + 1."""


def _rules() -> dict[str, str]:
    """What is decided elsewhere, for the statements that decide it for many jobs at once."""
    before, behind = moves.DEATH_ERROR
    bands = sorted(zip(THRESHOLDS, range(1, len(THRESHOLDS) + 1), strict=True), reverse=True)
    points_per_s = SECOND_NS // POINT_NS
    return {
        "unhappy": _letters(moves.UNHAPPY),
        "hearing": _letters(
            moves.where(lambda job: moves.signalled(job._replace(names=("s",)), "s"))
        ),
        "is_like": " and ".join(f"{name} = ${at}" for at, name in enumerate(moves.LIKE, 3)),
        "dies": " or ".join(f"{' + '.join(terms)} >= {most}" for terms, most in moves.DEATH),
        "death": f"'{before}' || crashes || '{behind}'",
        "points": f"greatest({MANUAL_MIN}, least({MANUAL_MAX}, r.priority)) + least({BONUS_MAX},"
        f" greatest(0, floor(extract(epoch from fw.now_() - r.since) * {points_per_s})))",
        "band": "case "
        + " ".join(f"when p.points >= {least} then {band}" for least, band in bands)
        + " else 0 end",
        "highest": str(int(max(Band))),
        "spare": str(ATTEMPTS_MAX - 2),
        **fragments(),
    }


def _letters(statuses: Collection[Status]) -> str:
    return ", ".join(sorted(f"'{status.value}'" for status in statuses))


_SQL = {**named_sql(__package__, "statements.sql"), **_rules()}


def statements(schema: str) -> dict[str, str]:
    """Every statement, for the tables of one schema. `{name}` in one stands for that other one."""
    return {name: in_schema(_whole(text), schema) for name, text in _SQL.items()}


def _whole(text: str) -> str:
    return re.sub(r"\{([a-z_]+)\}", lambda part: _whole(_SQL[part[1]]), text)


def in_schema(text: str, schema: str) -> str:
    """`fw.` stands for the schema. Qualified names: a caller's connection has its own path."""
    quoted = '"' + schema.replace('"', '""') + '"'
    return re.sub(r"\bfw\.", lambda _: f"{quoted}.", text)


async def migrate(connections: Connections) -> None:
    """Bring the tables to the version of this release. Safe when several start at once."""
    schema = connections.schema

    async def bring(connection: AsyncpgConnection) -> None:
        quoted = in_schema("fw.", schema)[:-1]
        await connection.execute("set local lock_timeout = 0")  # others may be at it, for long
        await connection.execute(
            "select pg_advisory_xact_lock(hashtextextended($1, 0))", f"fairway {schema}"
        )
        await connection.execute(f"create schema if not exists {quoted}")
        await connection.execute(
            f"create table if not exists {quoted}.migration"
            " (version int primary key, applied_at timestamptz not null default now())"
        )
        at = await connection.fetchval(f"select coalesce(max(version), 0) from {quoted}.migration")
        if at > len(MIGRATIONS):
            raise UnknownFormat(
                f"schema {schema} is at version {at}; this release knows"
                f" {len(MIGRATIONS)}: run a newer release"
            )
        for version, file in enumerate(MIGRATIONS[at:], at + 1):
            text = resources.files(f"{__package__}.migrations").joinpath(file).read_text()
            await connection.execute(in_schema(text, schema))
            await connection.execute(
                f"insert into {quoted}.migration (version) values ($1)", version
            )

    await connections.transaction(bring)
