"""What a part shows in the server, and all that the server shows.

A front says which paths it serves, which fair key a request to them has, and what it needs while a
server runs. It has no state of its own: what it keeps for a server is kept by the server's context
(`ServerContext.keep`), so one front serves any number of servers.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from fairway.errors import InvalidConfig
from fairway.server.http.exchange import Reply, Request, json_reply
from fairway.server.http.openapi import DESCRIPTION, document
from fairway.server.http.router import Route, Routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fairway.app import Fairway
    from fairway.core.priority import Band
    from fairway.kernel.part import PartHealth
    from fairway.server.context import ServerContext
    from fairway.server.http.asgi import Application


class Shown(Protocol):
    """What the server asks of every part that runs."""

    @property
    def name(self) -> str: ...

    def health(self) -> PartHealth: ...


class FairKeyRule(NamedTuple):
    """The fair key of requests whose path begins with `prefix`.

    When requests have to wait, each fair key has a line of its own, and the lines take turns.
    """

    prefix: str
    key_of: Callable[[str], str]
    """The key of a path. All that is about one thing shares one, or many paths were many turns."""
    band_of: Callable[[ServerContext, str], Band | None] | None = None
    """How urgent what waits under a key is, if that is known; the middle band if not."""


class Front:
    """A part's face. A subclass says what it has; what it leaves out, it has not."""

    name: ClassVar[str]
    routes: ClassVar[Sequence[Route]] = ()
    sockets: ClassVar[Sequence[Route]] = ()
    """WebSockets by their paths. They are called with the context, the request, `receive`, `send`
    and the arguments of the path, and raise before they accept if they refuse."""
    mount: ClassVar[str | None] = None
    """How the paths begin that `application` serves by a protocol of its own."""
    fair_key_rules: ClassVar[Sequence[FairKeyRule]] = ()
    schemas: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """What the API document says of messages beyond the types of their fields, by their names."""

    description: ClassVar[str] = ""
    """What the API document says of what is not in it, in a sentence."""

    def parts(self, app: Fairway) -> Sequence[Shown]:
        """The parts that it shows, as they run. The context has them by their types."""
        return ()

    def start(self, context: ServerContext) -> None:
        """Set up what it needs, before the first request."""

    def readiness(self, context: ServerContext) -> Mapping[str, int]:
        """What `/readyz` tells beside the health of its parts: fields of `Readiness`."""
        return {}

    def lasts(self, request: Request) -> bool:
        """Whether `application` answers this with an event stream, which a ticket may open."""
        return False

    def application(self, context: ServerContext) -> Application:
        """What serves the paths that begin with `mount`. Asked once, after `start`."""
        raise AssertionError(f"{self.name} serves nothing at {self.mount}")

    async def prepare(self, context: ServerContext) -> None:
        """Do what has to be done before the server says that it is ready; requests are served."""

    async def run(self, context: ServerContext) -> None:
        """Look after it until cancelled, if there is anything to look after."""

    def review(self, context: ServerContext) -> None:
        """Look at what keys may use now: they may have changed. Called every second or so."""

    def stop_admitting(self, context: ServerContext) -> None:
        """The server ends: refuse what is new."""


class Fronts:
    """All fronts of a server, and what they come to together.

    Raises `InvalidConfig` if two of them are in each other's way: by a name, a path or a turn.
    Which of them came first would decide in silence, and one of them would never be asked.
    """

    def __init__(self, fronts: Iterable[Front]) -> None:
        self._fronts = tuple(fronts)
        own = Route("GET", "/openapi.json", self.openapi_json, "This document", public=True)
        self.routes = Routes([*(one for front in self._fronts for one in front.routes), own])
        self.sockets = Routes([one for front in self._fronts for one in front.sockets])
        self.fair_key_rules = tuple(rule for front in self._fronts for rule in front.fair_key_rules)
        self._check()

    def _check(self) -> None:
        mounts = {front.name: front.mount for front in self if front.mount is not None}
        for one, other in combinations(self, 2):
            if one.name == other.name:
                kinds = f"{type(one).__name__} and {type(other).__name__}"
                raise InvalidConfig(f"{kinds} are two fronts of one name, {one.name!r}")
        for name, outer in permutations(mounts, 2):
            if mounts[name].startswith(mounts[outer]):
                raise InvalidConfig(
                    f"fronts {name!r} and {outer!r} are both mounted at {mounts[name]}"
                )
        for front, (name, mount) in product(self, mounts.items()):
            for route in front.routes:
                if route.path.startswith(mount):
                    raise InvalidConfig(
                        f"{route.method} {route.path} of front {front.name!r} is never found:"
                        f" front {name!r} is mounted at {mount}"
                    )
        for rule, before in permutations(self.fair_key_rules, 2):
            if rule.prefix.startswith(before.prefix):
                raise InvalidConfig(
                    f"requests to {rule.prefix} take two turns: those of {before.prefix} as well"
                )

    def __iter__(self) -> Iterator[Front]:
        return iter(self._fronts)

    def document(self) -> dict[str, Any]:
        """The OpenAPI document of all routes."""
        schemas = {name: more for front in self for name, more in front.schemas.items()}
        more = [front.description for front in self if front.description]
        return document(self.routes.all, schemas, " ".join((DESCRIPTION, *more)))

    @cached_property
    def _document(self) -> Reply:
        """Made once: that takes as long as hundreds of requests, and anybody may ask for it."""
        return json_reply(self.document())

    async def openapi_json(self, context: ServerContext | None, request: Request) -> Reply:
        return self._document
