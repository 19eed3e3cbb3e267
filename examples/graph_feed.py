"""A feed of your own: the lines of a file, read on after a restart."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairway import Fairway, Graph
from fairway.errors import FeedLost
from fairway.graphs.feed import Event, FeedContext


class Entry(msgspec.Struct, frozen=True):
    id: int


# --8<-- [start:feed]
class Lines:
    """The declaration: what to read. It is opened each time the source is started."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, context: FeedContext) -> "OpenLines":
        return OpenLines(self.path, context)


class OpenLines:
    """A connection: one task uses it, from `connect` to `aclose`."""

    def __init__(self, path: Path, context: FeedContext) -> None:
        self.path = path
        self.context = context
        self.offset = 0

    async def connect(self, marks: dict[str, int]) -> None:
        """Begin after what the graph has consumed; nothing yet, if there are no marks."""
        self.offset = marks.get("file", 0)
        if not self.path.exists():
            raise FeedLost(f"there is no {self.path}")  # tried again, for ever

    async def receive(self) -> Sequence[Event]:
        """At least one event. Offsets rise; here, where the line ends in the file."""
        while True:
            lines = await self.context.in_thread(self.read)  # files block
            if lines:
                return lines
            await asyncio.sleep(0.05)

    async def commit(self, marks: dict[str, int]) -> None:
        """Consumed for good, up to here. A broker would be told; a file need not be."""

    async def aclose(self) -> None: ...

    def read(self) -> list[Event]:
        found: list[Event] = []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is still being written
                self.offset += len(line)
                found.append(Event(line, stream="file", offset=self.offset))
        return found


# --8<-- [end:feed]


def make(directory: Path, seen: list[int]) -> tuple[Fairway, Graph]:
    app = Fairway(directory / "data")
    entries = app.source("entries", Entry, feed=Lines(directory / "entries.jsonl"))
    graph = app.graph("entries_graph", when=entries, inputs="sequential", checkpoint=True)

    @graph.node
    def note(entries: Entry) -> int:
        seen.append(entries.id)
        return entries.id

    return app, graph


async def until(graph: Graph, number: int) -> None:
    """Wait for a firing."""
    reached = asyncio.Event()
    graph.listen(lambda firing: reached.set() if firing.number >= number else None)
    if graph.number < number:
        await asyncio.wait_for(reached.wait(), 20)
    await graph.settled()


async def main(directory: Path) -> None:
    path = directory / "entries.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n{"id": "three"}\n')
    seen: list[int] = []
    app, graph = make(directory, seen)
    async with app:
        await until(graph, 2)
        (letter,) = graph.dead_letters  # what does not decode is kept aside
        assert letter.data == {"entries": b'{"id": "three"}\n'}
    with path.open("a") as file:
        file.write('{"id": 4}\n')
    app, graph = make(directory, seen)
    async with app:
        await until(graph, 3)
    assert seen == [1, 2, 4], seen  # nothing twice


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
