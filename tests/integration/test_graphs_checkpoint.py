"""What a graph finds again after a restart, on a real log: values, states, pushes, positions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Closing, Fairway, FiringContext, Graph, Source, all_, any_
from fairway.errors import InvalidRequest
from fairway.graphs import journal as journal_module
from fairway.graphs.feed import Event
from tests.support.server import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from fairway.graphs.feed import FeedContext, Marks


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


@pytest.mark.parametrize("source", ["a", "past"])
def test_a_value_without_an_upgrade_fails_its_graph_and_no_other(
    source: str, tmp_path: Path
) -> None:
    """The newest value of a source, or one of a state."""
    before, _ = versions(new=False)

    async def first(app: Fairway) -> None:
        await before.push("a", Old(1.0))
        await before.push("b", 1)
        await before.settled()

    live(tmp_path, first, before)

    async def main() -> None:
        app = Fairway(tmp_path)
        upgrades = {name: {1: to_cents} if name != source else {} for name in ("a", "past")}
        a, b = app.source("a", New, version=2, upgrades=upgrades["a"]), app.source("b", int)
        past = app.source("past", New, keep=5, version=2, upgrades=upgrades["past"])
        broken = app.graph("versions", when=all_(a, b), uses=[past], checkpoint=True)
        other = app.graph("other", when=any_(b))

        @broken.node
        def see(a: New, b: int, past: list[New] | None = None) -> None: ...

        @other.node
        def echo(b: int) -> int:
            return b

        async with app:
            firing = await other.ask(b, 7)
            assert firing is not None
            assert firing.output == 7
            managed = app.graphs.get("versions")
            assert managed.state == "failed"
            with pytest.raises(Closing, match=f"source {source!r}: a value of version 1 is kept"):
                await broken.push(a, New(1))

    asyncio.run(main())


def test_a_waiting_push_without_an_upgrade_is_a_dead_letter(tmp_path: Path) -> None:
    before, _ = versions(new=False)

    async def first(app: Fairway) -> None:
        await before.push("a", Old(1.0))  # waits for b, over the restart

    seen: list[tuple[New, int]] = []
    a, b = Source("a", New, version=2), Source("b", int)
    after = Graph("versions", when=all_(a, b), checkpoint=True)

    def see(a: New, b: int) -> None:
        seen.append((a, b))

    after.add(see)

    async def second(app: Fairway) -> None:
        (letter,) = after.dead_letters
        assert (letter.source, msgspec.msgpack.decode(letter.data["a"])) == ("a", {"price": 1.0})
        assert "a value of version 1 is kept" in letter.reason
        await after.push("a", New(1))
        await after.push("b", 2)
        await after.settled()

    live(tmp_path, first, before)
    live(tmp_path, second, after)
    assert seen == [(New(1), 2)]


def test_a_source_that_is_declared_again_finds_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a snapshot that was taken while it was not declared."""
    monkeypatch.setattr(journal_module, "SNAPSHOT_RECORDS", 2)

    def made(*names: str) -> Graph:
        graph = Graph("g", when=any_(*(Source(name, int) for name in names)), checkpoint=True)

        def see(a: int) -> None: ...

        graph.add(see)
        return graph

    def pushing(graph: Graph, source: str, *values: int) -> Callable[[Fairway], Awaitable[None]]:
        async def play(app: Fairway) -> None:
            for value in values:
                await graph.push(source, value)
            await graph.settled()

        return play

    both, one, again = made("a", "b"), made("a"), made("a", "b")

    async def look(app: Fairway) -> None:
        assert again.running.reactor.inputs.cache == {"a": 9, "b": 2}

    live(tmp_path, pushing(both, "b", 1, 2), both)
    live(tmp_path, pushing(one, "a", *range(10)), one)
    live(tmp_path, look, again)


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


@pytest.mark.parametrize("life", [1, 2])
def test_a_key_that_no_journal_holds_refuses_its_push_and_nothing_else(
    tmp_path: Path, life: int
) -> None:
    """A key as long as a UUID is one that it holds; across a restart too."""
    seen: list[int] = []
    keys = {1: "\ud800", 2: "x" * 1_000_000}

    def graph() -> Graph:
        name = Source("n", int, dedupe=lambda n: keys.get(n, n % 3 + 2**100))
        made = Graph("keyed", when=name, inputs="sequential", checkpoint=True)

        @made.node
        def see(n: int) -> None:
            seen.append(n)

        return made

    for _ in range(life):
        made = graph()

        async def play(app: Fairway, made: Graph = made) -> None:
            for number in (1, 2):
                with pytest.raises(InvalidRequest, match="dedupe"):
                    await made.push("n", number)
            for number in (3, 6, 4, 7):
                await made.push("n", number)
            await made.settled()
            assert app.graphs.get("keyed").state == "live"

        live(tmp_path, play, made)
    assert seen == [3, 4]


class Bringing:
    """A feed that brings events once, and then nothing."""

    def __init__(self, *events: Event) -> None:
        self.events = events

    def open(self, context: FeedContext) -> Bringing:
        return self

    async def connect(self, marks: Marks) -> None:
        self.left = [event for event in self.events if event.stream not in marks]

    async def receive(self) -> Sequence[Event]:
        if not self.left:
            await asyncio.get_running_loop().create_future()
        left, self.left = self.left, []
        return left

    async def commit(self, marks: Marks) -> None: ...

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tag": tag} for tag in (5, 1.5, True, b"t", ["t"], "\ud800", "t" * 257)),
        *({"who": who} for who in (5, None, b"w", {1})),
        *({"stream": stream} for stream in (5, None, b"s", "\ud800")),
        *({"offset": offset} for offset in (1.5, True, 2**70, "1", None)),
    ],
    ids=repr,
)
def test_what_a_journal_could_not_read_again_is_refused_and_the_graph_lives_on(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    """Its type is that of a field which the encoder does not look at, and the decoder does."""
    seen: list[int] = []

    def graph() -> Graph:
        events = [Event(2, "good", 1)]
        if wrong.keys() & {"stream", "offset"}:
            events.insert(0, Event(1, **{"stream": "bad", "offset": 1, **wrong}))
        n = Source("n", int, feed=Bringing(*events))
        made = Graph("g", when=n, inputs="sequential", checkpoint=True, on_error="dead_letter")

        @made.node
        def see(n: int, firing: FiringContext) -> None:
            if n == 3 and "tag" in wrong:
                firing.append("t", n, tag=wrong["tag"])
            seen.append(n)

        return made

    for life in range(2):
        made = graph()

        async def play(app: Fairway, made: Graph = made, life: int = life) -> None:
            await made.push("n", 3)
            if "who" in wrong:
                for command in (made.pause, made.resume):
                    with pytest.raises(InvalidRequest, match="who gives a command"):
                        await command(wrong["who"])
            letters = 0 if "who" in wrong else life + 1
            await until(lambda: 2 in seen and len(made.dead_letters) == letters)
            await made.settled()
            assert app.graphs.get("g").state == "live"
            assert not app.graphs.get("g").recoveries

        live(tmp_path, play, made)
    assert sorted(seen) == [2, *([] if "tag" in wrong else [3, 3])]
