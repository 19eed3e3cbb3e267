"""`fairway graph`: look at the graphs of a running server, push, fire, steer, load and unload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from fairway.cli import graph_views as views
from fairway.cli.bulk import STANDARD_INPUT, parse_object, read_lines, standard_input
from fairway.cli.graph_replay import replay
from fairway.cli.output import Output, notice
from fairway.cli.remote import (
    DURATION,
    Remote,
    RemoteGroup,
    json_option,
    pass_remote,
    remote_options,
)
from fairway.errors import Conflict, FairwayError, NotFound
from fairway.wire.graphs import DEAD_MAX, EVENTS_MAX, FIRINGS_MAX, GraphStateView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fairway.client import Client

F = TypeVar("F", bound="Callable[..., Any]")

BATCH = 1_000
"""Lines of a file that are pushed together."""
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class GraphGroup(RemoteGroup):
    """Its errors say which option or command helps."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.ClickException as error:
            hint = _hint(error.__context__)
            if hint is None:
                raise
            raise click.ClickException(
                f"{error.message.removesuffix('; say which')}; {hint}"
            ) from None


def _hint(error: BaseException | None) -> str | None:
    if isinstance(error, NotFound) and error.kind == "graph":
        return "fairway graph ls lists them"
    if isinstance(error, NotFound) and error.kind == "source":
        return "fairway graph show lists them"
    if isinstance(error, Conflict) and error.code == "graph_ambiguous":
        return "say which with --tenant"
    if isinstance(error, Conflict) and error.code == "graph_exists":
        return "unload it first"
    return None


@click.group(cls=GraphGroup)
@remote_options
@click.pass_context
def graph(context: click.Context, url: str | None, api_key: str | None) -> None:
    """Look at the graphs of a running server, push to them, fire and steer them.

    \b
    fairway graph ls
    fairway graph show pricing                    a picture, with numbers
    fairway graph push pricing quotes '{"bid": 1.0, "ask": 1.2}'
    fairway graph fire pricing                    now, whatever its criterion says
    fairway graph state pricing --follow          its state and firings, live
    fairway graph load shop.graphs:pricing        from a module of the server's
    fairway graph replay shop:pricing --journal pricing

    The server is found by --url or FAIRWAY_URL, and shown --key or FAIRWAY_API_KEY. Looking takes
    the scope read, push and fire take write, all else takes admin. Where several tenants have a
    graph of one name, --tenant says whose.
    """
    context.obj = Remote(url, api_key)


graph.add_command(replay)


def tenant_option(command: F) -> F:
    return click.option("--tenant", help="Whose graph, if several have one of that name.")(command)


# Looking


@graph.command("ls")
@click.option("--tenant", help="Only graphs of this tenant.")
@json_option
@pass_remote
def ls(remote: Remote, /, tenant: str | None, as_json: bool) -> None:
    """List the graphs that are loaded: how they are, and how often they fired."""
    output = Output(json=as_json)
    with remote.client() as client:
        found = client.graphs.list(tenant=tenant)
    if as_json:
        for one in found:
            output.message(one)
        return
    output.table(views.GRAPHS, map(views.summary_row, found))
    if not found:
        notice("no graphs: declare one with app.graph, or fairway graph load module:graph")


@graph.command("show")
@click.argument("name")
@tenant_option
@click.option("--mermaid", is_flag=True, help="Print it as Mermaid, for a document.")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into this file."
)
@json_option
@pass_remote
def show(
    remote: Remote,
    /,
    name: str,
    tenant: str | None,
    mermaid: bool,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show a graph: when it fires, its sources, and its nodes with what they take and did.

    \b
    fairway graph show pricing
    fairway graph show pricing --mermaid > pricing.mmd
    fairway graph show pricing --svg pricing.svg
    """
    output = Output(json=as_json)
    with remote.client() as client:
        if svg is not None:
            drawn = client.graphs.svg(name, tenant=tenant)
            try:
                svg.write_text(drawn, encoding="utf-8")
            except OSError as error:
                raise click.FileError(str(svg), hint=error.strerror) from None
            notice(f"drawn into {svg}")
            return
        found = client.graphs.get(name, tenant=tenant)
    if as_json:
        output.message(found)
        return
    if mermaid:
        click.echo(found.mermaid, nl=False)
        return
    for line in views.shown(found):
        click.echo(line)


@graph.command("state")
@click.argument("name")
@tenant_option
@click.option("--no-cache", is_flag=True, help="Leave out the values.")
@click.option("--follow", is_flag=True, help="Go on: print what changes and what fires.")
@json_option
@pass_remote
def state(
    remote: Remote,
    /,
    name: str,
    tenant: str | None,
    no_cache: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the state of a graph: what it waits for, its cache, its sources, its checkpoint.

    \b
    fairway graph state pricing
    fairway graph state pricing --follow
    fairway graph state pricing --json | jq .cache
    """
    output = Output(json=as_json)
    with remote.client() as client:
        if follow:
            _follow(client, output, name, tenant, cache=not no_cache)
            return
        found = client.graphs.state(name, tenant=tenant, cache=not no_cache)
    if as_json:
        output.message(found)
    else:
        output.facts(views.facts(found))


def _follow(client: Client, output: Output, name: str, tenant: str | None, *, cache: bool) -> None:
    shown = ""
    for news in client.graphs.watch(name, tenant=tenant, cache=cache):
        if output.json:
            output.message(news)
        elif isinstance(news, GraphStateView):
            label = views.state(news.state, paused=news.paused, halted=news.halted)
            if label != shown:
                shown = label
                click.echo(f"{news.graph} is {label}")
        else:
            if news.skipped:
                click.echo(f"... {news.skipped:,} more firings")
            for firing in news.firings:
                click.echo(views.firing_line(firing))
    notice(f"{name} was unloaded")


@graph.command("firings")
@click.argument("name")
@tenant_option
@click.option("--limit", type=click.IntRange(1, FIRINGS_MAX), default=20, show_default=True)
@json_option
@pass_remote
def firings(remote: Remote, /, name: str, tenant: str | None, limit: int, as_json: bool) -> None:
    """List the last firings of a graph, newest first, with what they came to."""
    output = Output(json=as_json)
    with remote.client() as client:
        found = client.graphs.firings(name, tenant=tenant, limit=limit)
    if as_json:
        for one in found:
            output.message(one)
        return
    output.table(views.FIRINGS, map(views.firing_row, found))


@graph.command("dead")
@click.argument("name")
@tenant_option
@click.option("--limit", type=click.IntRange(1, DEAD_MAX), default=50, show_default=True)
@json_option
@pass_remote
def dead(remote: Remote, /, name: str, tenant: str | None, limit: int, as_json: bool) -> None:
    """List dead letters: boundaries that did not decode, and inputs of firings that failed."""
    output = Output(json=as_json)
    with remote.client() as client:
        found = client.graphs.dead(name, tenant=tenant, limit=limit)
    if as_json:
        for one in found:
            output.message(one)
        return
    output.table(views.DEAD, map(views.dead_row, found))
    if not found:
        notice("no dead letters")


@graph.command("recoveries")
@click.argument("name")
@tenant_option
@json_option
@pass_remote
def recoveries(remote: Remote, /, name: str, tenant: str | None, as_json: bool) -> None:
    """List what of a graph failed, was restarted or given up, newest first."""
    output = Output(json=as_json)
    with remote.client() as client:
        found = client.graphs.recoveries(name, tenant=tenant)
    if as_json:
        for one in found:
            output.message(one)
        return
    output.table(views.RECOVERIES, map(views.recovery_row, found))
    if not found:
        notice("no recoveries: neither it nor a source of it ever died")


# Pushing and firing


@graph.command("push")
@click.argument("name")
@click.argument("source")
@click.argument("data")
@tenant_option
@click.option("--wait", type=DURATION, help="How long to wait for room. [default: 5s]")
@json_option
@pass_remote
def push(
    remote: Remote,
    /,
    name: str,
    source: str,
    data: str,
    tenant: str | None,
    wait: int | None,
    as_json: bool,
) -> None:
    """Push DATA, one JSON boundary, to a source; with - each line of standard input.

    It returns once the boundary is accepted: durably, if the graph is checkpointed. A boundary that
    does not fit the source's type is refused, and changes nothing.

    \b
    fairway graph push pricing quotes '{"bid": 1.0, "ask": 1.2}'
    fairway graph push pricing quotes - < quotes.jsonl
    """
    output = Output(json=as_json)
    wait_s = None if wait is None else wait / 1000
    pushed = 0
    with remote.client() as client:
        try:
            for batch in _batches(data):
                pushed += client.graphs.push(name, source, *batch, tenant=tenant, wait_s=wait_s)
        except (FairwayError, click.ClickException):
            if pushed:
                notice(f"the first {pushed:,} lines were accepted; then, of those behind them:")
            raise
    output.done(f"{pushed:,} accepted by {source} of {name}", {"accepted": pushed})


def _batches(data: str) -> Iterator[list[msgspec.Raw]]:
    # As bytes: what is no text is no JSON either, and is told so.
    lines = iter([os.fsencode(data)])
    if data == "-":
        read = read_lines(standard_input(), STANDARD_INPUT)
        lines = (line for line in read if line.strip())
    batch: list[msgspec.Raw] = []
    for number, line in enumerate(lines, 1):
        try:
            msgspec.json.decode(line)
        except NO_JSON as error:
            where = f"line {number} " if data == "-" else "DATA "
            raise click.BadParameter(f"{where}is no JSON: {error}") from None
        batch.append(msgspec.Raw(line.strip()))
        if len(batch) >= min(BATCH, EVENTS_MAX):
            yield batch
            batch = []
    if batch:
        yield batch


@graph.command("fire")
@click.argument("name")
@click.option("--with", "cache", metavar="JSON", help="Values by source that replace the cache.")
@tenant_option
@json_option
@pass_remote
def fire(
    remote: Remote, /, name: str, cache: str | None, tenant: str | None, as_json: bool
) -> None:
    """Fire a graph now, whatever its criterion says, paused or not; and print what it came to.

    With --with the given values replace the cache, all of it. The number printed is that of the
    firing, once it is recorded; a firing that fails is an error, and consumed nothing.

    \b
    fairway graph fire pricing
    fairway graph fire pricing --with '{"quotes": {"bid": 1.0, "ask": 1.2}}'
    """
    values: Mapping[str, Any] | None = None
    if cache is not None:
        values = parse_object(cache, "--with is a JSON object by source")
    output = Output(json=as_json)
    with remote.client() as client:
        firing = client.graphs.fire(name, values, tenant=tenant)
    output.done(views.fired(firing), firing)


# Steering


@graph.command("pause")
@click.argument("name")
@tenant_option
@json_option
@pass_remote
def pause(remote: Remote, /, name: str, tenant: str | None, as_json: bool) -> None:
    """Let a graph fire no more by itself. Sources go on accumulating, as far as they have room."""
    with remote.client() as client:
        reply = client.graphs.pause(name, tenant=tenant)
    Output(json=as_json).done(f"{name} is paused after firing {reply.firing}", reply)


@graph.command("resume")
@click.argument("name")
@tenant_option
@json_option
@pass_remote
def resume(remote: Remote, /, name: str, tenant: str | None, as_json: bool) -> None:
    """Let a graph fire by itself again, at once if it is due. It also ends a halt."""
    with remote.client() as client:
        reply = client.graphs.resume(name, tenant=tenant)
    Output(json=as_json).done(f"{name} goes on; firing {reply.firing} was its last", reply)


@graph.command("restart")
@click.argument("name")
@click.option("--source", help="Only this source, which was given up.")
@tenant_option
@json_option
@pass_remote
def restart(
    remote: Remote, /, name: str, source: str | None, tenant: str | None, as_json: bool
) -> None:
    """Start a graph anew from what is kept of it; or a source that was given up."""
    with remote.client() as client:
        reply = client.graphs.restart(name, source=source, tenant=tenant)
    what = f"source {source} of {name} is started" if source else f"{name} is {reply.state}"
    Output(json=as_json).done(what, reply)


@graph.command("load")
@click.argument("reference", metavar="MODULE:GRAPH")
@click.option("--fresh", is_flag=True, help="Import the module anew, as its file is now.")
@json_option
@pass_remote
def load(remote: Remote, /, reference: str, fresh: bool, as_json: bool) -> None:
    """Run a graph that a module of the server's declares, beside those that run.

    \b
    fairway graph load shop.graphs:pricing
    fairway graph unload pricing && fairway graph load shop.graphs:pricing --fresh

    The module is found where the server was started, or where it finds its other modules. A
    directory whose files come and go is watched by: fairway serve --graphs DIR
    """
    if not all(reference.partition(":")):
        raise click.BadParameter(f"{reference!r}: name the graph as module:graph")
    with remote.client() as client:
        reply = client.graphs.load(reference, fresh=fresh)
    Output(json=as_json).done(f"{reply.graph} is {reply.state}", reply)


@graph.command("unload")
@click.argument("name")
@tenant_option
@click.option("--forget", is_flag=True, help="What was kept of it goes as well.")
@json_option
@pass_remote
def unload(remote: Remote, /, name: str, tenant: str | None, forget: bool, as_json: bool) -> None:
    """Drain a graph and stop it. What is kept of it stays, unless --forget: load goes on there."""
    with remote.client() as client:
        reply = client.graphs.unload(name, tenant=tenant, forget=forget)
    Output(json=as_json).done(f"{name} is unloaded{' and forgotten' if forget else ''}", reply)
