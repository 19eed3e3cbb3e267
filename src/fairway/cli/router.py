"""`fairway router`: rules that copy what is appended to one topic into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from fairway.cli.output import Output
from fairway.cli.remote import Remote, RemoteGroup, json_option, pass_remote, remote_options

if TYPE_CHECKING:
    from fairway.wire.topics import Match, RouterState

COLUMNS = ("ROUTER", "SOURCE", "DEST", "FILTER", "CURSOR", "LAG", "FORWARDED", "ERROR")


@click.group(cls=RemoteGroup)
@remote_options
@click.pass_context
def router(context: click.Context, url: str | None, api_key: str | None) -> None:
    """Copy records from one topic to another, exactly once, as they are appended.

    \b
    fairway router put eu-orders orders orders.eu --filter 'eu.*'
    fairway router ls
    """
    context.obj = Remote(url, api_key)


@router.command("ls")
@click.option("--prefix", default="", help="Only routers whose names begin with this.")
@click.option("--source", help="Only those that read this topic.")
@click.option("--dest", help="Only those that write this topic.")
@json_option
@pass_remote
def list_routers(
    remote: Remote, /, prefix: str, source: str | None, dest: str | None, as_json: bool
) -> None:
    """List routers, how far each is, and why it stands still if it does."""
    output = Output(json=as_json)
    with remote.client() as client:
        found = list(client.routers(prefix, source=source, dest=dest))
    if as_json:
        for state in found:
            output.message(state)
    else:
        output.table(COLUMNS, map(_row, found))


@router.command("put")
@click.argument("name")
@click.argument("source")
@click.argument("dest")
@click.option("--filter", "tags", help="Only this tag, or tags with this prefix: 'eu.*'.")
@click.option("--preserve-node/--no-preserve-node", default=True, help="Keep each record's node.")
@click.option("--preserve-tag/--no-preserve-tag", default=True, help="Keep each record's tag.")
@click.option("--create-dest/--no-create-dest", default=True, help="Create DEST if need be.")
@click.option("--allow-cycle", is_flag=True, help="Even if it closes a cycle; 8 hops at most.")
@json_option
@pass_remote
def put_router(
    remote: Remote,
    /,
    name: str,
    source: str,
    dest: str,
    tags: str | None,
    as_json: bool,
    **config: Any,
) -> None:
    """Create the router NAME from the topic SOURCE to the topic DEST, or replace it.

    \b
    fairway router put audit orders audit-log
    fairway router put eu-orders orders orders.eu --filter 'eu.*'
    """
    with remote.client() as client:
        reply = client.put_router(name, source, dest, filter=tags, **config)
    made = "created" if reply.created else "replaced"
    Output(json=as_json).done(f"{made} router {name}: {source} -> {dest}", reply)


@router.command("show")
@click.argument("name")
@json_option
@pass_remote
def show_router(remote: Remote, /, name: str, as_json: bool) -> None:
    """Show one router: its rule, its cursor and its lag."""
    with remote.client() as client:
        state = client.router(name)
    output = Output(json=as_json)
    if as_json:
        output.message(state)
    else:
        facts = {**msgspec.structs.asdict(state), "filter": _filter(state.filter)}
        output.facts((name, "-" if value is None else value) for name, value in facts.items())


@router.command("delete")
@click.argument("name")
@json_option
@pass_remote
def delete_router(remote: Remote, /, name: str, as_json: bool) -> None:
    """Stop forwarding. What was copied stays in the destination."""
    with remote.client() as client:
        reply = client.delete_router(name)
    message = f"deleted router {name}" if reply.deleted else f"there was no router {name}"
    Output(json=as_json).done(message, reply)


def _row(state: RouterState) -> tuple[object, ...]:
    return (
        state.router,
        state.source,
        state.dest,
        _filter(state.filter),
        state.cursor,
        state.lag,
        state.forwarded_total,
        state.error or "-",
    )


def _filter(match: Match | None) -> str:
    if match is None:
        return "-"
    return match if isinstance(match, str) else match[2]
