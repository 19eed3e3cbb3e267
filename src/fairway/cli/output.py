"""How commands show things: tables for people, tabs for pipes, JSON for programs.

What is shown was written by others: no control character of theirs reaches a terminal.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairway.client import Record, Tombstone
    from fairway.errors import BadRecord


class Output:
    """Standard output, as what it is: a terminal, a pipe, or a program that asked for JSON."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
        self.rich = self.console.is_terminal and not json

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under headings; in a pipe, tabs between the fields and no headings."""
        if not self.rich:
            for row in rows:
                click.echo("\t".join(printable(str(field)) for field in row))
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            numeric = column in NUMERIC
            table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric)
        for row in rows:
            table.add_row(*(Text(_grouped(field)) for field in row))
        self.console.print(table)

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Names and values."""
        if not self.rich:
            for name, value in pairs:
                click.echo(f"{name}\t{printable(str(value))}")
            return
        self.console.print(self.grid(pairs))

    def grid(self, pairs: Iterable[tuple[str, object]]) -> Table:
        grid = Table.grid(padding=(0, 2))
        for name, value in pairs:
            grid.add_row(Text(name, style="bold"), Text(_grouped(value)))
        return grid

    def message(self, message: object) -> None:
        """One message as one line of JSON."""
        click.echo(msgspec.json.encode(message))

    def done(self, text: str, reply: object) -> None:
        """What a command did: a sentence, or the server's reply."""
        if self.json:
            self.message(reply)
        else:
            click.echo(text)

    def record(self, record: Record[msgspec.Raw]) -> None:
        if self.json:
            self.message(record_facts(record))
            return
        data, tag = bytes(record.data).decode(), record.tag or "-"
        if not self.rich:
            fields = (str(record.seq), moment(record.ts) or "-", printable(tag), printable(data))
            click.echo("\t".join(fields))
            return
        line = Text()
        line.append(f"{record.seq:>8}", style="cyan")
        when = datetime.fromtimestamp(record.ts / 1000, UTC).astimezone()
        line.append(f"  {when:%H:%M:%S}.{record.ts % 1000:03}", style="dim")
        line.append(f"  {printable(tag)}", style="magenta" if record.tag else "dim")
        line.append(f"  {printable(data)}")
        self.console.print(line)

    def bad_record(self, bad: BadRecord) -> None:
        """It is there, so it is told in its place."""
        if self.json:
            self.message({"bad": bad_facts(bad)})
        else:
            self._aside(f"record {bad.seq} cannot be read: {printable(bad.reason)}")

    def tombstone(self, gone: Tombstone) -> None:
        """Never passed over: what is missing is shown in the place where it is missing."""
        if self.json:
            self.message({"tombstone": gone})
            return
        if gone.reason == "recreated":
            text = f"{gone.topic} was deleted and made anew: seqs begin again"
        else:
            text = f"records {gone.gap_from}..{gone.gap_to} are gone: {gone.reason}"
        self._aside(text)

    def _aside(self, text: str) -> None:
        if self.rich:
            self.console.print(Text(f"-- {text} --", style="bold red"))
        else:
            click.echo(f"# {text}")


NUMERIC = {
    *("RECORDS", "BYTES", "HEAD", "EARLIEST", "PRIORITY", "CURSOR", "LAG", "FORWARDED"),
    *("ID", "ATTEMPTS", "READY", "SCHEDULED", "WAITING", "BLOCKED", "RUNNING"),
}


def record_facts(record: Record[msgspec.Raw]) -> dict[str, Any]:
    """A record as the server spells it."""
    facts = {
        "$seq": record.seq,
        "$ts": record.ts,
        "$node": record.node,
        "$tag": record.tag,
        "data": record.data,
        "meta": record.meta,
    }
    return {name: value for name, value in facts.items() if value is not None}


def bad_facts(bad: BadRecord) -> dict[str, Any]:
    """What can be told of a record that cannot be read."""
    return {"$seq": bad.seq, "data": msgspec.Raw(bad.data), "reason": bad.reason}


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def moment(ts_ms: int | None) -> str | None:
    """A date in UTC, to the millisecond."""
    if ts_ms is None:
        return None
    stamp = datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")


def notice(text: str) -> None:
    """Something about the command rather than its result: on standard error."""
    click.echo(text, err=True)


def _grouped(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))
