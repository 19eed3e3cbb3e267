"""`fairway topic`: list, create, append, read, follow, measure and delete topics of a server."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.live import Live

from fairway.cli.bulk import append_lines, parse_data, standard_input
from fairway.cli.output import Output, bad_facts, moment, notice, printable, record_facts
from fairway.cli.remote import (
    DURATION,
    SIZE,
    Remote,
    RemoteGroup,
    json_option,
    pass_remote,
    remote_options,
)
from fairway.client.bulk import BATCH_RECORDS
from fairway.client.clock import SYSTEM_CLIENT_CLOCK
from fairway.client.exchange import AUTO
from fairway.errors import BadRecord
from fairway.wire.records import RECORDS_MAX
from fairway.wire.topics import LIMIT_DEFAULT, LIMIT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.client import Page, Record, TopicHandle, Watch
    from fairway.errors import FairwayError
    from fairway.wire.topics import TopicState

COLUMNS = ("TOPIC", "RECORDS", "BYTES", "HEAD", "EARLIEST", "DURABILITY", "PRIORITY")

match_option = click.option(
    "--match", help="Only records of this tag, or of tags with this prefix: 'eu.*'."
)
node_option = click.option("--node", help="Leave out records that this node wrote.")


@click.group(cls=RemoteGroup)
@remote_options
@click.pass_context
def topic(context: click.Context, url: str | None, api_key: str | None) -> None:
    """Append to topics, read and follow them, on a running server.

    \b
    fairway topic create orders --ttl 7d --cap-records 1000000
    fairway topic append orders '{"id": 1}' --tag eu.new
    fairway topic append orders --file orders.ndjson
    fairway topic tail orders --from-start
    fairway topic ls

    The server is found by --url or FAIRWAY_URL, and shown --key or FAIRWAY_API_KEY. On a terminal
    the output is for people; in a pipe it is fields with tabs between; with --json it is JSON.
    """
    context.obj = Remote(url, api_key)


@topic.command("ls")
@click.option("--prefix", default="", help="Only topics whose names begin with this.")
@json_option
@pass_remote
def list_topics(remote: Remote, /, prefix: str, as_json: bool) -> None:
    """List topics in order of their names.

    \b
    fairway topic ls --prefix orders.
    fairway topic ls --json | jq -r .topic
    """
    output = Output(json=as_json)
    with remote.client() as client:
        found = client.topics(prefix)
        if as_json:
            for summary in found:
                output.message(summary)
            return
        rows = (
            (
                one.topic,
                one.count,
                one.bytes,
                one.head_seq,
                one.earliest_seq,
                one.durability,
                one.effective_priority,
            )
            for one in found
        )
        output.table(COLUMNS, rows)


@topic.command("create")
@click.argument("name")
@click.option("--ttl", "ttl_ms", type=DURATION, help="Keep records this long: 30s, 15m, 1h, 7d.")
@click.option("--cap-records", type=click.IntRange(0), help="Keep this many records at most.")
@click.option("--cap-bytes", type=SIZE, help="Keep this much at most: 64kB, 10MB, 1GiB.")
@click.option("--discard", type=click.Choice(["old", "reject"]), help="What a full topic does.")
@click.option(
    "--durability",
    type=click.Choice(["ephemeral", "memory", "disk", "fsync"]),
    help="What an acknowledgement promises: nothing, acceptance, survival of a crash, of power"
    " loss. [default: fsync]",
)
@click.option("--priority", type=click.IntRange(-1000, 1000), help="By hand, instead of recency.")
@click.option(
    "--idempotency-window",
    "idempotency_window_ms",
    type=DURATION,
    help="How long idempotency keys are remembered. [default: 2m]",
)
@click.option("--auto-create/--no-auto-create", default=None, help="Whether a write may create it.")
@json_option
@pass_remote
def create_topic(remote: Remote, /, name: str, as_json: bool, **config: Any) -> None:
    """Create the topic NAME, or change its configuration.

    Options that are not given keep their value, or take the default in a new topic.

    \b
    fairway topic create orders
    fairway topic create quotes --ttl 1h --cap-bytes 1GiB --durability disk
    """
    with remote.client() as client:
        given = {field: value for field, value in config.items() if value is not None}
        reply = client.topic(name).put(**given)
    made = "created" if reply.created else "configured"
    Output(json=as_json).done(f"{made} topic {name}", reply)


@topic.command("append")
@click.argument("name")
@click.argument("data", required=False)
@click.option("--file", "file", type=click.File("rb"), help="Append every line of this file.")
@click.option("--tag", help="The tag of every record.")
@click.option("--node", help="The node that writes.")
@click.option("--text", is_flag=True, help="Take DATA, or each line, as text rather than JSON.")
@click.option(
    "--key",
    "--idempotency-key",
    "key",
    help="Said again under the same key, it changes nothing. [default: a new one]",
)
@click.option(
    "--batch",
    type=click.IntRange(1, RECORDS_MAX),
    default=BATCH_RECORDS,
    show_default=True,
    help="Lines in one append, which is all or none.",
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    help="Leave out this many lines: those that an earlier run had acknowledged.",
)
@json_option
@pass_remote
def append(
    remote: Remote,
    /,
    name: str,
    data: str | None,
    file: Any,
    tag: str | None,
    node: str | None,
    text: bool,
    key: str | None,
    batch: int,
    skip: int,
    as_json: bool,
) -> None:
    """Append DATA to the topic NAME, or every line of a file or of standard input.

    DATA is JSON; what does not begin like JSON is taken as text. Without DATA, or with -, each line
    of standard input is a record (NDJSON), and blank lines are left out. A bulk append that fails
    says how many lines were acknowledged, and the command that goes on from there.

    \b
    fairway topic append greetings hello
    fairway topic append orders '{"id": 1}' --tag eu.new --key order-1
    fairway topic append orders --file orders.ndjson
    zcat old.ndjson.gz | fairway topic append orders -
    """
    if file is not None and data not in (None, "-"):
        raise click.UsageError("give DATA or --file, not both")
    bulk = file is not None or data in (None, "-")
    if skip and not bulk:
        raise click.UsageError("--skip is for lines: DATA is one record")
    output = Output(json=as_json)
    with remote.client() as client:
        handle: TopicHandle[Any] = client.topic(name)
        if not bulk:
            assert data is not None
            value = data if text else parse_data(data)
            one = handle.append(value, tag=tag, node=node, key=key if key is not None else AUTO)
            again = " (it was there already)" if one.deduped else ""
            output.done(f"{name} {one.first_seq}{again}", one)
            return
        stream = file if file is not None else standard_input()
        done = append_lines(
            handle,
            stream,
            url=client.url,
            source=file.name if file is not None else None,
            key=key,
            skip=skip,
            text=text,
            batch=batch,
            tag=tag,
            node=node,
        )
    message = f"{done.records:,} lines appended to {name}"
    if done.records:
        message += f": {done.first_seq}..{done.last_seq}"
    if done.deduped:
        message += f", {done.deduped:,} of them were there already"
    output.done(message, done._asdict())


@topic.command("diff")
@click.argument("name")
@click.option("--from-seq", type=click.IntRange(0), default=0, help="Begin after this seq.")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="Records at most.",
)
@click.option("--wait", type=DURATION, default=0, help="Wait this long for a record: 10s.")
@match_option
@node_option
@json_option
@pass_remote
def diff(
    remote: Remote,
    /,
    name: str,
    from_seq: int,
    limit: int,
    wait: int,
    match: str | None,
    node: str | None,
    as_json: bool,
) -> None:
    """Read one page of what comes after a seq, and say where the next one begins.

    \b
    fairway topic diff orders
    fairway topic diff orders --from-seq 256 --match 'eu.*'
    fairway topic diff orders --from-seq 256 --wait 30s --json
    """
    output = Output(json=as_json)
    with remote.client() as client:
        handle: TopicHandle[msgspec.Raw] = client.topic(name, msgspec.Raw)
        page = handle.diff(from_seq, limit=limit, wait_ms=wait, node=node, match=match)
    if as_json:
        output.message(_page_facts(page))
        return
    if page.tombstone is not None:
        output.tombstone(page.tombstone)
    found: list[Record[msgspec.Raw] | BadRecord] = [*page.records, *page.bad]
    for record in sorted(found, key=lambda one: one.seq):
        _show_record(output, record)
    if page.caught_up:
        notice(f"caught up at {page.next_from_seq}")
    else:
        notice(f"{page.lag:,} more: --from-seq {page.next_from_seq}")


@topic.command("tail")
@click.argument("name")
@click.option("--from-start", is_flag=True, help="Begin with the first record there is.")
@click.option("--from-seq", type=click.IntRange(0), help="Begin after this seq.")
@click.option("--count", type=click.IntRange(1), help="End after this many records.")
@click.option("--no-touch", is_flag=True, help="Leave the topic's automatic priority alone.")
@match_option
@node_option
@json_option
@pass_remote
def tail(
    remote: Remote,
    /,
    name: str,
    from_start: bool,
    from_seq: int | None,
    count: int | None,
    no_touch: bool,
    match: str | None,
    node: str | None,
    as_json: bool,
) -> None:
    """Follow a topic: every record from now on, until Ctrl-C or its deletion.

    A connection that breaks is resumed where it was, also when the server restarts. Records that
    are gone before they could be shown are told in their place.

    \b
    fairway topic tail orders
    fairway topic tail orders --from-start --match 'eu.*'
    fairway topic tail orders --json | jq .data
    """
    if from_start and from_seq is not None:
        raise click.UsageError("give --from-start or --from-seq, not both")
    output = Output(json=as_json)

    def lost(error: FairwayError) -> None:
        notice(f"{printable(str(error))}; resuming")

    with remote.client() as client:
        handle: TopicHandle[msgspec.Raw] = client.topic(name, msgspec.Raw)
        watch = handle.watch(
            from_seq or 0,
            tail=not from_start and from_seq is None,
            node=node,
            match=match,
            touch=not no_touch,
            on_tombstone=output.tombstone,
            on_disconnect=lost,
        )
        for shown, record in enumerate(_all_of(watch), 1):
            _show_record(output, record)
            if shown == count:
                return
    notice(f"{name} was deleted")


@topic.command("stats")
@click.argument("name")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="How often.")
@json_option
@pass_remote
def stats(remote: Remote, /, name: str, watch: bool, interval: int, as_json: bool) -> None:
    """Show where a topic is, what it holds and how it is configured.

    \b
    fairway topic stats orders
    fairway topic stats orders --watch --interval 5s
    """
    output = Output(json=as_json)
    with remote.client() as client:
        handle: TopicHandle[Any] = client.topic(name)
        state = handle.state()
        if not watch:
            _show(output, state)
            return
        screen = Live(output.grid(_facts(state)), console=output.console) if output.rich else None
        with screen or nullcontext():
            while True:
                if screen is not None:
                    screen.update(output.grid(_facts(state)))
                else:
                    _show(output, state)
                SYSTEM_CLIENT_CLOCK.sleep_ns(interval * 1_000_000)
                state = handle.state()


@topic.command("delete")
@click.argument("name")
@click.option("--before-seq", type=click.IntRange(0), help="Only records below this seq.")
@click.option("--seq", type=click.IntRange(1), help="Only the record of this seq.")
@click.option("--match", help="Only records of this tag, or of tags with this prefix: 'eu.*'.")
@click.option("--if-empty", is_flag=True, help="Only if it holds no records.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_remote
def delete(
    remote: Remote,
    /,
    name: str,
    before_seq: int | None,
    seq: int | None,
    match: str | None,
    if_empty: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete a topic with all it holds; or, by seq or by tag, some of its records. For good.

    \b
    fairway topic delete orders
    fairway topic delete orders --before-seq 1000
    fairway topic delete orders --seq 1234
    fairway topic delete orders --match 'user-7.*' --yes
    """
    some = before_seq is not None or match is not None or seq is not None
    if some and if_empty:
        raise click.UsageError("--if-empty is for the whole topic")
    if not yes:
        _confirm(f"Delete {'records of ' if some else ''}the topic {name} for good?")
    output = Output(json=as_json)
    with remote.client() as client:
        handle: TopicHandle[Any] = client.topic(name)
        if some:
            records = handle.delete_records(before_seq=before_seq, match=match, seq=seq)
            output.done(f"deleted {records.deleted:,} records of {name}", records)
            return
        gone = handle.delete(if_empty=if_empty)
    message = f"deleted topic {name}" if gone.deleted else f"there was no topic {name}"
    if gone.routers_removed:
        message += f", and the routers {', '.join(gone.routers_removed)}"
    output.done(message, gone)


def _confirm(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked: say --yes")
    click.confirm(question, abort=True, err=True)


def _show(output: Output, state: TopicState) -> None:
    if output.json:
        output.message(state)
    else:
        output.facts(_facts(state))


def _facts(state: TopicState) -> list[tuple[str, object]]:
    facts = msgspec.structs.asdict(state)
    config = msgspec.structs.asdict(facts.pop("config"))
    for name in ("last_write_ts", "last_read_ts"):
        facts[name] = moment(facts[name])
    pairs = [*facts.items(), *((f"config.{name}", value) for name, value in config.items())]
    return [(name, "-" if value is None else value) for name, value in pairs]


def _page_facts(page: Page[msgspec.Raw]) -> dict[str, object]:
    return {
        **page._asdict(),
        "records": [record_facts(record) for record in page.records],
        "bad": [bad_facts(bad) for bad in page.bad],
    }


def _all_of(watch: Watch[msgspec.Raw]) -> Iterator[Record[msgspec.Raw] | BadRecord]:
    """Every record, those that cannot be read in their place."""
    while True:
        try:
            yield from watch
            return
        except BadRecord as bad:
            unreadable = bad
        yield unreadable  # and on behind it


def _show_record(output: Output, record: Record[msgspec.Raw] | BadRecord) -> None:
    if isinstance(record, BadRecord):
        output.bad_record(record)
    else:
        output.record(record)
