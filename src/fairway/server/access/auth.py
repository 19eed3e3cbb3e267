"""Decides who asks and what they may do: keys, open access on loopback, the bind.

With keys, whoever sends one is an `Identity` and everybody else is refused; a web page can use a
key only if somebody gave it one. Without keys the server is for its own machine: the Host and the
Origin of a request show whether a page from elsewhere is behind it. Only `ReloadedKeys` touches the
outside, and only through `settings`; the rest is pure. No secret is kept, shown or logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import unquote

from fairway.errors import Backpressure, Closing, Forbidden, InvalidConfig, Unauthorized
from fairway.runtime.clock import sleep_ns
from fairway.server.access.cors import (
    DEFAULT_PORTS,
    is_loopback,
    is_loopback_authority,
    parse_authority,
    parse_origin,
)
from fairway.settings import SCOPES, SECOND_NS, UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairway.runtime.blocking import BlockingPool
    from fairway.server.access.cors import Cors
    from fairway.settings import KeyEntry, KeySource, Quota, Scope

logger = logging.getLogger("fairway.server")


CHALLENGE: Final = 'Bearer realm="fairway"'
"""The `WWW-Authenticate` that goes with `Unauthorized`."""
HOSTS_REMEMBERED: Final = 64
NO_QUOTAS: Final[Mapping[str, Quota]] = {}
SECRET_PARAMETERS: Final = frozenset({"ticket", "access_token", "api_key", "key", "token"})


# --- who asks


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Identity:
    """Whoever holds one key, and what they may do."""

    name: str
    scopes: frozenset[Scope]
    """Every scope it has, with those that `admin` implies."""
    prefixes: tuple[str, ...] = ()
    """What the names it may touch begin with; none is every name."""
    quota: Quota = UNLIMITED
    id: str
    """Stays the same while name and secret do: what belongs to an old secret is not a new one's."""

    def require(self, scope: Scope, *names: str) -> None:
        """Raises `Forbidden` unless this key may do `scope` to each of `names`."""
        if scope not in self.scopes:
            raise Forbidden(f"key {self.name!r} lacks the scope {scope}", detail={"scope": scope})
        for name in names:
            if not self.may_touch(name):
                raise Forbidden(
                    f"key {self.name!r} may not touch {name[:255]!r}", detail={"name": name[:255]}
                )

    def require_prefix(self, scope: Scope, prefix: str) -> None:
        """The same for every name that begins with `prefix`; an empty one is every name."""
        self.require(scope)
        if not self.may_touch(prefix):
            raise Forbidden(
                f"key {self.name!r} may not touch every name that begins with {prefix[:255]!r}",
                detail={"prefix": prefix[:255]},
            )

    def may_touch(self, name: str) -> bool:
        """Whether `name` is one of its names. What may not be touched is left out of lists."""
        return not self.prefixes or name.startswith(self.prefixes)

    def within(self, prefix: str) -> list[str]:
        """The beginnings of the names it may touch among those that begin with `prefix`.

        In order, and no name has two of them: whoever lists names need not look at the others.
        """
        if not self.prefixes:
            return [prefix]
        found: list[str] = []
        for own in sorted(self.prefixes):
            if prefix.startswith(own):
                return [prefix]
            if own.startswith(prefix) and not (found and own.startswith(found[-1])):
                found.append(own)
        return found

    def __repr__(self) -> str:
        return f"Identity({self.name!r})"


ANYONE: Final = Identity(name="anyone", scopes=frozenset(SCOPES), id="anyone")
"""Whoever asks a server that has no keys."""


class Access(Protocol):
    """How requests are admitted. `admit` and `confirm` raise `Unauthorized` or `Forbidden`."""

    keyed: bool
    """Whether a key is needed: then whoever shows none is a stranger."""

    def admit(
        self, *, authorization: str | None, host: str | None, origin: str | None, wall_ns: int
    ) -> Identity:
        """Who sent a request with these headers."""
        ...

    def known(self, host: bytes | None) -> Identity | None:
        """Who that is, if a request with this Host, without key and Origin, needs no look."""
        ...

    def confirm(self, identity: Identity, wall_ns: int) -> Identity:
        """The same identity as it is now: for what outlives a request, and for tickets."""
        ...

    def quotas(self) -> Mapping[str, Quota]:
        """What each key may use, by its name: for what goes on without a request."""
        ...


# --- access by key


class _Held(NamedTuple):
    digest: bytes
    expires_wall_ns: int | None
    identity: Identity


class Keyring:
    """The keys of one moment."""

    __slots__ = ("_by_id", "_held", "quotas")

    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        self._held = tuple(
            _Held(entry.digest, entry.expires_wall_ns, _identity(entry)) for entry in entries
        )
        self._by_id = {held.identity.id: held for held in self._held}
        self.quotas = {held.identity.name: held.identity.quota for held in self._held}

    def identify(self, secret: str, wall_ns: int) -> Identity:
        """Whose key this is; `Unauthorized` if nobody's, or if it has expired."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        found = None
        for held in self._held:  # all of them, so that the time taken does not tell which one it is
            if hmac.compare_digest(digest, held.digest):
                found = held
        return _unexpired(found, wall_ns)

    def confirm(self, identity: Identity, wall_ns: int) -> Identity:
        """What `identity` may do now; `Unauthorized` if its key is gone or has expired."""
        return _unexpired(self._by_id.get(identity.id), wall_ns)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(held.identity.name for held in self._held)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._by_id)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(sorted(self.names))})"


def _identity(entry: KeyEntry) -> Identity:
    return Identity(
        name=entry.name,
        scopes=frozenset(SCOPES) if "admin" in entry.scopes else entry.scopes,
        prefixes=entry.prefixes,
        quota=entry.quota,
        id=hashlib.sha256(entry.name.encode() + b"\0" + entry.digest).hexdigest()[:32],
    )


def _unexpired(held: _Held | None, wall_ns: int) -> Identity:
    if held is None:
        raise Unauthorized("the key is not known here")
    if held.expires_wall_ns is not None and held.expires_wall_ns <= wall_ns:
        raise Unauthorized(f"key {held.identity.name!r} has expired")
    return held.identity


_BEARER = re.compile(r"bearer +([!-~]+) *", re.IGNORECASE | re.ASCII)


class KeyedAccess:
    """Admits whoever sends `Authorization: Bearer <key>` with a key of the present keyring.

    Host and Origin do not matter: a browser adds no key by itself, so a page that has none can do
    nothing. Listeners hear the ids that stopped being good, to end what was begun under them.
    """

    keyed = True

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self._listeners: list[Callable[[frozenset[str]], None]] = []

    def admit(
        self, *, authorization: str | None, host: str | None, origin: str | None, wall_ns: int
    ) -> Identity:
        """Whose key was sent."""
        if not authorization:
            raise Unauthorized("this server needs a key: send Authorization: Bearer <key>")
        if (bearer := _BEARER.fullmatch(authorization)) is None:
            raise Unauthorized("Authorization is not of the form: Bearer <key>")
        return self.keyring.identify(bearer[1], wall_ns)

    def known(self, host: bytes | None) -> Identity | None:
        return None

    def confirm(self, identity: Identity, wall_ns: int) -> Identity:
        return self.keyring.confirm(identity, wall_ns)

    def quotas(self) -> Mapping[str, Quota]:
        return self.keyring.quotas

    def replace(self, keyring: Keyring) -> None:
        """Use these keys from now on."""
        gone = self.keyring.ids - keyring.ids
        self.keyring = keyring
        for listener in self._listeners:
            listener(gone)

    def listen(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Call `listener` after each change of keys, with the ids that are gone."""
        self._listeners.append(listener)


class ReloadedKeys:
    """A service that keeps `access` at what the keys file says.

    A file that cannot be read, is malformed or empty changes nothing and is logged once: a slip of
    the editor neither locks everybody out nor lets anybody in.
    """

    name = "keys"

    def __init__(
        self, source: KeySource, *, pool: BlockingPool, period_ns: int = SECOND_NS
    ) -> None:
        """Load the keys, blocking, as befits a start. Raises `InvalidConfig`."""
        if period_ns < 1:
            raise InvalidConfig("period_ns must be positive")
        self.access = KeyedAccess(Keyring(source.load()))
        self._source = source
        self._pool = pool
        self._period_ns = period_ns
        self._one_at_a_time = asyncio.Lock()
        self._complaint: str | None = None

    async def run(self) -> None:
        """Look at the file once in each period, until cancelled."""
        while True:
            await sleep_ns(self._period_ns)
            try:
                await self.reload()
            except InvalidConfig as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    logger.error("the keys stay as they were: %s", error)
            except (Backpressure, Closing):
                continue  # the pool is full or going away; the file will be there next time

    async def reload(self) -> bool:
        """Look at the file now; whether it had changed. `InvalidConfig` leaves the old keys."""
        async with self._one_at_a_time:
            entries = await self._pool.run(self._source.load_if_changed)
            self._complaint = None
            if entries is None:
                return False
            self.access.replace(Keyring(entries))
            logger.info("keys reloaded: %d", len(entries))
            return True


# --- open access


class OpenAccess:
    """Admits the machine's own programs where no keys are configured, and no web page from outside.

    A page can make a browser send requests to loopback. Its Origin gives it away; and if it calls
    us by a name of its own that it let point here (DNS rebinding), the Host does. `insecure` is for
    those who asked for it: any Host is good, and an Origin that is the same as the Host.
    """

    keyed = False

    def __init__(self, cors: Cors, *, insecure: bool = False) -> None:
        if cors.any_origin and not insecure:
            raise InvalidConfig(
                "--cors-origin '*' without keys lets every web page write to this server: name the"
                " origins, configure keys, or add --allow-insecure"
            )
        self._cors = cors
        self._insecure = insecure
        self._known: set[bytes] = set()  # hosts that were good, without key or origin

    def known(self, host: bytes | None) -> Identity | None:
        """`ANYONE` if `admit` has let in a request to this Host before."""
        return ANYONE if host in self._known else None

    def admit(
        self, *, authorization: str | None, host: str | None, origin: str | None, wall_ns: int
    ) -> Identity:
        """`ANYONE`; `Forbidden` if a web page from elsewhere may be behind the request."""
        if not self._insecure and (host is None or not is_loopback_authority(host)):
            raise Forbidden(
                "without keys this server answers to loopback names only, such as localhost;"
                " the Host of this request is another",
                detail={"host": (host or "")[:255]},
            )
        if origin is not None and not self._is_ours(origin, host or ""):
            raise Forbidden(
                "without keys this server takes no requests from web pages of other origins;"
                " allow one with --cors-origin",
                detail={"origin": origin[:255]},
            )
        if host is not None and host.isascii() and len(self._known) < HOSTS_REMEMBERED:
            self._known.add(host.encode())
        return ANYONE

    def confirm(self, identity: Identity, wall_ns: int) -> Identity:
        return identity

    def quotas(self) -> Mapping[str, Quota]:
        return NO_QUOTAS

    def _is_ours(self, origin: str, host: str) -> bool:
        if self._cors.allows(origin):
            return True
        parsed = parse_origin(origin)
        if parsed is None or parsed.scheme not in DEFAULT_PORTS:
            return False
        if is_loopback(parsed.host):
            return True
        authority = parse_authority(host, default_port=DEFAULT_PORTS[parsed.scheme])
        return authority == (parsed.host, parsed.port)


def check_bind(host: str, *, keyed: bool, allow_insecure: bool) -> None:
    """Raises `InvalidConfig` if listening on `host` would open the server to the network."""
    if keyed or allow_insecure or is_loopback(host.lower().removesuffix(".")):
        return
    raise InvalidConfig(
        f"refusing to listen on {host} without keys: whoever can reach it could read and write"
        " everything. Configure keys with --keys FILE (or FAIRWAY_KEYS_FILE, FAIRWAY_API_KEYS),"
        " or say --allow-insecure (or FAIRWAY_ALLOW_INSECURE=1)"
    )


# --- logs


def scrubbed(target: str) -> str:
    """A request target as it may be logged: what could be a secret in its query is starred out."""
    path, mark, query = target.partition("?")
    if not mark:
        return target
    parts = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        secret = unquote(name).strip().lower() in SECRET_PARAMETERS
        parts.append(f"{name}{equals}***" if secret and equals else part)
    return f"{path}?{'&'.join(parts)}"
