"""Watch sessions: bounded for each key and together, exactly, with room kept for those with few."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from fairway.errors import FairwayError, NotFound, Throttled, WriteFailed
from fairway.kernel.catalog import Named
from fairway.server.fronts.topics import sessions as module
from fairway.server.fronts.topics.sessions import (
    SESSION_TTL_MS,
    Definition,
    WatchSession,
    WatchSessions,
)
from fairway.settings import Quota
from fairway.testing import run


class Shelf:
    """A catalog whose writes take their time, and fail when told to."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.failure: FairwayError | None = None

    async def put(self, kind: str, name: str, value: bytes, **_: Any) -> None:
        await asyncio.sleep(0.001)
        if self.failure is not None:
            raise self.failure
        self.stored[name] = value

    async def remove(self, *names: tuple[str, str], **_: Any) -> None:
        for _, name in names:
            self.stored.pop(name, None)


def of(key: str) -> Definition:
    return Definition(key, [], "a.", [], None, 256, 1024, 15_000, True, True, True)


def made(shelf: Shelf) -> WatchSessions:
    number = iter(range(10**6))
    return WatchSessions(shelf, lambda count: next(number).to_bytes(count))  # type: ignore[arg-type]


def virtually(main: Any) -> Any:
    return run(main, seed=1, quiet=True)


async def create(sessions: WatchSessions, key: str, count: int, *, most: int = 0) -> list[Any]:
    """Make so many at once; each is a session or what it was refused with."""
    waiting = [sessions.create(of(key), 0, most=most, keyed=True) for _ in range(count)]
    return await asyncio.gather(*waiting, return_exceptions=True)


def test_sessions_that_are_made_at_once_do_not_pass_their_bounds() -> None:
    async def main() -> None:
        sessions = made(Shelf())
        outcomes = await create(sessions, "greedy", 50, most=20)
        assert sum(isinstance(one, WatchSession) for one in outcomes) == 20 == len(sessions)
        refused = [one for one in outcomes if not isinstance(one, WatchSession)]
        assert all((one.limit, one.maximum) == ("watch_sessions", 20) for one in refused)
        assert await create(sessions, "other", 1, most=20)
        with patch.object(module, "SESSIONS_MAX", 30), patch.object(module, "RESERVED", 0):
            outcomes = await create(sessions, "third", 50)
        assert sum(isinstance(one, WatchSession) for one in outcomes) == 9
        assert len(sessions) == 30

    virtually(main)


def test_one_key_cannot_take_the_place_of_others() -> None:
    async def main() -> None:
        with patch.multiple(module, SESSIONS_MAX=100, RESERVED=20, FEW=5):
            sessions = made(Shelf())
            for greedy in ("a", "b", "c"):
                await create(sessions, greedy, 100)
            assert len(sessions) == 90, "each of the later ones had a few of the reserve"
            assert all(isinstance(one, WatchSession) for one in await create(sessions, "d", 5))
            [refusal] = await create(sessions, "d", 1)
            assert (refusal.limit, refusal.maximum) == ("watch_sessions", 80)
            assert len(sessions) <= 100

    virtually(main)


def test_a_refusal_says_when_the_next_session_expires() -> None:
    async def main() -> None:
        sessions = made(Shelf())
        first, second = (await create(sessions, "k", 2, most=2))[:2]
        for opened, now_ms, wait_ms in (
            ([], 1000, SESSION_TTL_MS - 1000),
            ([first], 1000, SESSION_TTL_MS - 1000),
            ([first, second], 1000, SESSION_TTL_MS),
        ):
            for one in opened:
                sessions.opened(one)
            with pytest.raises(Throttled) as refusal:
                await sessions.create(of("k"), now_ms, most=2, keyed=True)
            assert refusal.value.retry_after_ns == wait_ms * 1_000_000
            for one in opened:
                sessions.closed(one, 0)
        # And then there is room, exactly.
        sessions.opened(second)
        late_ms = SESSION_TTL_MS
        assert isinstance(await sessions.create(of("k"), late_ms, most=2, keyed=True), WatchSession)
        assert len(sessions) == 2
        assert sessions.get(second.wid, late_ms) is second

    virtually(main)


def test_a_session_expires_five_minutes_after_its_last_reader_left() -> None:
    async def main() -> None:
        sessions = made(Shelf())
        read, unread = await create(sessions, "k", 2)
        sessions.opened(read)
        left_ms = 10 * SESSION_TTL_MS
        for session, left in ((unread, 0), (read, left_ms)):
            if session is read:
                assert sessions.get(read.wid, left_ms) is read, "it is being read"
                sessions.closed(read, left_ms)
            assert sessions.get(session.wid, left + SESSION_TTL_MS - 1) is session
            with pytest.raises(NotFound):
                sessions.get(session.wid, left + SESSION_TTL_MS)

    virtually(main)
    assert SESSION_TTL_MS == 5 * 60_000


def test_what_could_not_be_stored_counts_for_nobody() -> None:
    async def main() -> None:
        shelf = Shelf()
        sessions = made(shelf)
        shelf.failure = WriteFailed("no")
        assert all(isinstance(one, WriteFailed) for one in await create(sessions, "k", 5, most=5))
        shelf.failure = None
        again = await create(sessions, "k", 6, most=5)
        assert sum(isinstance(one, WatchSession) for one in again) == 5

    virtually(main)


def test_sessions_of_an_earlier_life_count_for_their_key() -> None:
    async def main() -> None:
        shelf = Shelf()
        await create(made(shelf), "k", 3)
        sessions = made(shelf)
        stored = {wid: Named(0, value) for wid, value in shelf.stored.items()}
        sessions.restore(stored, 0)
        assert len(sessions) == 3
        with pytest.raises(Throttled):
            await sessions.create(of("k"), 1, most=3, keyed=True)
        await sessions.purge(SESSION_TTL_MS)
        assert len(sessions) == 0
        assert not shelf.stored

    virtually(main)


def test_every_key_has_a_bound_unless_it_is_told_otherwise() -> None:
    assert 0 < Quota().watch_sessions < module.SESSIONS_MAX - module.RESERVED
