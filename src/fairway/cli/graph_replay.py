"""`fairway graph replay`: run a graph over what was recorded, here, and compare what comes out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from fairway.cli.bulk import Unreadable, read_lines
from fairway.cli.output import Output, notice
from fairway.cli.remote import Remote, json_option, pass_remote
from fairway.graphs.firing import packed
from fairway.graphs.journal import decoded
from fairway.graphs.loading import graph_at
from fairway.graphs.replay import Given, compared, events_of, over_events, over_journal
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.wire.encoding import encode_shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from fairway.client.records import Record
    from fairway.graphs.graph import Graph
    from fairway.graphs.replay import Difference, Replayed

SHOWN_MAX = 20
"""Differences that are printed unless all are asked for."""
NOTICE_EVERY = 10_000
MS_NS = 1_000_000


class Differs(click.ClickException):
    """Something came out otherwise."""

    exit_code = 1


class _Options(NamedTuple):
    journal: str | None
    tenant: str | None
    topics: tuple[tuple[str, str], ...]
    first: int
    last: int | None
    file: Path | None


@click.command("replay")
@click.argument("reference", metavar="MODULE:GRAPH")
@click.option("--journal", metavar="NAME", help="Over the recorded firings of a graph that runs.")
@click.option("--tenant", help="Whose graph that is, if several have one of that name.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="[SOURCE=]TOPIC",
    help="Over the records of a topic, as what came to that source. May be repeated.",
)
@click.option("--from", "first", type=click.IntRange(0), default=0, help="After this seq.")
@click.option("--to", "last", type=click.IntRange(1), help="Up to this seq.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Over lines of JSON with source, data and perhaps at (seconds).",
)
@click.option("--against", metavar="MODULE:GRAPH", help="Compare with another version.")
@click.option("--all", "everything", is_flag=True, help="Print every difference.")
@click.option("--outputs", is_flag=True, help="Print the outputs of every firing.")
@json_option
@pass_remote
def replay(
    remote: Remote,
    /,
    reference: str,
    journal: str | None,
    tenant: str | None,
    topics: tuple[str, ...],
    first: int,
    last: int | None,
    file: Path | None,
    against: str | None,
    everything: bool,
    outputs: bool,
    as_json: bool,
) -> None:
    """Run a graph of this machine over what was recorded, at full speed; effects are not sent.

    \b
    fairway graph replay shop:pricing --journal pricing
    fairway graph replay shop:pricing --topic quotes --against old_shop:pricing
    fairway graph replay shop:pricing --file events.jsonl --outputs

    Over a journal (record=N keeps one) each firing is given what it was given then, and its
    outputs are compared with those that were recorded, byte for byte. With --against two versions
    are compared. Exits with 1 if anything came out otherwise.
    """
    if sum((journal is not None, bool(topics), file is not None)) != 1:
        raise click.UsageError("replay over one of --journal, --topic or --file")
    pairs = tuple(_pair(topic) for topic in topics)
    options = _Options(journal, tenant, pairs, first, last, file)
    graph = graph_at(reference)
    other = graph_at(against) if against is not None else None
    output = Output(json=as_json)
    show = _Shown(output, None if everything else SHOWN_MAX, outputs=outputs)
    replayed = _runs(remote, options)
    begin_ns = SYSTEM_CLOCK.now_ns()
    if other is None:
        asyncio.run(show.firings(replayed(graph)))
    else:
        asyncio.run(show.differences(compared(show.counted(replayed(graph)), replayed(other))))
    took_s = (SYSTEM_CLOCK.now_ns() - begin_ns) / 1e9
    pace = show.count / took_s if took_s else 0
    notice(
        f"{show.count:,} firings in {took_s:.1f} s ({pace:,.0f}/s): {show.verdict(other is None)}"
    )
    if show.differing or show.failed:
        raise Differs(f"{show.differing:,} differ, {show.failed:,} failed")


def _pair(text: str) -> tuple[str, str]:
    source, equals, topic = text.partition("=")
    return (source, topic) if equals else (text, text)


def _runs(remote: Remote, options: _Options) -> Callable[[Graph], AsyncIterator[Replayed]]:
    """From a graph to its firings over what the options name; read once for each version."""

    def run(graph: Graph) -> AsyncIterator[Replayed]:
        if options.journal is not None:
            return over_journal(graph, _journal(remote, options.journal, options.tenant))
        if options.file is not None:
            return over_events(graph, _lines(options.file))
        return over_events(graph, _records(remote, options))

    return run


async def _journal(remote: Remote, name: str, tenant: str | None) -> AsyncIterator[Any]:
    with remote.client() as client:
        for page in client.graphs.journal(name, tenant=tenant):
            for found in decoded(page.snapshot, page.entries):
                yield found


def _lines(file: Path) -> Iterator[Given]:
    try:
        lines = file.open("rb")
    except OSError as error:
        raise Unreadable(f"{file} cannot be read: {error.strerror}") from None
    with lines:
        yield from events_of(read_lines(lines, str(file)))


def _records(remote: Remote, options: _Options) -> Iterable[Given]:
    """The records of the topics, in the order of their times."""
    found: list[Given] = []
    with remote.client() as client:
        for source, name in options.topics:
            record: Record[Any]
            for record in client.topic(name).read(options.first):
                if options.last is not None and record.seq > options.last:
                    break
                data = msgspec.json.encode(record.data)
                found.append(Given(source, data, record.ts * MS_NS))
    found.sort(key=lambda given: given.at_ns)
    return found


class _Shown:
    """What is printed of it, and how much there was."""

    def __init__(self, output: Output, most: int | None, *, outputs: bool) -> None:
        self.count = 0
        self.compared = 0
        self.differing = 0
        self.failed = 0
        self._output = output
        self._most = most
        self._outputs = outputs

    async def counted(self, found: AsyncIterator[Replayed]) -> AsyncIterator[Replayed]:
        async for each in found:
            self.count += 1
            if self.count % NOTICE_EVERY == 0:
                notice(f"{self.count:,} firings …")
            yield each

    async def firings(self, found: AsyncIterator[Replayed]) -> None:
        async for each in self.counted(found):
            self.compared += each.same is not None
            if each.error is not None:
                self.failed += 1
                self._show(each.number, each.inputs, None, {"error": each.error}, self.failed)
            elif each.same is False:
                self.differing += 1
                before = msgspec.msgpack.decode(each.recorded or b"\x80")
                self._show(each.number, each.inputs, before, each.outputs, self.differing)
            elif self._outputs:
                self._output.message({"firing": each.number, "outputs": _as_json(each.outputs)})

    async def differences(self, found: AsyncIterator[Difference]) -> None:
        async for each in found:
            self.differing += 1
            self._show(each.number, each.inputs, each.before, each.after, self.differing)

    def verdict(self, against_record: bool) -> str:
        if self.differing or self.failed:
            return "not the same"
        if against_record and not self.compared:
            return "nothing was recorded to compare with"
        return "all the same"

    def _show(
        self,
        number: int,
        inputs: Mapping[str, Any],
        before: Any,
        after: Any,
        count: int,
    ) -> None:
        if self._most is not None and count > self._most:
            if count == self._most + 1:
                notice("more differ; --all prints every one")
            return
        self._output.message(
            {
                "firing": number,
                "inputs": _as_json(inputs),
                "before": _as_json(before),
                "after": _as_json(after),
            }
        )


def _as_json(value: Any) -> Any:
    """As JSON can show it: `nan` and `inf` as text."""
    if value is None:
        return None
    return msgspec.Raw(encode_shown(msgspec.msgpack.decode(packed(value))))
