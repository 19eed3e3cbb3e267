"""Partition keys as session-level advisory locks, on one connection of their own.

The other way to keep two jobs of one key apart; the default is a table. Locks are asked for and
given back in batches. They end with their connection, so whoever loses it has lost every key: those
runs are stopped as soon as the loss is known, what they say is refused, and their jobs run again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import asyncpg

from fairway.errors import FairwayError
from fairway.jobs.stores.postgres.connections import (
    COMMAND_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    answering,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairway.jobs.stores.postgres.connections import AsyncpgConnection

logger = logging.getLogger("fairway.jobs")

# Named by schema and key: two apps in one database do not get in each other's way. 64 bits of a
# hash: of a million keys, two share one with a chance of one in forty million.
_TRY = """
select k, pg_try_advisory_lock(hashtextextended($1 || ':' || k, 0))
from unnest($2::text[]) as t (k)
"""
_UNLOCK = """
select pg_advisory_unlock(hashtextextended($1 || ':' || k, 0)) from unnest($2::text[]) as t (k)
"""


class KeyLocks:
    """The keys this process holds, by job and token."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._connection: AsyncpgConnection | None = None
        self._held: dict[str, tuple[int, int]] = {}
        self._by_claim: dict[tuple[int, int], str] = {}
        self.on_lost: list[Callable[[Mapping[int, int]], None]] = []
        """Called with jobs, and the tokens of their claims, whose keys were lost."""

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        self._held.clear()
        self._by_claim.clear()
        if connection is not None:
            try:
                await connection.close()
            except Exception:  # there is nobody to say goodbye to
                connection.terminate()

    async def take(self, wanted: Mapping[tuple[int, int], str]) -> set[tuple[int, int]]:
        """Try for the keys of claims, given as job and token; those that got theirs."""
        first: dict[str, tuple[int, int]] = {}
        won = set()
        for claim, key in wanted.items():
            # A session may take its own lock again and again: what we hold is not for a second job.
            if key not in self._held:
                first.setdefault(key, claim)
            elif self._held[key] == claim:
                won.add(claim)  # its exchange is tried again
        if not first:
            return won
        rows = await self._ask(_TRY, list(first))
        won |= {first[key] for key, got in rows if got}
        for key, claim in first.items():
            if claim in won:
                self._held[key] = claim
                self._by_claim[claim] = key
        return won

    def holds(self, claim: tuple[int, int]) -> bool:
        """Whether a claim still has its key."""
        return claim in self._by_claim

    async def give_back(self, claims: Iterable[tuple[int, int]]) -> None:
        """The outcomes of these are committed: their keys are free."""
        keys = []
        for claim in claims:
            if (key := self._by_claim.pop(claim, None)) is not None:
                del self._held[key]
                keys.append(key)
        if keys and self._connection is not None and not self._connection.is_closed():
            await self._ask(_UNLOCK, keys)

    async def abandon(self, token: int) -> None:
        """An exchange came to nothing: what it took under this token is free."""
        await self.give_back([claim for claim in self._by_claim if claim[1] == token])

    async def _ask(self, text: str, keys: list[str]) -> list[Any]:
        try:
            with answering(sent=False):
                if self._connection is None or self._connection.is_closed():
                    self._lost()
                    self._connection = await self._connect()
                rows: list[Any] = await self._connection.fetch(text, self._schema, keys)
                return rows
        except FairwayError:
            # Whatever it was: locks of a session that we do not use any more must not stay taken.
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.terminate()
            self._lost()
            raise

    async def _connect(self) -> AsyncpgConnection:
        connection = await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings={"application_name": f"fairway {self._schema} keys"},
        )
        connection.add_termination_listener(lambda _: self._lost())
        return connection

    def _lost(self) -> None:
        """The connection is gone, and with it every lock."""
        claims = list(self._by_claim)
        self._held.clear()
        self._by_claim.clear()
        if claims:
            logger.error("%d partition keys were lost with their connection", len(claims))
            for notify in list(self.on_lost):
                notify(dict(claims))
