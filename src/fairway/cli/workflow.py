"""`fairway workflow`: start runs of workflows and look at them, on a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairway.cli.bulk import parse_object
from fairway.cli.jobs import result_of
from fairway.cli.output import Output, moment, notice
from fairway.cli.remote import (
    DURATION,
    Remote,
    RemoteGroup,
    json_option,
    pass_remote,
    remote_options,
)
from fairway.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.client import RemoteWorkflows
    from fairway.wire.jobs import StatusName
    from fairway.wire.workflows import RunActionReply

ID = click.IntRange(1)
RUNS = ("ID", "WORKFLOW", "STATUS", "STARTED", "ENDED", "ERROR")
SCHEDULES = ("SCHEDULE", "WHEN", "STATE", "HANDLED", "LAST JOB")
LINE_MAX = 60
RUNS_MAX = 200


@click.group(cls=RemoteGroup)
@remote_options
@click.pass_context
def workflow(context: click.Context, url: str | None, api_key: str | None) -> None:
    """Start runs of workflows, look at them and steer them, on a running server.

    \b
    fairway workflow ls
    fairway workflow run nightly '{"day": "2030-01-31"}'
    fairway workflow show 7
    fairway workflow schedules
    """
    context.obj = Remote(url, api_key)


@workflow.command("ls")
@click.argument("name", required=False)
@click.option("--status", help="Only runs that are so: running, waiting, done, failed …")
@click.option("--limit", type=click.IntRange(1, RUNS_MAX), default=20, show_default=True)
@json_option
@pass_remote
def ls(
    remote: Remote, /, name: str | None, status: StatusName | None, limit: int, as_json: bool
) -> None:
    """List the runs of a workflow, newest first; of all of them without NAME."""
    output = Output(json=as_json)
    with remote.client() as client:
        known = [] if name is not None else client.workflows.list()
        names = [name] if name is not None else [one.name for one in known]
        found = [
            run for each in names for run in client.workflows.runs(each, status=status, limit=limit)
        ]
    found.sort(key=lambda run: -run.id)
    if as_json:
        for run in found[:limit]:
            output.message(run)
        return
    output.table(
        RUNS,
        (
            (
                str(run.id),
                run.workflow,
                run.status,
                moment(run.started_at),
                moment(run.finished_at) if run.finished_at is not None else "",
                ((run.error or "").splitlines() or [""])[-1][:LINE_MAX],
            )
            for run in found[:limit]
        ),
    )
    if not found:
        notice("no runs" if names else "the server declares no workflows")


@workflow.command("show")
@click.argument("target")
@json_option
@pass_remote
def show(remote: Remote, /, target: str, as_json: bool) -> None:
    """Show a run as a tree of its tasks, or a workflow as a tree of what it consists of.

    TARGET is the id of a run, or the name of a workflow.
    """
    output = Output(json=as_json)
    with remote.client() as client:
        if not target.isdigit():
            try:
                found = client.workflows.get(target)
            except NotFound:
                raise click.ClickException(f"the server declares no workflow {target!r}") from None
            output.done(found.tree, found)
            return
        run = client.workflows.run(int(target))
    lines = [f"run {run.id} of {run.workflow}: {run.status}{' (paused)' if run.paused else ''}"]
    if run.retries:
        lines[0] += f", retried {run.retries}x"
    lines += [run.tree] if run.tree else [f"   {task.state:<9} {task.name}" for task in run.tasks]
    lines += [
        f"job {task.job}: {task.name}, attempt {task.attempt}" for task in run.tasks if task.job
    ]
    if run.error:
        lines.append(f"error: {run.error}")
    output.done("\n".join(lines), run)


@workflow.command("run")
@click.argument("name")
@click.argument("context", required=False)
@click.option("--key", help="At most one run has it at a time.")
@click.option("--window", type=DURATION, default=0, help="And for so long after it started.")
@click.option("--wait", type=DURATION, help="Wait so long for its end, and print what it came to.")
@json_option
@pass_remote
def run_(
    remote: Remote,
    /,
    name: str,
    context: str | None,
    key: str | None,
    window: int,
    wait: int | None,
    as_json: bool,
) -> None:
    """Start a run of a workflow with CONTEXT, a JSON object, added to the declared one.

    \b
    fairway workflow run nightly
    fairway workflow run nightly '{"day": "2030-01-31"}' --wait 10m
    """
    given = parse_object(context or "{}", "CONTEXT is a JSON object")
    output = Output(json=as_json)
    with remote.client() as client:
        made = client.workflows.start(name, given, key=key, window_s=window / 1000)
        again = "" if made.fresh else " (it was there already)"
        if wait is None:
            output.done(f"run {made.id}{again}", made)
            return
        notice(f"run {made.id}{again}")
        output.message(result_of(client.workflows, made.id, wait, look="workflow"))


@workflow.command("pause")
@click.argument("ids", type=ID, nargs=-1, required=True)
@json_option
@pass_remote
def pause(remote: Remote, /, ids: tuple[int, ...], as_json: bool) -> None:
    """Start no more tasks of runs; what runs goes on."""
    _steer(remote, ids, lambda runs, id: runs.pause(id), "starts no more tasks", as_json)


@workflow.command("resume")
@click.argument("ids", type=ID, nargs=-1, required=True)
@json_option
@pass_remote
def resume(remote: Remote, /, ids: tuple[int, ...], as_json: bool) -> None:
    """Let paused runs go on."""
    _steer(remote, ids, lambda runs, id: runs.resume(id), "goes on", as_json)


@workflow.command("cancel")
@click.argument("ids", type=ID, nargs=-1, required=True)
@click.option("--reason", default="cancelled", help="Told to what runs.")
@json_option
@pass_remote
def cancel(remote: Remote, /, ids: tuple[int, ...], reason: str, as_json: bool) -> None:
    """End runs and their tasks."""
    _steer(remote, ids, lambda runs, id: runs.cancel(id, reason=reason), "is cancelled", as_json)


@workflow.command("retry")
@click.argument("ids", type=ID, nargs=-1, required=True)
@json_option
@pass_remote
def retry(remote: Remote, /, ids: tuple[int, ...], as_json: bool) -> None:
    """Go on with runs that failed or were cancelled: what failed runs again, and what comes
    after."""
    _steer(remote, ids, lambda runs, id: runs.retry(id), "is tried again", as_json)


def _steer(
    remote: Remote,
    ids: tuple[int, ...],
    act: Callable[[RemoteWorkflows, int], RunActionReply],
    summary: str,
    as_json: bool,
) -> None:
    output = Output(json=as_json)
    with remote.client() as client:
        for id in ids:
            output.done(f"run {id} {summary}", act(client.workflows, id))


@workflow.command("schedules")
@click.option("--pause", "paused", metavar="NAME", help="Stop a schedule from firing.")
@click.option("--resume", "resumed", metavar="NAME", help="Let it fire again.")
@json_option
@pass_remote
def schedules(remote: Remote, /, paused: str | None, resumed: str | None, as_json: bool) -> None:
    """List schedules and what came of their latest times; pause and resume them."""
    output = Output(json=as_json)
    with remote.client() as client:
        if paused is not None:
            client.workflows.pause_schedule(paused)
        if resumed is not None:
            client.workflows.resume_schedule(resumed)
        found = client.workflows.schedules()
    if as_json:
        for one in found:
            output.message(one)
        return
    output.table(
        SCHEDULES,
        (
            (
                one.name,
                one.spec,
                "paused" if one.paused else "on",
                moment(one.handled_at),
                str(one.firings[0].job or "lost") if one.firings else "",
            )
            for one in found
        ),
    )
