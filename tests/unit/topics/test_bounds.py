"""Bounds of owners: asked by whatever takes something, and a refusal has taken nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairway.errors import Throttled
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics.bounds import UNBOUNDED, OwnerBounds
from fairway.wire.topics import RouterConfig
from tests.support.topics import new, topics_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.topics.topic import Topic


class Book(OwnerBounds):
    """Ann may have one topic, bytes as long as she is not `full`, and copies as she likes."""

    stored = frozenset({"ann"})

    def __init__(self) -> None:
        self.full = False
        self.copied: list[tuple[str, int]] = []

    def may_make(self, owner: str) -> None:
        if owner == "bob":
            raise Throttled("no topics for bob", retry_after_ns=1)

    def may_store(self, topic: Topic, size: int) -> None:
        assert topic.owner == "ann", "others are not asked about"
        assert size > 0
        if self.full:
            raise Throttled("no room for ann", retry_after_ns=1)

    def may_copy(self, owner: str, records: int, size: int) -> Callable[[], None] | None:
        return lambda: self.copied.append((owner, records))


def test_what_owners_may_use_is_asked_where_it_is_taken() -> None:
    async def main() -> None:
        async with topics_on(MemoryWal()) as topics:
            assert topics.bounds is UNBOUNDED
            before, _ = await topics.create("before", owner="bob")
            book = Book()
            topics.bound_by(book)
            with pytest.raises(Throttled, match="no topics for bob"):
                await topics.create("more", owner="bob")
            with pytest.raises(Throttled, match="no topics for bob"):
                await topics.append("more", new("a"), owner="bob")
            assert topics.find("more") is None
            hers, _ = await topics.create("hers", owner="ann")
            await topics.append("hers", new("a"))
            book.full = True
            with pytest.raises(Throttled, match="no room for ann"):
                await topics.append("hers", new("b"))
            await topics.append("before", new("a"))
            assert (hers.head, before.head) == (1, 1)
            book.full = False
            router = RouterConfig(source="before", dest="hers")
            await topics.put_router("r", router, owner="ann")
            await topics.append("before", new("b", "c"))
            await asyncio.sleep(1)
            assert hers.head == 3
            assert book.copied == [("ann", 2)]

    run(main, seed=1, quiet=True, limit_ns=10**13)
