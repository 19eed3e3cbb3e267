"""`fairway serve`: the app, or none in particular, behind HTTP until a stop is requested."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairway.app import Fairway
from fairway.errors import BadPlace, FairwayError, InvalidConfig
from fairway.masking import log_masked, masked
from fairway.runtime.service import StopSwitch, stop_on_signals
from fairway.runtime.usercode import run_process
from fairway.server.serving import Server
from fairway.settings import PART_SETTINGS, ServerSettings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

FILE: Final = click.Path(path_type=Path)
LINE: Final = "%(levelname)s %(name)s: %(message)s"
INTERRUPTED: Final = 130
"""What a shell reports of a command that Ctrl-C ended."""


class BadData(click.ClickException):
    """`--data` names what can hold none: told in a line, with the code of a wrong command line."""

    exit_code = click.UsageError.exit_code


def options_of_parts(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the settings that parts have."""
    for one in reversed(PART_SETTINGS):
        parse = partial(_parsed, one.parse)
        command = click.option(
            one.option, type=str, metavar=one.metavar, help=one.help, callback=parse
        )(command)
    return command


def _parsed(parse: Callable[[str], Any], _: click.Context, option: Any, text: str | None) -> Any:
    """A setting, read as the variable of the environment is."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=option) from None


@click.command()
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option(
    "--data",
    metavar="PLACE",
    help="Where the data lives: a directory, or postgresql://…; it counts more than what the app"
    " says. [default: the app's place, or ./fairway-data]",
)
@click.option("--host", help="The address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=int, help="The port; 0 takes any free one. [default: 4000]")
@click.option("--keys", "keys_file", type=FILE, metavar="FILE", help="API keys, reloaded live.")
@click.option("--cors-origin", "cors_origins", multiple=True, help="A web origin to admit.")
@click.option("--tls-cert", type=FILE, metavar="FILE", help="Certificate chain (PEM), for HTTPS.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="Its private key (PEM).")
@click.option(
    "--allow-insecure", is_flag=True, default=None, help="Listen beyond loopback without keys."
)
@click.option(
    "--standby",
    is_flag=True,
    default=None,
    help="If another process has the data, wait to take over from it.",
)
@options_of_parts
def serve(app: str | None, data: str | None, **options: Any) -> None:
    """Run the server until Ctrl-C; a second Ctrl-C ends it at once.

    MODULE:APP is a Fairway object of yours, such as shop:app, whose topics, routers, jobs and
    graphs are then declared; without one the server starts empty. Every option can come from the
    environment as well, as FAIRWAY_PORT and the like.

    \b
    fairway serve                             an empty server on http://127.0.0.1:4000
    fairway serve shop:app --port 8080        the app of shop.py
    fairway serve --host 0.0.0.0 --keys keys.toml --tls-cert c.pem --tls-key k.pem
    """
    log_to_stderr()
    # uvicorn tells of WebSockets with their whole URL, and a ticket may be in it.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    for name in ("fairway.audit", "fairway.graphs.loading"):  # what somebody did, or changed
        logging.getLogger(name).setLevel(logging.INFO)
    options["cors_origins"] = options["cors_origins"] or None
    try:
        settings = read_settings(data=data, **options)
        made = load_app(app) if app is not None else Fairway(settings.data)
        instead_of = ""
        if app is not None and data is not None:
            # Asked for here and now: it counts more than what the app says.
            instead_of, made.place = shown_place(made.place), data
        made.standby = made.standby or settings.standby
        made.wait_for_job_store = True
        run(made, settings, instead_of=instead_of)
    except BadPlace as error:
        raise BadData(masked(error)) from None
    except FairwayError as error:
        raise click.ClickException(masked(error)) from None


def log_to_stderr() -> None:
    """Warnings to standard error, a line each, and no secrets in them."""
    log_masked(LINE, logging.WARNING)
    logging.getLogger("asyncpg.pool").addFilter(_in_a_line)


def _in_a_line(record: logging.LogRecord) -> bool:
    """A driver tells of an outage by a traceback at each try; what it comes to is enough."""
    if record.exc_info and (error := record.exc_info[1]) is not None:
        record.msg = f"{record.getMessage()}: {type(error).__name__} {error}"
        record.args = ()
        record.exc_info = record.exc_text = None
    return True


def shown_place(place: object) -> str:
    """A place as it may be printed."""
    return masked(place) if isinstance(place, str | Path) else "a store of the app's own"


def load_app(reference: str) -> Fairway:
    """The Fairway object that `module:name` means."""
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise InvalidConfig(f"{reference!r}: name the app as module:app")
    if module.startswith("."):  # also a path: Python would ask which package that is in
        raise InvalidConfig(f"cannot import {module!r}: a module is named without dots in front")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(f"cannot import {module!r}: {error}") from None
    except AttributeError:
        raise InvalidConfig(f"module {module!r} has no {name!r}") from None
    if not isinstance(found, Fairway):
        raise InvalidConfig(f"{reference} is a {type(found).__name__}, not a Fairway")
    return found


def run(app: Fairway, settings: ServerSettings, *, instead_of: str = "") -> None:
    """Serve until a stop is requested. `instead_of` is the place that `--data` overruled."""
    run_process(_serve(app, settings, instead_of))


async def _serve(app: Fairway, settings: ServerSettings, instead_of: str) -> None:
    server = Server(app, settings)
    stop = StopSwitch()
    failure: FairwayError | None = None
    app.when_standing_by.append(lambda _: _announce_standing_by(server))
    with stop_on_signals(stop):
        async with asyncio.TaskGroup() as group:
            asides = [
                group.create_task(_greet(server, instead_of)),
                group.create_task(_end_at_once(stop)),
            ]
            try:
                await server.run(stop)
            except FairwayError as error:
                failure = error
            finally:
                for aside in asides:
                    aside.cancel()
    if failure is not None:
        raise failure


async def _end_at_once(stop: StopSwitch) -> None:
    """The stop was requested twice: end like a crash, which loses nothing acknowledged."""
    await stop.wait_forced()
    os._exit(INTERRUPTED)


def _announce_standing_by(server: Server) -> None:
    # Also what `/readyz` is asked at meanwhile: with port 0 nobody else knows.
    place = shown_place(server.app.place)
    click.echo(f"Fairway stands by for {place} at {server.url}    Ctrl-C stops.")


async def _greet(server: Server, instead_of: str) -> None:
    await server.ready.wait()
    url = server.url
    # Never a real one: what is printed here is kept by terminals and logs.
    key = " -H 'authorization: Bearer YOUR_KEY'" if server.settings.keyed else ""
    place = shown_place(server.app.place)
    if instead_of not in ("", place):
        place += f" (--data, instead of the app's {instead_of})"
    click.echo(
        f"""Fairway serves {place} at {url}

  curl -X POST {url}/v0/topics/greetings{key} -H 'content-type: application/json' \\
       -d '{{"records": [{{"data": "hello"}}]}}'
  curl -N {url}/v0/topics/greetings/watch{key}
  curl -X POST {url}/v0/topics/greetings/diff{key} -d '{{}}' -H 'content-type: application/json'

API to try out: {url}/docs    Ctrl-C stops."""
    )
