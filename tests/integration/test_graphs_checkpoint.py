"""What a graph finds again after a restart, on a real log: values, states, pushes, positions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Closing, Fairway, FiringContext, Graph, Source, all_, any_
from fairway.graphs import journal as journal_module

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class Old(msgspec.Struct, frozen=True):
    price: float


class New(msgspec.Struct, frozen=True):
    cents: int


def live(place: Path, play: Callable[[Fairway], Awaitable[None]], *graphs: Graph) -> None:
    async def main() -> None:
        app = Fairway(place)
        async with app:
            for graph in graphs:
                await app.graphs.load(graph)
            await play(app)

    asyncio.run(main())


def to_cents(plain: Any) -> Any:
    return {"cents": round(plain["price"] * 100)}


def versions(new: bool) -> tuple[Graph, list[Any]]:
    seen: list[Any] = []
    kind: Any = New if new else Old
    options: dict[str, Any] = {"version": 2, "upgrades": {1: to_cents}} if new else {}
    a = Source("a", kind, **options)
    b = Source("b", int)
    past = Source("past", kind, keep=5, **options)
    graph = Graph("versions", when=all_(a, b), uses=[past], checkpoint=True)

    def see(firing: FiringContext, a: Any, b: int, past: Any = None) -> None:
        seen.append((a, b, past))
        firing.put("past", a)

    graph.add(see)
    return graph, seen


def test_values_states_and_pushes_of_an_older_version_are_upgraded(tmp_path: Path) -> None:
    before, _ = versions(new=False)

    async def first(app: Fairway) -> None:
        await before.push("a", Old(1.0))
        await before.push("b", 1)
        await before.push("a", Old(2.5))  # waits for b, over the restart
        await before.settled()

    after, seen = versions(new=True)

    async def second(app: Fairway) -> None:
        assert after.running.reactor.inputs.cache["b"] == 1
        await after.push("b", 2)
        await after.settled()

    live(tmp_path, first, before)
    live(tmp_path, second, after)
    assert seen == [(New(250), 2, [New(100)])]


def test_a_value_without_an_upgrade_fails_its_graph_and_no_other(tmp_path: Path) -> None:
    before, _ = versions(new=False)

    async def first(app: Fairway) -> None:
        await before.push("a", Old(1.0))
        await before.push("b", 1)
        await before.settled()

    live(tmp_path, first, before)

    async def main() -> None:
        app = Fairway(tmp_path)
        a, b = app.source("a", New, version=2), app.source("b", int)
        broken = app.graph("versions", when=all_(a, b), checkpoint=True)
        other = app.graph("other", when=any_(b))

        @broken.node
        def see(a: New, b: int) -> None: ...

        @other.node
        def echo(b: int) -> int:
            return b

        async with app:
            firing = await other.ask(b, 7)
            assert firing is not None
            assert firing.output == 7
            managed = app.graphs.get("versions")
            assert managed.state == "failed"
            with pytest.raises(Closing, match="source 'a': a value of version 1 is kept"):
                await broken.push(a, New(1))

    asyncio.run(main())


def test_a_graph_that_was_forgotten_begins_anew_and_its_effects_happen(tmp_path: Path) -> None:
    """What its destinations know of the former one does not make them repeats."""

    def made() -> Graph:
        graph = Graph("again", when=Source("n", int), checkpoint=True)

        def say(n: int, firing: FiringContext) -> None:
            firing.append("said", n)

        graph.add(say)
        return graph

    async def main() -> None:
        app = Fairway(tmp_path)
        said = app.topic("said", int)
        async with app:
            for life in range(2):
                graph = made()
                await app.graphs.load(graph)
                for n in range(3):
                    await graph.push("n", life * 10 + n)
                await graph.settled()
                assert graph.running.reactor.number == 3
                await app.graphs.unload("again", forget=True)
            page = await said.read()
            assert [record.data for record in page.records] == [0, 1, 2, 10, 11, 12]

    asyncio.run(main())


def test_snapshots_let_go_of_what_they_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SNAPSHOT_RECORDS", 50)

    def made() -> Graph:
        graph = Graph(
            "long", when=Source("n", int), uses=[Source("sum", int, keep=1)], checkpoint=True
        )

        def add(n: int, firing: FiringContext, sum: list[int] | None = None) -> None:
            firing.put("sum", n + (sum[-1] if sum else 0))

        graph.add(add)
        return graph

    graph = made()

    async def first(app: Fairway) -> None:
        for n in range(500):
            await graph.push("n", n)
        await graph.settled()
        partition = app.graphs.get("long").partition
        assert partition is not None
        entries = await app.log.read(partition)
        assert len(entries) <= 51, "the rest is in the snapshot"

    again = made()

    async def second(app: Fairway) -> None:
        assert again.running.reactor.number == 500
        await again.push("n", 0)
        await again.settled()
        assert again.firings[-1].inputs["sum"] == [sum(range(500))]

    live(tmp_path, first, graph)
    live(tmp_path, second, again)


def test_pause_outlives_a_restart_and_what_was_pushed_meanwhile_fires_on_resume(
    tmp_path: Path,
) -> None:
    def made() -> tuple[Graph, list[int]]:
        seen: list[int] = []
        graph = Graph("paused", when=Source("n", int), inputs="sequential", checkpoint=True)

        def see(n: int) -> None:
            seen.append(n)

        graph.add(see)
        return graph, seen

    graph, before = made()

    async def first(app: Fairway) -> None:
        await graph.pause()
        for n in range(5):
            await graph.push("n", n)

    again, after = made()

    async def second(app: Fairway) -> None:
        assert again.running.reactor.paused
        assert not after
        await again.resume()
        await again.settled()

    live(tmp_path, first, graph)
    live(tmp_path, second, again)
    assert not before
    assert after == [0, 1, 2, 3, 4]
