"""Names and partition numbers: durable before they are used, and never used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import Corrupt, OutcomeUnknown
from fairway.kernel.catalog import CATALOG, Catalog, Named
from fairway.storage.log import Log
from fairway.storage.wal import Entry, Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KINDS = ("topic", "router", "other", "kind")


def on(wal: MemoryWal, step: Callable[[Catalog, Log], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with Log(wal) as log:
            catalog = Catalog(log)
            before = log.partitions()
            await catalog.load()
            assert log.partitions() == before, "whoever only looks changes nothing"
            await catalog.drop_unowned()
            found = {kind: names for kind in KINDS if (names := catalog.take(kind))}
            assert not any(map(catalog.take, KINDS)), "they are handed over once"
            return found, await step(catalog, log)

    return run(main, seed=1, quiet=True)


async def nothing(catalog: Catalog, log: Log) -> None:
    return None


def test_a_name_owns_its_partition_across_a_power_loss() -> None:
    wal = MemoryWal()

    async def create(catalog: Catalog, log: Log) -> list[int]:
        return [
            await catalog.create("topic", "a", b"1"),
            await catalog.create("topic", "b/c", b""),
            await catalog.create("other", "a", b"3"),
        ]

    found, numbers = on(wal, create)
    assert found == {}
    assert numbers == [1, 2, 3]
    found, _ = on(wal.crash(), nothing)
    assert found == {
        "topic": {"a": Named(1, b"1"), "b/c": Named(2, b"")},
        "other": {"a": Named(3, b"3")},
    }


def test_a_number_is_never_given_out_twice() -> None:
    wal = MemoryWal()

    async def create_and_remove(catalog: Catalog, log: Log) -> int:
        number = await catalog.create("topic", "a", b"")
        await catalog.remove(("topic", "a"))
        assert await catalog.get("topic", "a") is None
        return number

    numbers = []
    for _ in range(4):
        found, number = on(wal, create_and_remove)
        assert found == {}
        numbers.append(number)
        wal = wal.crash()
    assert numbers == [1, 2, 3, 4]


def test_a_value_is_replaced_and_several_names_go_together() -> None:
    wal = MemoryWal()

    async def change(catalog: Catalog, log: Log) -> None:
        number = await catalog.create("topic", "a", b"old")
        await catalog.put("topic", "a", b"new", partition=number)
        await catalog.put("router", "r", b"rule")
        await catalog.put("router", "s", b"rule")
        await catalog.remove(("router", "r"), ("router", "never"))

    on(wal, change)
    found, _ = on(wal.crash(), nothing)
    assert found == {"topic": {"a": Named(1, b"new")}, "router": {"s": Named(0, b"rule")}}


def test_rows_that_nobody_owns_are_removed() -> None:
    """A delete that a crash cut short: the name is gone, the rows are not."""
    wal = MemoryWal()

    async def orphan(catalog: Catalog, log: Log) -> None:
        number = await catalog.create("topic", "a", b"")
        await log.submit(number, Operation((Entry(1, b"x"),)))
        await catalog.remove(("topic", "a"))

    on(wal, orphan)
    survivor = wal.kill()

    async def look(catalog: Catalog, log: Log) -> list[int]:
        return log.partitions()

    found, partitions = on(survivor, look)
    assert found == {}
    assert partitions == [CATALOG]


def test_many_names() -> None:
    wal = MemoryWal()

    async def create(catalog: Catalog, log: Log) -> None:
        for number in range(2_500):
            await catalog.put("kind", f"{number:05}", b"%d" % number)

    on(wal, create)
    found, _ = on(wal.kill(), nothing)
    assert len(found["kind"]) == 2_500
    assert found["kind"]["01234"] == Named(0, b"1234")


def test_what_is_not_a_name_is_passed_over_and_damage_is_told() -> None:
    wal = MemoryWal()

    async def write(catalog: Catalog, log: Log) -> None:
        await log.submit(CATALOG, Operation(meta={"probe": b"1"}))

    on(wal, write)
    found, _ = on(wal.kill(), nothing)
    assert found == {}

    async def damage(catalog: Catalog, log: Log) -> None:
        await log.submit(CATALOG, Operation(meta={"topic/a": b"short"}))

    wal = MemoryWal()
    on(wal, damage)
    with pytest.raises(Corrupt, match="cut short"):
        on(wal.kill(), nothing)


def test_after_an_unknown_outcome_it_says_what_is_there() -> None:
    class Doubtful(MemoryWal):
        def write(self, group: Any, *, sync: bool) -> Any:
            super().write(group, sync=sync)
            raise RuntimeError("after it was written")

    async def create(catalog: Catalog, log: Log) -> None:
        with pytest.raises(OutcomeUnknown):
            await catalog.create("topic", "a", b"")
        assert await catalog.get("topic", "a") == Named(1, b"")
        assert await catalog.get("topic", "b") is None
        with pytest.raises(OutcomeUnknown):
            await catalog.create("topic", "b", b"")

    on(Doubtful(), create)
