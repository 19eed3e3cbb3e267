"""Addresses of databases: whether everybody who reads one finds the same parts in it.

An address whose password holds a `/`, `@`, `?` or `#` as it is can be cut in several ways. libpq
and asyncpg cut it differently, and either may then print a piece of the password as the name of a
host or of a database. So it is refused before anybody reads it.
"""

from __future__ import annotations

import re
from typing import Final

from fairway.errors import InvalidConfig

SCHEMES: Final = ("postgresql://", "postgres://")
NO_ADDRESS: Final = (
    "the address of the database cannot be read: it is postgresql://USER:PASSWORD@HOST:PORT/NAME,"
    " with / @ ? # % and spaces in a user or a password percent-encoded (%2F %40 %3F %23 %25 %20)"
)
"""Instead of what a driver says of an address: it would quote a part of it."""
NO_CONNECTION_STRING: Final = (
    "this is a connection string of libpq; give the address of a database as"
    " postgresql://USER:PASSWORD@HOST:PORT/NAME"
)

_PARTS: Final = re.compile(r"([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?(#.*)?", re.DOTALL)
_HOST: Final = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SETTING: Final = re.compile(
    r"\s*(?:host|hostaddr|port|user|password|dbname|service|passfile|sslmode|application_name"
    r"|connect_timeout)\s*="
)


def check_address(address: str) -> None:
    """Raises `InvalidConfig`, without any part of it, for an address of PostgreSQL that could be
    read in more than one way. Whatever else it is, is left to who opens it."""
    scheme = next((one for one in SCHEMES if address.lower().startswith(one)), None)
    if scheme is not None and not _clear(address[len(scheme) :]):
        raise InvalidConfig(NO_ADDRESS)


def refuse_connection_string(place: str) -> None:
    """Raises `InvalidConfig` for `host=… password=…`: it would be taken for a directory."""
    if _SETTING.match(place):
        raise InvalidConfig(NO_CONNECTION_STRING)


def _clear(rest: str) -> bool:
    found = _PARTS.fullmatch(rest)
    assert found is not None, "every text has these parts"
    authority, path, query, fragment = found.groups()
    user, at, hosts = authority.rpartition("@")
    # Without a user, what looks like HOST:PORT may be USER:PASSWORD, cut off too soon.
    cut_off = not at and ":" in authority and "@" in (query or "")
    return not (
        fragment is not None
        or cut_off
        or "@" in user
        or "@" in (path or "")
        or any(_HOST.fullmatch(host) is None for host in hosts.split(","))
        or re.search(r"\s", authority)
        or _BARE_PERCENT.search(rest)
    )
