"""Records of a topic become jobs, each once, whatever breaks between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Fairway
from fairway.errors import OutcomeUnknown, Unavailable
from fairway.jobs.job import Filter, Status
from fairway.jobs.part import store_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Seen(list[int]):
    """What was shipped, and a bell that rings for each."""

    def __init__(self) -> None:
        super().__init__()
        self.bell = asyncio.Event()

    def append(self, id: int) -> None:
        super().append(id)
        self.bell.set()

    async def wait_until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not true():
                self.bell.clear()
                await self.bell.wait()


def shop(place: Path, seen: Seen, store: Any = None) -> Fairway:
    app = Fairway(place, jobs=store)
    orders = app.topic("orders")

    @app.job
    async def ship(id: int) -> None:
        seen.append(id)

    app.forward(orders, ship, name="shipping")
    return app


def test_each_record_is_one_job_also_across_restarts(tmp_path: Path) -> None:
    seen = Seen()

    async def play() -> None:
        async with shop(tmp_path, seen) as app:
            await app.topic("orders").append(*({"id": n} for n in range(10)))
            await seen.wait_until(lambda: len(seen) == 10)
        async with shop(tmp_path, seen) as app:
            await app.topic("orders").append({"id": 10})
            await seen.wait_until(lambda: len(seen) == 11)
            cursor = await app.jobs.store.cursor("shipping")
            assert cursor is not None
            assert cursor.seq == 11

    asyncio.run(play())
    assert sorted(seen) == list(range(11))


def test_a_record_that_does_not_fit_is_a_job_that_failed_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    seen = Seen()

    async def play() -> list[str]:
        async with shop(tmp_path, seen) as app:
            await app.topic("orders").append({"id": "x"}, "no object", {"id": 1})
            await seen.wait_until(lambda: seen == [1])
            failed: list[Any] = []
            while len(failed) < 2:
                failed = await app.jobs.browse(Filter(status=Status.FAILED))
            return [job.error for job in failed]

    errors = asyncio.run(play())
    assert any("Expected `int`, got `str`" in error for error in errors)


def test_a_topic_is_read_from_its_start_and_so_is_one_that_was_made_anew(tmp_path: Path) -> None:
    seen = Seen()

    async def play() -> None:
        async with Fairway(tmp_path) as app:  # nothing forwards yet
            await app.topic("orders").append({"id": 1}, {"id": 2})
        async with shop(tmp_path, seen) as app:
            await seen.wait_until(lambda: len(seen) == 2)
            await app.topics.delete("orders")
            await app.topic("orders").append({"id": 3})
            await seen.wait_until(lambda: len(seen) == 3)

    asyncio.run(play())
    assert sorted(seen) == [1, 2, 3]


def test_what_a_cap_took_before_it_was_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()

    async def play() -> None:
        async with Fairway(tmp_path) as app:
            await app.topic("orders", cap_records=2).append(*({"id": n} for n in range(5)))
        async with shop(tmp_path, seen):
            await seen.wait_until(lambda: len(seen) == 2)

    asyncio.run(play())
    assert sorted(seen) == [3, 4]
    assert [one.message for one in caplog.records if "gone" in one.message] == [
        "orders: 1..3 are gone (cap)"
    ]


@pytest.mark.parametrize("committed", [False, True], ids=["refused", "in doubt"])
def test_a_store_that_fails_loses_nothing_and_repeats_nothing(
    tmp_path: Path, committed: bool
) -> None:
    """The store fails the first batches, before its commit or after it."""
    seen = Seen()
    store: Any = store_at(tmp_path / "jobs")
    enqueue = store.enqueue
    failures = iter([True, True])

    async def failing(jobs: Any, **options: Any) -> Any:
        if options.get("cursor") is not None and next(failures, False):
            if committed:
                await enqueue(jobs, **options)
                raise OutcomeUnknown("the reply was lost")
            raise Unavailable("not now")
        return await enqueue(jobs, **options)

    store.enqueue = failing

    async def play() -> None:
        async with shop(tmp_path / "topics", seen, store) as app:
            await app.topic("orders").append(*({"id": n} for n in range(5)))
            await seen.wait_until(lambda: len(seen) >= 5)
            await app.topic("orders").append({"id": 5})
            await seen.wait_until(lambda: 5 in seen)

    asyncio.run(play())
    assert sorted(seen) == list(range(6))
