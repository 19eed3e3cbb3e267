"""Finds what serves a path: routes of any shape, in a trie over the segments of their paths.

A route's path is made of literal segments and of arguments: `{name}` is one segment, `{name...}`
one or more, slashes and all. At each segment a literal wins over an argument, and an argument of
one segment over one that spans several; a way that leads nowhere is given up for the next. The
method has no say in it: a path that no route serves with this method is a 405, though a less
literal route would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fairway.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fairway.server.http.exchange import Reply

    Handler = Callable[..., Awaitable[Reply | None]]
    Express = Callable[..., bool]

PATHS_REMEMBERED: Final = 1024


NAME: Final[Mapping[str, Any]] = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$",
    "minLength": 1,
    "maxLength": 255,
}
"""The JSON Schema of a name, which most arguments are."""


class Parameter(NamedTuple):
    """A parameter of a query, as the API document shows it."""

    name: str
    kind: str
    """`string`, `integer` or `boolean`."""
    meaning: str
    schema: Mapping[str, Any] = {}
    """What its JSON Schema says beyond its kind."""


class Route(NamedTuple):
    """One operation: how it is called, what serves it, and what the API document says of it."""

    method: str
    path: str
    """Segments in braces are arguments, in order; `{name...}` may hold slashes."""
    handler: Handler
    summary: str
    body: Any = None
    """The type of the request's body, for the document."""
    reply: Any = None
    statuses: Mapping[int, str] = {}
    query: Sequence[Parameter] = ()
    arguments: Mapping[str, Mapping[str, Any]] = {}
    """The JSON Schemas of arguments that are not names (`NAME`)."""
    body_optional: bool = False
    """Without a body it means the defaults of all its fields."""
    replies: Sequence[int] = ()
    """Statuses of failures that are told as a `reply` all the same, not as an error."""
    public: bool = False
    """Needs no key."""
    stream: bool = False
    """Its answer lasts."""
    reads: bool = False
    """It changes nothing, whatever its method. (A GET never does.)"""
    vital: bool = False
    """It tells of this process, to whoever decides whether it lives: answered at once, however long
    the line and whoever owns the log."""
    probe: bool = False
    """It asks how the server is: there are places for it when the line is full."""
    socket: bool = False
    """It is a WebSocket: what is served here are plain requests to it."""
    express: Express | None = None
    """Begins it without waiting for anything, if it can; an `ExpressReply` sends the answer. False
    if it cannot, and then nothing was done."""

    @property
    def parameters(self) -> list[str]:
        """The names that its query may have."""
        return [one.name for one in self.query]

    @property
    def template(self) -> str:
        """Its path as documents write it, without a mark on arguments that hold slashes."""
        return self.path.replace("...}", "}")


Found: TypeAlias = "tuple[dict[str, Route], tuple[str, ...]]"
"""The routes of a path by method, and the arguments in it."""


class Routes:
    """A table of routes. Raises `InvalidConfig` if two of them have one method and one shape."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.all = tuple(routes)
        self._root = _Node()
        for route in self.all:
            self._root.add(route)
        self.vital = frozenset(route.path for route in self.all if route.vital)
        self.probes = frozenset(route.path for route in self.all if route.probe)
        self._found: dict[str, Found | None] = {}

    @property
    def remembered(self) -> int:
        """How many paths are found by a single look-up now."""
        return len(self._found)

    def find(self, path: str) -> Found | None:
        """The routes of a path by method, and the arguments in it."""
        try:
            return self._found[path]
        except KeyError:
            if len(self._found) >= PATHS_REMEMBERED:
                self._found.clear()
            found = self._found[path] = self._root.find(segments(path), 0, ())
            return found


def segments(path: str) -> list[str]:
    """What a path is made of; a slash at its end adds nothing."""
    return path.strip("/").split("/")


class _Node:
    """What may follow the segments so far, and the routes that end here."""

    __slots__ = ("_argument", "_behind", "_literals", "_routes", "_span")

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._literals: dict[str, _Node] = {}
        self._argument: _Node | None = None
        self._span: _Node | None = None
        self._behind: list[int] = []
        """How many segments follow an argument that spans, the most first: so where it ends is
        known, however long a path is."""

    def add(self, route: Route) -> None:
        node, parts = self, segments(route.path)
        spans = [at for at, part in enumerate(parts) if part.endswith("...}")]
        if len(spans) > 1:
            raise InvalidConfig(f"{route.path}: where one of two arguments ends would be a guess")
        for at, part in enumerate(parts):
            if at in spans:
                node._behind = sorted({*node._behind, len(parts) - at - 1}, reverse=True)
                node._span = node = node._span or _Node()
            elif part.startswith("{"):
                node._argument = node = node._argument or _Node()
            else:
                node = node._literals.setdefault(part, _Node())
        if (other := node._routes.get(route.method)) is not None:
            raise InvalidConfig(f"{route.method} {route.path} and {other.path} are one path")
        node._routes[route.method] = route

    def find(self, parts: list[str], at: int, arguments: tuple[str, ...]) -> Found | None:
        """What is behind the segments before `at`. Each node is looked at once for each place
        where an argument may end, of which there are few."""
        if at == len(parts):
            return (self._routes, arguments) if self._routes else None
        part, found = parts[at], None
        if (literal := self._literals.get(part)) is not None:
            found = literal.find(parts, at + 1, arguments)
        if found is None and self._argument is not None:
            found = self._argument.find(parts, at + 1, (*arguments, part))
        if found is None and self._span is not None:
            for count in self._behind:
                end = len(parts) - count
                if end > at and found is None:
                    spanned = (*arguments, "/".join(parts[at:end]))
                    found = self._span.find(parts, end, spanned)
        return found
