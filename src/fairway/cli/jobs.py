"""`fairway jobs`: list, enqueue, retry, cancel and signal jobs, and steer queues of a server."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fairway.cli.bulk import parse_data, parse_object
from fairway.cli.output import Output, moment, notice
from fairway.cli.remote import (
    DURATION,
    Remote,
    RemoteGroup,
    json_option,
    pass_remote,
    remote_options,
)
from fairway.errors import Conflict, JobFailed, NotFound
from fairway.jobs.job import Status
from fairway.wire.jobs import LIMIT_MAX, PAGE_MAX, RATE_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from fairway.client import RemoteJobs, RemoteWorkflows
    from fairway.wire.jobs import JobSummary, JobView, QueueLimits, QueueView, StatusName

COLUMNS = ("ID", "KIND", "STATUS", "QUEUE", "TENANT", "ATTEMPTS", "ENQUEUED", "ERROR")
QUEUES = (*("QUEUE", "STATE", "READY", "RUNNING", "SCHEDULED", "WAITING", "BLOCKED", "LIMITS"),)
ARGS = """ARGS is a JSON object, such as '{"id": 7}'"""
LINE_MAX = 80
CHILDREN_MAX = 200
"""As many are shown; `ls --parent` lists them all."""

ID = click.IntRange(1)
LISTED_MAX = 1_000_000


@click.group(cls=RemoteGroup)
@remote_options
@click.pass_context
def jobs(context: click.Context, url: str | None, api_key: str | None) -> None:
    """Enqueue jobs, look at them and steer them, on a running server.

    \b
    fairway jobs enqueue send_receipt '{"id": 7}' --queue mail
    fairway jobs ls --status failed
    fairway jobs show 7
    fairway jobs retry 7
    fairway jobs pause mail

    The server is found by --url or FAIRWAY_URL, and shown --key or FAIRWAY_API_KEY. On a terminal
    the output is for people; in a pipe it is fields with tabs between; with --json it is JSON.
    """
    context.obj = Remote(url, api_key)


# Looking


@jobs.command("ls")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option(
    "--status", type=click.Choice([status.word for status in Status]), help="Only jobs that are so."
)
@click.option("--tenant", help="Only jobs of this tenant.")
@click.option("--parent", type=ID, help="Only the children of this job.")
@click.option(
    "--limit",
    type=click.IntRange(1, LISTED_MAX),
    default=50,
    show_default=True,
    help="Jobs at most.",
)
@json_option
@pass_remote
def list_jobs(
    remote: Remote,
    /,
    queue: str | None,
    kind: str | None,
    status: StatusName | None,
    tenant: str | None,
    parent: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs, newest first.

    \b
    fairway jobs ls --queue mail --status failed
    fairway jobs ls --status failed --json | jq .id | xargs fairway jobs retry
    """
    output = Output(json=as_json)
    with remote.client() as client:
        every = client.jobs.list(
            queue=queue,
            kind=kind,
            status=status,
            tenant=tenant,
            parent=parent,
            page_size=min(limit, PAGE_MAX),
        )
        found = list(islice(every, limit))
    if as_json:
        for job in found:
            output.message(job)
    else:
        output.table(COLUMNS, map(_row, found))
        if len(found) == limit:
            notice(f"the newest {limit:,}: --limit shows more")


@jobs.command("show")
@click.argument("id", type=ID)
@click.option("--wait", type=DURATION, default=0, help="Wait for its end: 30s at most.")
@json_option
@pass_remote
def show(remote: Remote, /, id: int, wait: int, as_json: bool) -> None:
    """Show one job: where it is, its state, attempts, error, progress and children.

    \b
    fairway jobs show 7
    fairway jobs show 7 --wait 30s --json | jq .result
    """
    output = Output(json=as_json)
    with remote.client() as client:
        job = client.jobs.get(id, wait_ms=wait)
        children = list(islice(client.jobs.list(parent=id), CHILDREN_MAX))
    if as_json:
        output.message({**msgspec.structs.asdict(job), "children": children})
    else:
        output.facts(_facts(job, children, tall=output.rich))


@jobs.command("queues")
@json_option
@pass_remote
def queues(remote: Remote, /, as_json: bool) -> None:
    """List queues: how many jobs are where, what is paused, and what is limited.

    \b
    fairway jobs queues
    fairway jobs queues --json | jq 'select(.paused).queue'
    """
    output = Output(json=as_json)
    with remote.client() as client:
        found = client.jobs.queues()
    if as_json:
        for queue in found:
            output.message(queue)
    else:
        output.table(QUEUES, map(_queue_row, found))


# Enqueueing


@jobs.command("enqueue")
@click.argument("kind")
@click.argument("args", required=False)
@click.option("--queue", help="Where it waits. [default: as its kind declares]")
@click.option("--tenant", help="Whose it is: tenants take turns.")
@click.option("--priority", type=click.IntRange(-1000, 1000), help="750 and more is most urgent.")
@click.option("--delay", type=DURATION, help="Start it so much later: 10s, 1h.")
@click.option(
    "--at",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z"]),
    help="Start it then: 2030-01-31T18:00:00+00:00.",
)
@click.option("--key", help="At most one job has it while that job lives.")
@click.option("--window", type=DURATION, help="Keep the key at least so long: 1h.")
@click.option("--partition-key", help="At most one job with it runs at a time.")
@click.option("--max-attempts", type=click.IntRange(1), help="Tries in all.")
@click.option("--wait", type=DURATION, help="Wait this long for its result, and print that: 30s.")
@json_option
@pass_remote
def enqueue(
    remote: Remote,
    /,
    kind: str,
    args: str | None,
    delay: int | None,
    at: datetime | None,
    window: int | None,
    wait: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue a job of KIND with ARGS, a JSON object.

    Of a kind that the server declares, arguments that do not fit are refused by name; any other
    kind is left to the workers that know it.

    \b
    fairway jobs enqueue send_receipt '{"id": 7}'
    fairway jobs enqueue send_receipt '{"id": 7}' --key receipt-7 --window 1h
    fairway jobs enqueue nightly --at 2030-01-31T03:00:00+00:00
    fairway jobs enqueue add '{"a": 1, "b": 2}' --wait 30s
    """
    times = {
        "delay_s": None if delay is None else delay / 1000,
        "at": at,
        "window_s": None if window is None else window / 1000,
    }
    given: Any = {name: value for name, value in {**options, **times}.items() if value is not None}
    output = Output(json=as_json)
    with remote.client() as client:
        made = client.jobs.enqueue(kind, parse_object(args or "{}", ARGS), **given)
        again = "" if made.fresh else " (it was there already)"
        if wait is None:
            output.done(f"job {made.id}{again}", made)
            return
        notice(f"job {made.id}{again}")
        output.message(result_of(client.jobs, made.id, wait, look="jobs"))


# Steering


@jobs.command("retry")
@click.argument("ids", type=ID, nargs=-1, required=True)
@json_option
@pass_remote
def retry(remote: Remote, /, ids: tuple[int, ...], as_json: bool) -> None:
    """Make failed, dead or cancelled jobs ready again, their attempts forgotten.

    Jobs that cannot be are named, and the others are retried all the same. They are retried
    one by one, the oldest first, so a parent before its children: a run of a workflow starts its
    tasks by itself. Name children in a command before, if their parent is to wait for them.

    \b
    fairway jobs retry 7 8
    """
    output = Output(json=as_json)
    refused = 0
    with remote.client() as client:
        for id in sorted(set(ids)):
            try:
                client.jobs.retry(id)
            except (Conflict, NotFound) as error:
                if len(ids) == 1:
                    raise
                refused += 1
                notice(str(error))
            else:
                output.done(f"job {id} is tried again", {"id": id})
    if refused:
        raise click.ClickException(f"{refused:,} of {len(set(ids)):,} jobs stay as they are")


@jobs.command("cancel")
@click.argument("ids", type=ID, nargs=-1, required=True)
@click.option(
    "--reason", default="cancelled", show_default=True, help="Their error; told to what runs."
)
@json_option
@pass_remote
def cancel(remote: Remote, /, ids: tuple[int, ...], reason: str, as_json: bool) -> None:
    """End jobs and their children; what runs is told to stop.

    \b
    fairway jobs cancel 7 --reason 'ordered twice'
    """
    output = Output(json=as_json)
    with remote.client() as client:
        for id in ids:
            reply = client.jobs.cancel(id, reason=reason)
            summary = f"cancelled {len(reply.ended):,}"
            if reply.running:
                summary += f", told {len(reply.running):,} that run to stop"
            if not reply.ended and not reply.running:
                summary = "it had ended already"
            output.done(f"job {id}: {summary}", reply)


@jobs.command("signal")
@click.argument("target")
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--by-key", is_flag=True, help="TARGET is the unique key of the job.")
@click.option("--dedup", help="Sent again under the same one, it changes nothing.")
@click.option("--text", is_flag=True, help="Take PAYLOAD as text rather than JSON.")
@json_option
@pass_remote
def signal(
    remote: Remote,
    /,
    target: str,
    name: str,
    payload: str | None,
    by_key: bool,
    dedup: str | None,
    text: bool,
    as_json: bool,
) -> None:
    """Send the signal NAME to the job TARGET, an id, with PAYLOAD if there is one.

    PAYLOAD is JSON; what does not begin like JSON is taken as text.

    \b
    fairway jobs signal 7 payment '{"amount": 12}'
    fairway jobs signal --by-key order-7 payment --dedup payment-1
    """
    if not by_key and not (target.isascii() and target.isdigit()):
        raise click.BadParameter(f"{target!r} is no id; --by-key takes it as a unique key")
    value = None
    if payload is not None:
        value = payload if text else parse_data(payload)
    with remote.client() as client:
        fresh = client.jobs.signal(target if by_key else int(target), name, value, dedup=dedup)
    summary = f"signal {name} sent to {target}" if fresh else f"{target} had that signal already"
    Output(json=as_json).done(summary, {"fresh": fresh})


@jobs.command("pause")
@click.argument("queue")
@json_option
@pass_remote
def pause(remote: Remote, /, queue: str, as_json: bool) -> None:
    """Start nothing more from QUEUE; what runs goes on.

    \b
    fairway jobs pause mail
    """
    with remote.client() as client:
        view = client.jobs.pause(queue)
    summary = f"paused {queue}: {view.ready:,} ready, {view.running:,} still running"
    Output(json=as_json).done(summary, view)


@jobs.command("resume")
@click.argument("queue")
@json_option
@pass_remote
def resume(remote: Remote, /, queue: str, as_json: bool) -> None:
    """Start jobs of QUEUE again.

    \b
    fairway jobs resume mail
    """
    with remote.client() as client:
        view = client.jobs.resume(queue)
    Output(json=as_json).done(f"resumed {queue}: {view.ready:,} ready", view)


@jobs.command("limit")
@click.argument("queue")
@click.option("--concurrency", type=click.IntRange(1), help="Jobs that run at once.")
@click.option(
    "--rate", type=click.FloatRange(RATE_MIN, LIMIT_MAX), help="Starts per second on average."
)
@click.option(
    "--burst", type=click.IntRange(1), default=1, show_default=True, help="Starts it saves up."
)
@click.option("--none", "lift", is_flag=True, help="Lift the limits.")
@json_option
@pass_remote
def limit(
    remote: Remote,
    /,
    queue: str,
    concurrency: int | None,
    rate: float | None,
    burst: int,
    lift: bool,
    as_json: bool,
) -> None:
    """Say what QUEUE may do, over all workers together; the queue '*' is all of them.

    What is not given is no limit.

    \b
    fairway jobs limit mail --concurrency 4
    fairway jobs limit mail --rate 10 --burst 20
    fairway jobs limit '*' --concurrency 64
    fairway jobs limit mail --none
    """
    if lift == (concurrency is not None or rate is not None):
        raise click.UsageError("give --concurrency, --rate or both; or --none")
    with remote.client() as client:
        view = client.jobs.limit(queue, concurrency=concurrency, rate_per_s=rate, burst=burst)
    Output(json=as_json).done(f"{queue}: {_limits(view.limits)}", view)


@jobs.command("prune")
@click.option("--older-than", type=DURATION, required=True, help="Ended longer ago: 7d.")
@click.option(
    "--failed-older-than",
    type=DURATION,
    help="For those that failed or are dead, instead of --older-than.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_remote
def prune(
    remote: Remote,
    /,
    older_than: int,
    failed_older_than: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget jobs that ended long ago, with their results. For good.

    What an unfinished parent may still read stays.

    \b
    fairway jobs prune --older-than 7d
    fairway jobs prune --older-than 1h --failed-older-than 30d
    """
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("nobody is there to be asked: say --yes")
        click.confirm("Forget these jobs for good?", abort=True, err=True)
    with remote.client() as client:
        failed_s = None if failed_older_than is None else failed_older_than / 1000
        gone = client.jobs.prune(older_than / 1000, failed_older_than_s=failed_s)
    Output(json=as_json).done(f"{gone:,} jobs forgotten", {"pruned": gone})


# How things are shown


def _row(job: JobSummary) -> tuple[object, ...]:
    return (
        str(job.id),
        job.kind,
        _status(job),
        job.queue,
        job.tenant or "-",
        _attempts(job),
        moment(job.enqueued_at),
        _short(job.error),
    )


def _status(job: JobSummary) -> str:
    return f"{job.status}, cancelling" if job.cancelling else job.status


def _attempts(job: JobSummary) -> str:
    """Tries so far, this one or the last one counted, of those it has."""
    under_way = job.status in ("running", "done", "failed")
    return f"{job.attempt + job.crashes + under_way}/{job.max_attempts}"


def result_of(waiter: RemoteJobs | RemoteWorkflows, id: int, wait_ms: int, *, look: str) -> Any:
    """What a job, or a run, comes to; if nothing good, where to look."""
    try:
        result: Any = waiter.wait(id, wait_ms / 1000)
        return result
    except TimeoutError as error:
        raise click.ClickException(f"{error}; look: fairway {look} show {id}") from None
    except JobFailed as error:
        raise click.ClickException(
            f"job {id} is {error.status}: {_short(error.error)}; look: fairway {look} show {id}"
        ) from None


def _short(text: str | None) -> str:
    """What an error says in a line: of a traceback, the exception at its end."""
    if not text:
        return "-"
    lines = text.strip().rpartition("Traceback (most recent call last):\n")[2].split("\n")
    line = next((line for line in lines if not line.startswith(" ")), lines[0])
    return line if len(line) <= LINE_MAX else f"{line[: LINE_MAX - 1]}…"


def _queue_row(view: QueueView) -> tuple[object, ...]:
    return (
        view.queue,
        "paused" if view.paused else "open",
        view.ready,
        view.running,
        view.scheduled,
        view.waiting,
        view.blocked,
        _limits(view.limits),
    )


def _limits(limits: QueueLimits) -> str:
    parts = []
    if limits.concurrency is not None:
        parts.append(f"{limits.concurrency:,} at once")
    if limits.rate_per_s is not None:
        parts.append(f"{limits.rate_per_s:g}/s, {limits.burst:,} in a burst")
    return ", ".join(parts) or "no limits"


def _facts(job: JobView, children: list[JobSummary], *, tall: bool) -> Iterator[tuple[str, object]]:
    """Names and values, what is not there left out; `tall` gives long ones lines of their own."""
    yield "id", str(job.id)
    yield "kind", job.kind if job.version == 1 else f"{job.kind}, version {job.version}"
    yield "status", _status(job)
    yield "queue", job.queue
    yield "step", job.step
    yield "attempts", _attempts(job)
    yield "enqueued", moment(job.enqueued_at)
    optional: dict[str, object] = {
        "due": moment(job.due_at),
        "finished": moment(job.finished_at),
        "tenant": job.tenant or None,
        "priority": job.priority or None,
        "crashes": job.crashes or None,
        "retries": job.retries or None,
        "key": job.key,
        "partition_key": job.partition_key,
        "parent": None if job.parent is None else str(job.parent),
        "worker": None if job.worker is None else str(job.worker),
        "waits_for": ", ".join(job.waits_for) or None,
        "traceparent": job.traceparent,
    }
    yield from ((name, value) for name, value in optional.items() if value is not None)
    if job.progress is not None:
        yield from _lines("progress", _json(job.progress, tall), tall)
    yield from _lines("state", _json(job.state, tall), tall)
    if job.status == "done":
        yield from _lines("result", _json(job.result, tall), tall)
    if job.error is not None:
        yield from _lines("error", job.error.rstrip("\n"), tall)
    for child in children:
        error = f": {_short(child.error)}" if child.error else ""
        yield "child", f"{child.id} {_status(child)} {child.kind}{error}"
    if len(children) == CHILDREN_MAX:
        yield "children", f"the newest {CHILDREN_MAX}: fairway jobs ls --parent {job.id}"


def _json(value: Any, tall: bool) -> str:
    encoded = msgspec.json.encode(value)
    return msgspec.json.format(encoded, indent=2).decode() if tall else encoded.decode()


def _lines(name: str, text: str, tall: bool) -> Iterator[tuple[str, object]]:
    if not tall:
        yield name, text
        return
    for at, line in enumerate(text.split("\n")):
        yield ("" if at else name), line
