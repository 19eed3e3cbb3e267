"""Which web pages may call this server from a browser: hosts, origins and the headers of CORS."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = tuple[tuple[str, str], ...]

# --- hosts and origins

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,255}))(?::(?P<port>[0-9]{0,5}))?"
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class Authority(NamedTuple):
    """A host and a port, spelled in the one way in which they can be compared."""

    host: str
    port: int


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


def parse_authority(text: str, *, default_port: int) -> Authority | None:
    """The host, in lower case without brackets and final dot, and the port; None if malformed."""
    if (found := _AUTHORITY.fullmatch(text)) is None:
        return None
    port = int(found["port"]) if found["port"] else default_port
    if found["name"]:
        return Authority(found["name"].lower().removesuffix("."), port)
    try:
        return Authority(IPv6Address(found["v6"]).compressed, port)
    except ValueError:
        return None


def parse_origin(text: str) -> Origin | None:
    """A web origin, `scheme://host[:port]`; None for `null` and whatever else is none."""
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or not _SCHEME.fullmatch(scheme):
        return None
    authority = parse_authority(rest, default_port=DEFAULT_PORTS.get(scheme, 0))
    return authority and Origin(scheme, authority.host, authority.port)


@lru_cache(maxsize=256)  # asked for each request, and nearly always the same
def is_loopback_authority(text: str) -> bool:
    """Whether a Host header names this machine."""
    authority = parse_authority(text, default_port=0)
    return authority is not None and is_loopback(authority.host)


def is_loopback(host: str) -> bool:
    """Whether a host, in lower case without final dot, can only be this machine.

    Names below `localhost` are: no registrar sells them and browsers do not look them up. Addresses
    in odd spellings (`127.1`, `0x7f000001`) are not.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


# --- CORS

CORS_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
CORS_HEADERS: Final = (
    *("Accept", "Authorization", "Cache-Control", "Content-Type", "Idempotency-Key"),
    *("If-Match", "If-None-Match", "Last-Event-ID", "Traceparent", "Tracestate"),
    *("Producer-Id", "Producer-Epoch", "Producer-Seq"),
    *("Stream-Seq", "Stream-TTL", "Stream-Expires-At", "Stream-Closed", "Stream-Cursor"),
    *("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset"),
)
_CORS_FAMILY = re.compile(r"(?:producer|stream)-[a-z0-9-]{1,64}")
_PREFLIGHT_SECONDS: Final = 600


class Cors:
    """Which web origins may call this server from a browser. With none, CORS is off.

    Cookies and other credentials of the browser are never asked for, so an allowed page can do no
    more than the key it sends.
    """

    def __init__(self, origins: Iterable[str] = (), *, exposed: Iterable[str] = ()) -> None:
        """`exposed` names the response headers that pages may read."""
        self._allowed: set[Origin] = set()
        self.any_origin = False
        for text in origins:
            origin = parse_origin(text.removesuffix("/"))
            if text == "*":
                self.any_origin = True
            elif origin is None:
                raise InvalidConfig(
                    f"{text!r} is not a web origin: scheme://host[:port], such as"
                    " https://shop.example, or * for all"
                )
            else:
                self._allowed.add(origin)
        self._exposed = ", ".join(exposed)

    @property
    def enabled(self) -> bool:
        return self.any_origin or bool(self._allowed)

    def allows(self, origin: str) -> bool:
        return self.any_origin or (bool(self._allowed) and parse_origin(origin) in self._allowed)

    def response_headers(self, origin: str | None) -> Headers:
        """What goes with the response to a request of `origin`, errors included."""
        if not self.enabled:
            return ()
        if origin is None or not self.allows(origin):
            return () if self.any_origin else (("Vary", "Origin"),)
        exposed = (("Access-Control-Expose-Headers", self._exposed),) if self._exposed else ()
        return (*self._allow(origin), *exposed)

    def preflight_headers(self, origin: str | None, requested: str | None = None) -> Headers:
        """The answer to `OPTIONS` of `origin`, empty if it is not allowed.

        `requested` is its `Access-Control-Request-Headers`; of the `Producer-` and `Stream-`
        families any are allowed, of others those in `CORS_HEADERS`.
        """
        if not self.enabled or origin is None or not self.allows(origin):
            return ()
        known = {header.lower() for header in CORS_HEADERS}
        names = [name.strip().lower() for name in (requested or "")[:4096].split(",")]
        extra = {name for name in names if _CORS_FAMILY.fullmatch(name)} - known
        return (
            *self._allow(origin),
            ("Access-Control-Allow-Methods", CORS_METHODS),
            ("Access-Control-Allow-Headers", ", ".join((*CORS_HEADERS, *sorted(extra)))),
            ("Access-Control-Max-Age", str(_PREFLIGHT_SECONDS)),
        )

    def _allow(self, origin: str) -> Headers:
        if self.any_origin:
            return (("Access-Control-Allow-Origin", "*"),)
        # As it was sent: it parsed, so it can break no header, and browsers compare the spelling.
        return (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))
