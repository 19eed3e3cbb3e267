"""The journal of a graph on a store that fails: degraded after five, nothing told, nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairway import Fairway, FiringContext
from fairway.errors import Fenced, OutcomeUnknown, TryLater, WriteFailed
from fairway.graphs.health import CHECKPOINT, ReactorState
from fairway.runtime.clock import sleep_ns
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.errors import FairwayError
    from fairway.graphs.engine import Managed
    from fairway.storage.wal import Failures, Group, Tail

SECOND_NS = 1_000_000_000


class FailingWal(MemoryWal):
    """A store that fails in one way or another when it is told to."""

    how = ""
    """`refuse`: nothing is written. `doubt`: nobody knows. `written`: nobody knows, and it is."""
    failures = 0
    away = False
    """Nor can it be asked where its partitions end."""

    def tail(self, partition: int) -> Tail:
        if self.away:
            raise TryLater("the database does not answer")
        return super().tail(partition)

    def write(self, group: Group, *, sync: bool) -> Failures:
        if not self.how:
            return super().write(group, sync=sync)
        failed: dict[int, FairwayError] = {}
        if self.how == "written":
            super().write(group, sync=sync)
        for partition in group:
            self.failures += 1
            failed[partition] = {
                "refuse": WriteFailed("the disk says no"),
                "fence": Fenced("somebody else has it"),
            }.get(self.how, OutcomeUnknown("the disk says nothing"))
        return failed


def play(scene: Callable[[FailingWal, Fairway, Any, list[int]], Awaitable[None]]) -> None:
    async def main() -> None:
        wal = FailingWal()
        app = Fairway(wal, jobs="memory:", worker=None)
        seen: list[int] = []
        graph = app.graph("kept", when=app.source("n", int), inputs="sequential", checkpoint=True)

        @graph.node
        def note(n: int, firing: FiringContext) -> int:
            seen.append(n)
            firing.append("said", n)
            return n

        async with app:
            await scene(wal, app, graph, seen)

    run(main)


async def said(app: Fairway) -> list[int]:
    page = await app.topic("said", int).read(limit=1000)
    return [record.data for record in page.records]


@pytest.mark.parametrize("how", ["refuse", "doubt", "written"])
def test_a_store_that_fails_degrades_the_graph_after_five_and_it_recovers(how: str) -> None:
    async def scene(wal: FailingWal, app: Fairway, graph: Any, seen: list[int]) -> None:
        await graph.push("n", 1)
        await graph.settled()
        reactor = graph.running.reactor
        assert reactor.state is ReactorState.LIVE
        wal.how = how
        graph.push_nowait("n", 2)
        states = set()
        while reactor.state is not ReactorState.DEGRADED and how != "written":
            states.add((graph.running.journal._failures, reactor.state))
            await sleep_ns(10_000_000)
        if how != "written":  # then the first look finds it there
            assert {failures for failures, _ in states} == {0, 1, 2, 3, 4}
            assert graph.running.journal._failures == 5
            graph.push_nowait("n", 3)
            assert reactor.health.degraded(0) == (CHECKPOINT,)
            assert await said(app) == [1], "no effect of what is not recorded"
            assert len(graph.firings) == 1, "and nobody is told of it"
        wal.how = ""
        await graph.settled()
        assert reactor.state is ReactorState.LIVE
        await graph.push("n", 4)
        await graph.settled()
        expected = [1, 2, 4] if how == "written" else [1, 2, 3, 4]
        assert seen == expected
        assert await said(app) == expected

    play(scene)


@pytest.mark.parametrize("how", ["doubt", "written"])
def test_a_record_in_doubt_is_looked_up_before_it_is_written_again(how: str) -> None:
    """The store goes down in a commit, and cannot be asked until it is back."""

    async def scene(wal: FailingWal, app: Fairway, graph: Any, seen: list[int]) -> None:
        await graph.push("n", 1)
        await graph.settled()
        wal.how, wal.away = how, True
        graph.push_nowait("n", 2)
        while not wal.failures:
            await sleep_ns(10_000_000)
        wal.how = ""
        await sleep_ns(20 * SECOND_NS)
        assert await said(app) == [1], "no effect of what may not be recorded"
        wal.away = False
        await graph.settled()
        assert app.graphs.get("kept").failed is None
        await graph.push("n", 3)
        await graph.settled()
        assert await said(app) == seen == [1, 2, 3]

    play(scene)


def test_whoever_lost_the_store_fires_no_more() -> None:
    async def scene(wal: FailingWal, app: Fairway, graph: Any, seen: list[int]) -> None:
        wal.how = "fence"
        with pytest.raises(OutcomeUnknown):
            await graph.push("n", 1)
        managed: Managed = app.graphs.get("kept")
        while managed.failed is None:
            await sleep_ns(SECOND_NS)
        assert "somebody else has it" in managed.failed
        assert await said(app) == [] if app.topics.find("said") is not None else True
        wal.how = ""

    play(scene)
