"""Graphs by name, and a folder of them on virtual time: what comes, changes, breaks and leaves."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import InvalidConfig
from fairway.graphs.engine import Graphs
from fairway.graphs.loading import Folder, graph_at
from fairway.runtime.blocking import BlockingPool
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

DECLARED = """
from fairway.graphs.graph import Graph
from fairway.graphs.source import Source

{name} = Graph("{graph}", when=Source("numbers", int), tenant="{tenant}")

@{name}.node
def times(numbers: int) -> int:
    return numbers * {factor}
"""


def declared(graph: str, factor: int = 1, *, name: str = "made", tenant: str = "") -> str:
    return DECLARED.format(name=name, graph=graph, factor=factor, tenant=tenant)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> Iterator[None]:
    before = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(before[0]):
        del sys.modules[name]
    sys.path[:] = before[1]


# By name


def test_a_graph_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shelf.py").write_text(declared("one") + "class Holder:\n    inner = made\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = graph_at("shelf:made")
    assert (found.name, found.call(numbers=3)) == ("one", {"times": 3})
    assert graph_at("shelf:made") is found
    assert graph_at("shelf:Holder.inner") is found


def test_a_module_is_imported_anew_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "moving.py").write_text(declared("one", 2))
    assert graph_at("moving:made").call(numbers=3) == {"times": 6}
    (tmp_path / "moving.py").write_text(declared("one", 30))
    assert graph_at("moving:made").call(numbers=3) == {"times": 6}
    assert graph_at("moving:made", True).call(numbers=3) == {"times": 90}
    (tmp_path / "moving.py").write_text("1 /")
    with pytest.raises(InvalidConfig, match="SyntaxError"):
        graph_at("moving:made", True)
    assert graph_at("moving:made").call(numbers=3) == {"times": 90}, "the module is as it was"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("shelf", "as module:graph"),
        (":made", "as module:graph"),
        ("shelf:", "as module:graph"),
        ("no_such_place:made", "there is no module 'no_such_place'"),
        ("no_such_place.inner:made", "there is no module 'no_such_place'"),
        ("shelf:other", "has no 'other'; its graphs: made"),
        ("shelf:times", "is a function, not a Graph"),
        ("broken:made", "ZeroDivisionError: division by zero (broken.py, line 1)"),
        ("strict:made", "InvalidConfig: source 'a b': parameters are named after sources"),
        ("strict:made", "(strict.py, line 2)"),
        ("needy:made", "cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("leaves:made", "cannot be imported: SystemExit"),
        ("closes:made", "cannot be imported: GeneratorExit"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, said: str
) -> None:
    (tmp_path / "shelf.py").write_text(declared("one"))
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "strict.py").write_text("from fairway import Source\nSource('a b', int)")
    (tmp_path / "needy.py").write_text("import not_there")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    (tmp_path / "closes.py").write_text("raise GeneratorExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidConfig) as wrong:
        graph_at(reference)
    assert said in str(wrong.value)


# A folder


class Watched:
    """A folder that is looked at once a virtual second."""

    def __init__(self, path: Path, graphs: Graphs, folder: Folder) -> None:
        self.path = path
        self.graphs = graphs
        self.folder = folder

    def write(self, file: str, text: str) -> None:
        (self.path / file).write_text(text)

    @property
    def names(self) -> list[str]:
        return [managed.graph.name for managed in self.graphs]

    async def looks(self, count: int = 2) -> None:
        """So many looks later. A change is taken at the second look."""
        await asyncio.sleep(count + 0.5)

    async def result(self, graph: str, number: int) -> Any:
        found = self.graphs.get(graph).graph
        firing = await found.ask("numbers", number)
        assert firing is not None
        return firing.output


def watching(path: Path, scenario: Callable[[Watched], Awaitable[None]]) -> None:
    async def watch() -> None:
        async with Graphs() as graphs, BlockingPool(1) as pool, asyncio.TaskGroup() as group:
            folder = Folder(graphs, path, pool=pool)
            await folder.look(at_once=True)
            running = group.create_task(folder.run())
            await asyncio.sleep(0.25)
            await scenario(Watched(path, graphs, folder))
            running.cancel()

    run(watch)


def test_files_come_change_and_leave(tmp_path: Path) -> None:
    (tmp_path / "first_file.py").write_text(declared("first", 2))

    async def scenario(watched: Watched) -> None:
        assert watched.names == ["first"], "what is there at the start runs at once"
        assert await watched.result("first", 4) == 8
        watched.write("second_file.py", declared("second") + declared("third", name="more"))
        await watched.looks()
        assert watched.names == ["first", "second", "third"]
        untouched = watched.graphs.get("second")
        watched.write("first_file.py", declared("first", 5))
        await watched.looks()
        assert await watched.result("first", 4) == 20
        assert watched.graphs.get("second") is untouched
        (tmp_path / "second_file.py").unlink()
        await watched.looks(1)
        assert watched.names == ["first"]
        assert not watched.folder.problems

    watching(tmp_path, scenario)


def test_a_file_that_breaks_leaves_what_runs_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "steady.py").write_text(declared("steady", 2))
    (tmp_path / "shaky.py").write_text(declared("shaky", 2))

    async def scenario(watched: Watched) -> None:
        for text, said in (
            ("def (", "SyntaxError"),
            ("import not_there", "ModuleNotFoundError"),
            (declared("shaky").replace("def times", "def numbers"), "has the name of a source"),
            (declared("steady"), "is loaded already, from elsewhere"),
            (declared("shaky") + declared("shaky", name="twin"), "is loaded already"),
        ):
            running = watched.graphs.get("shaky").instance
            watched.write("shaky.py", text)
            await watched.looks(5)
            assert said in watched.folder.problems["shaky.py"]
            assert watched.graphs.get("shaky").instance is running
            assert await watched.result("shaky", 3) == 6
        assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 5
        watched.write("shaky.py", declared("shaky", 7))
        await watched.looks()
        assert watched.folder.problems == {}
        assert await watched.result("shaky", 3) == 21

    watching(tmp_path, scenario)


def test_a_file_that_is_being_written_is_not_taken_before_it_rests(tmp_path: Path) -> None:
    (tmp_path / "growing.py").write_text(declared("growing", 2))

    async def scenario(watched: Watched) -> None:
        running = watched.graphs.get("growing").instance
        for at in range(5):  # emptied, then longer at every look
            watched.write("growing.py", "#" * at)
            await asyncio.sleep(1)
            assert watched.graphs.get("growing").instance is running
        watched.write("growing.py", declared("growing", 3))
        await watched.looks()
        assert await watched.result("growing", 2) == 6

    watching(tmp_path, scenario)


def test_a_folder_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "graphs"
    folder.mkdir()
    (folder / "lasting.py").write_text(declared("lasting"))

    async def scenario(watched: Watched) -> None:
        folder.rename(tmp_path / "away")
        await watched.looks()
        assert "cannot be read" in watched.folder.problems[str(folder)]
        assert watched.names == ["lasting"]
        (tmp_path / "away").rename(folder)
        await watched.looks()
        assert not watched.folder.problems

    watching(folder, scenario)


def test_only_modules_are_taken_and_no_other_is_hidden(tmp_path: Path) -> None:
    for file in ("_private.py", ".hidden.py", "notes.txt"):
        (tmp_path / file).write_text(declared("no"))
    (tmp_path / "json.py").write_text(declared("json"))
    (tmp_path / "antigravity.py").write_text(declared("anti"))
    (tmp_path / "two-words.py").write_text(declared("words"))

    async def scenario(watched: Watched) -> None:
        assert watched.names == []
        assert watched.folder.problems.keys() == {"json.py", "antigravity.py", "two-words.py"}
        assert "rename json.py" in watched.folder.problems["json.py"]
        assert hasattr(sys.modules["json"], "dumps")
        assert "antigravity" not in sys.modules

    watching(tmp_path, scenario)


def test_files_can_import_each_other_and_tenants_share_names(tmp_path: Path) -> None:
    (tmp_path / "a_user.py").write_text(
        "from z_shared import FACTOR\n"
        + declared("same", 1, tenant="acme").replace("* 1", "* FACTOR")
    )
    (tmp_path / "z_shared.py").write_text("FACTOR = 4\n" + declared("same", 1, tenant="globex"))

    async def scenario(watched: Watched) -> None:
        assert [managed.key for managed in watched.graphs] == [("acme", "same"), ("globex", "same")]
        assert not watched.folder.problems
        graph = watched.graphs.get("same", "acme").graph
        firing = await graph.ask("numbers", 2)
        assert firing is not None
        assert firing.output == 8

    watching(tmp_path, scenario)


def test_what_a_command_unloaded_stays_away_until_its_file_changes(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(declared("moody", 2))

    async def scenario(watched: Watched) -> None:
        await watched.graphs.unload("moody")
        await watched.looks(3)
        assert watched.names == []
        watched.write("moody.py", declared("moody", 3))
        await watched.looks()
        assert await watched.result("moody", 2) == 6

    watching(tmp_path, scenario)
