"""A part that is not there: what somebody writes who adds one, in one file instead of six.

It keeps things under two names, (a, b), in a partition of its own. `add` is all that the rest of
Fairway hears of it: a line in each list. As a program it is `fairway` with that part:

    python -m tests.support.toy serve tests.support.toy:app --toy-limit 2
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

import fairway.parts
import fairway.server.fronts
from fairway import Fairway, Source
from fairway.cli.main import COMMANDS
from fairway.cli.remote import Remote, RemoteGroup, pass_remote, remote_options
from fairway.client import problems as client_problems
from fairway.client.aio import client as aio_client
from fairway.client.protocol import Call, reading
from fairway.client.sync import client as sync_client
from fairway.errors import Closing, Invalid, NotFound, Throttled
from fairway.graphs.context import FiringContext  # noqa: TC001  a node's parameters are read
from fairway.kernel.part import OK, Part, PartHealth
from fairway.runtime.words import brief
from fairway.server.front import FairKeyRule, Front, Fronts
from fairway.server.http import problems as server_problems
from fairway.server.http.exchange import Reply, json_reply
from fairway.server.http.router import Route
from fairway.settings import PART_SETTINGS, PartSetting
from fairway.storage.wal import Operation
from fairway.wire.encoding import encode_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.client import AsyncClient, Client
    from fairway.kernel.effects import EffectPosition
    from fairway.kernel.kernel import Kernel
    from fairway.parts import Assembly
    from fairway.server.context import ServerContext
    from fairway.server.http.exchange import Request

KIND = "toy"

# The message (wire/toy.py)


class Thing(msgspec.Struct, frozen=True):
    a: str
    b: str
    value: Any
    puts: int
    """How often it was put: an effect that came twice would show."""


class NoToy(Invalid):
    """Nothing is no toy."""


# The part (toy/)


class Toys(Part):
    """Things by two names, in the log of the app."""

    name = "toys"

    def __init__(self, kernel: Kernel) -> None:
        self.limit = 1_000
        self._kernel = kernel
        self._things: dict[tuple[str, str], Thing] = {}
        self._positions: dict[tuple[str, str], tuple[int, int]] = {}
        self._writing = asyncio.Lock()
        self._closing = True
        kernel.offer(KIND, ToyDestination(self))

    async def open(self) -> None:
        catalog = self._kernel.catalog
        found = catalog.take(KIND).get("things")
        if found is None:
            self._partition = await catalog.create(KIND, "things", b"")
        else:
            self._partition = found.partition
            for name, value in await self._kernel.partitions.meta_scan(self._partition):
                kind, a, rest = name.split("/", 2)
                if kind == "thing":
                    self._things[a, rest] = msgspec.json.decode(value, type=Thing)
                else:
                    self._positions[a, rest] = msgspec.json.decode(value, type=tuple[int, int])
        self._kernel.telemetry.gauge("fairway_toys", "Things", lambda: len(self._things))
        self._closing = False

    def stop_admitting(self) -> None:
        self._closing = True

    def health(self) -> PartHealth:
        if len(self._things) < self.limit:
            return OK
        return PartHealth("degraded", f"the box is full: {self.limit} things")

    async def put(self, a: str, b: str, value: Any) -> Thing:
        await self.put_all(a, [(b, value)])
        return self.get(a, b)

    async def put_all(
        self, a: str, things: Sequence[tuple[str, Any]], position: EffectPosition | None = None
    ) -> bool:
        """All of them, and the position beside them, in one operation; or nothing, and False, if
        the first was put under that position already."""
        if any(value is None for _, value in things):
            raise NoToy("nothing is no toy")
        async with self._writing:
            if self._closing:
                raise Closing("toys are closing")
            self._kernel.writability.check()
            if position is not None:
                known = self.position(a, position.producer)
                if known is not None and (position.epoch, position.first) <= known:
                    return False
            made = dict(self._things)
            for b, value in things:
                before = made.get((a, b))
                made[a, b] = Thing(a, b, value, 1 if before is None else before.puts + 1)
            if len(made) > max(self.limit, len(self._things)):
                full = f"the box is full: {self.limit} things"
                raise Throttled(full, retry_after_ns=10**9, limit="toys", maximum=self.limit)
            meta = {f"thing/{a}/{b}": msgspec.json.encode(made[a, b]) for b, _ in things}
            if position is not None:
                last = (position.epoch, position.number)
                meta[f"position/{a}/{position.producer}"] = msgspec.json.encode(last)
            await self._kernel.partitions.submit(self._partition, Operation(meta=meta))
            self._things = made
            if position is not None:
                self._positions[a, position.producer] = last
        return True

    def position(self, a: str, producer: str) -> tuple[int, int] | None:
        return self._positions.get((a, producer))

    def get(self, a: str, b: str) -> Thing:
        if (a, b) not in self._things:
            raise NotFound("thing", f"{a}/{b}")
        return self._things[a, b]


class ToyDestination:
    """Things that other parts ask for."""

    def __init__(self, toys: Toys) -> None:
        self._toys = toys

    def encode(self, asked: Any) -> tuple[str, bytes]:
        match asked:
            case (str(a), str(b), value) if "/" not in a + b:
                return a, encode_given([b, value], f"thing {b!r}")
        raise Invalid(f"a thing is made of two names and a value, not {brief(asked)}")

    async def known(self, target: str, producer: str) -> tuple[int, int] | None:
        return self._toys.position(target, producer)

    async def send(
        self, target: str, effects: Sequence[bytes], position: EffectPosition | None
    ) -> bool:
        return await self._toys.put_all(target, list(map(msgspec.json.decode, effects)), position)


def toys_part(app: Assembly) -> Part:
    return Toys(app.kernel)


# The front (server/fronts/toy.py)


async def get_thing(context: ServerContext, request: Request, a: str, b: str) -> Reply:
    request.identity.require("read", a)
    return json_reply(context.part(Toys).get(a, b))


async def put_thing(context: ServerContext, request: Request, a: str, b: str) -> Reply:
    request.identity.require("write", a)
    value = await request.json(msgspec.json.Decoder())
    return json_reply(await context.part(Toys).put(a, b, value), 201)


class ToyFront(Front):
    name = "toys"
    routes = (
        Route("GET", "/v0/toy/{a}/things/{b}", get_thing, "A thing", reply=Thing),
        Route("PUT", "/v0/toy/{a}/things/{b}", put_thing, "Keep a thing", body=Any, reply=Thing),
    )
    fair_key_rules = (FairKeyRule("/v0/toy/", lambda path: path.split("/")[3]),)

    def parts(self, app: Fairway) -> Sequence[Toys]:
        return (app.part(Toys),)

    def start(self, context: ServerContext) -> None:
        context.part(Toys).limit = context.settings.of_parts.get("toy_limit", 1_000)


# The client (client/aio/toys.py, from which the blocking one is generated)


def thing_call(a: str, b: str) -> Call[Thing]:
    return Call(method="GET", path=f"/v0/toy/{a}/things/{b}", decode=reading(Thing))


def put_call(a: str, b: str, value: Any) -> Call[Thing]:
    path = f"/v0/toy/{a}/things/{b}"
    body = msgspec.json.encode(value)
    return Call(method="PUT", path=path, body=body, decode=reading(Thing), mutates=True)


class AsyncRemoteToys:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, a: str, b: str) -> Thing:
        return await self._client.call(thing_call(a, b))

    async def put(self, a: str, b: str, value: Any) -> Thing:
        return await self._client.call(put_call(a, b, value))


class RemoteToys:
    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, a: str, b: str) -> Thing:
        return self._client.call(thing_call(a, b))


# The command (cli/toy.py)


@click.group(cls=RemoteGroup)
@remote_options
@click.pass_context
def toy(context: click.Context, url: str | None, api_key: str | None) -> None:
    """Look at toys."""
    context.obj = Remote(url, api_key)


@toy.command()
@click.argument("a")
@click.argument("b")
@pass_remote
def get(remote: Remote, a: str, b: str) -> None:
    """Print a thing."""
    with remote.client() as client:
        click.echo(msgspec.json.encode(client.toys.get(a, b)))  # type: ignore[attr-defined]


# A line in each list


def add() -> None:
    fairway.parts.PARTS.append(toys_part)
    fairway.server.fronts.FRONTS = Fronts([*fairway.server.fronts.FRONTS, ToyFront()])  # type: ignore[misc]
    aio_client.PARTS.append(("toys", AsyncRemoteToys))
    sync_client.PARTS.append(("toys", RemoteToys))
    COMMANDS["toy"] = (__name__, "toy", "Look at toys.")
    server_problems.OF_PARTS.append((NoToy, 422, "no_toy"))
    client_problems.BY_CODE["no_toy"] = NoToy
    PART_SETTINGS.append(PartSetting("toy_limit", int, "NUMBER", "Things at most."))


# An app that uses it

app = Fairway()
numbers = Source("numbers", int)
squares = app.graph("squares", when=numbers, checkpoint=True, inputs="sequential")


@squares.node
def square(numbers: int, firing: FiringContext) -> int:
    firing.emit(KIND, "square", str(numbers), numbers**2)
    return numbers**2


if __name__ == "__main__":
    # By its name, or the lists and the app would hold the classes of two modules.
    import tests.support.toy as itself

    itself.add()
    from fairway.cli.main import main

    main(prog_name="fairway")
