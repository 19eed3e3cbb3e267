"""Bulk append of lines: what a line means, how progress shows, how a failed run is gone on with.

A run has one key; each of its appends is known by it and by the number of lines before it. So the
command that a failure suggests stores nothing twice, even if the last append had arrived.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from io import SEEK_END
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fairway.cli.remote import Interrupted, explained
from fairway.errors import FairwayError, OutcomeUnknown
from fairway.wire.records import too_deep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairway.client import Progress as BulkProgress
    from fairway.client import TopicHandle

_VALUE = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
LINE_BYTES_MAX = 2 * 1024 * 1024
"""More than any record may have: a line without end is not read into memory whole."""
STANDARD_INPUT = "standard input"


class BadLine(Exception):
    """A line that is no record."""


class Unreadable(click.ClickException):
    """A file, or standard input, that failed while it was read."""


def parse_data(text: str) -> Any:
    """A value from the command line: JSON, or text if it does not begin like JSON."""
    try:
        return msgspec.Raw(_json(os.fsencode(text)))
    except msgspec.DecodeError as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise click.BadParameter(f"{error}; --text takes it as it is") from None
        return text


def parse_object(text: str, what: str) -> dict[str, msgspec.Raw]:
    """A JSON object from the command line; `what` says of which argument that is expected."""
    try:
        return _OBJECT.decode(_json(os.fsencode(text)))
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{what}: {error}") from None


def values_of(lines: Iterable[bytes], *, skip: int, text: bool) -> Iterator[Any]:
    """The values of lines that are not blank, without the first `skip` of them."""
    for number, line in enumerate(lines, 1):
        line = line.strip(b"\r\n") if text else line.strip()
        if not line:
            continue
        if skip:
            skip -= 1
            continue
        try:
            if len(line) > LINE_BYTES_MAX:
                raise BadLine(f"it has more than {LINE_BYTES_MAX:,} bytes")
            yield line.decode() if text else msgspec.Raw(_json(line))
        except (BadLine, UnicodeDecodeError, msgspec.DecodeError) as error:
            raise BadLine(f"line {number} is no {'text' if text else 'JSON'}: {error}") from None


def standard_input() -> Any:
    """Standard input as bytes; `click.UsageError` if there is none, as after `<&-`."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: there is nothing to read")
    return sys.stdin.buffer


def read_lines(stream: Any, name: str, *, bytes_max: int = -1) -> Iterator[bytes]:
    """The lines of `stream`, none longer than `bytes_max`. `Unreadable` names it if it fails."""
    while True:
        try:
            line = stream.readline(bytes_max)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror}") from None
        if not line:
            return
        yield line


def append_lines(
    topic: TopicHandle[Any],
    stream: Any,
    *,
    url: str,
    source: str | None,
    key: str | None,
    skip: int,
    text: bool,
    **options: Any,
) -> BulkProgress:
    """Append every line of `stream`.

    `url` says where the server is and `source` names the file, for the command that goes on.
    """
    size = _size(stream) if source is not None else None
    key = key if key is not None else secrets.token_hex(8)
    words = _words(url, topic.name, source, key, text=text, **options)
    done = 0

    def show(progress: BulkProgress) -> None:
        nonlocal done
        done = progress.records
        bar.update(shown, lines=f"{done:,}")

    bar = _bar(size)
    with bar:
        shown = bar.add_task(topic.name, total=size, lines="0")
        name = source if source is not None else STANDARD_INPUT
        read = read_lines(stream, name, bytes_max=LINE_BYTES_MAX + 1)
        lines = _counted(read, bar, shown)
        values = values_of(lines, skip=skip, text=text)
        try:
            return topic.append_many(values, key=key, start=skip, on_progress=show, **options)
        except KeyboardInterrupt:
            bar.stop()
            raise Interrupted(f"interrupted; {_rest(words, skip + done)}") from None
        except (BadLine, Unreadable, FairwayError) as error:
            bar.stop()
            reason = explained(error) if isinstance(error, FairwayError) else str(error)
            if isinstance(error, OutcomeUnknown):
                reason += " (the lines after those may be stored too; the key below tells)"
            rest = _rest(words, skip + done)
            raise click.ClickException(f"{reason}; {rest}") from None


def _rest(words: list[str], done: int) -> str:
    command = shlex.join([*words, "--skip", str(done)])
    return f"{done:,} lines were acknowledged; go on with: {command}"


def _words(url: str, topic: str, source: str | None, key: str, **options: Any) -> list[str]:
    """The command that appends the same lines in the same batches."""
    # It is pasted into any shell, so it does not count on that one's FAIRWAY_URL.
    words = ["fairway", "topic", "--url", url, "append", topic]
    words += ["--file", source] if source is not None else ["-"]
    for name, value in options.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return [*words, "--key", key]


def _size(stream: Any) -> int | None:
    """The length of a file; None of a pipe, whatever its name."""
    try:
        end: int = stream.seek(0, SEEK_END)
        stream.seek(0)
    except (OSError, ValueError):
        return None
    return end


def _bar(size: int | None) -> Progress:
    console = Console(stderr=True)
    columns: list[Any] = [
        TextColumn("{task.description}"),
        TextColumn("{task.fields[lines]} lines"),
    ]
    if size is not None:
        columns[1:1] = [BarColumn(), TaskProgressColumn()]
    columns.append(TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _counted(lines: Iterable[bytes], bar: Progress, shown: Any) -> Iterator[bytes]:
    for line in lines:
        bar.advance(shown, len(line))
        yield line


def _json(text: bytes) -> bytes:
    """`text` if it is one JSON value in UTF-8; `msgspec.DecodeError` if not."""
    try:
        text.decode()
        _VALUE.decode(text)  # as it is spelled: no number is too large, and nothing is built
        deep = too_deep(text)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
    except RecursionError:
        deep = True
    if deep:
        raise msgspec.DecodeError("it is nested too deeply")
    return text
