"""The only reader of the environment and of files people write: settings, keys, certificates.

People's units (seconds, dates, hex, `read+write`) become ours here, once. Secrets become SHA-256
digests here, and no message repeats a value that could be one.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from fairway.core.amounts import wrong_whole
from fairway.errors import InvalidConfig
from fairway.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Scope: TypeAlias = Literal["read", "write", "delete", "admin"]
"""What a key may do. `admin` implies the others."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
KEYS_MAX: Final = 1_000
"""Keys at most: each request is compared with all of them."""
KEYS_FILE_BYTES_MAX: Final = 1024 * 1024
SECOND_NS: Final = 1_000_000_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_VISIBLE = re.compile(r"[!-~]{1,1024}")  # what a header can carry
_PREFIX = re.compile(r"[!-)+-~]{1,255}")  # the same without a star
_HEX_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")
_URL = re.compile(r"https?://[A-Za-z0-9._\[\]:%-]+(/[A-Za-z0-9._~/%-]*)?")
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")
_DURATIONS: Final = {
    **{"ms": 1, "s": 1000, "m": 60_000, "min": 60_000},
    **{"h": 3_600_000, "d": 86_400_000, "w": 604_800_000},
}
_SIZES: Final = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}
QUOTA_MAX: Final = 2**53
"""The largest whole number that JSON numbers hold exactly."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one key may use. 0 is no limit."""

    topics: int = 100_000
    """Topics that exist because of this key."""
    stored_bytes: int = 0
    """Bytes of live records in them."""
    requests_per_s: int = 0
    records_per_s: int = 0
    """Records appended."""
    bytes_per_s: int = 0
    """Bytes appended."""
    burst_ns: int = SECOND_NS
    """How much of its rates a quiet key saves up. Raising it allows longer bursts."""
    connections: int = 1_000
    """Watchers, event streams and WebSockets open at the same time."""
    in_flight: int = 1_000
    """Requests under way at the same time."""
    watch_sessions: int = 1_000
    """Watches of several topics that exist because of this key, read or not."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least = 1 if name == "burst_ns" else 0
            if wrong := wrong_whole(name, getattr(self, name), least=least, most=QUOTA_MAX):
                raise InvalidConfig(f"a quota's {wrong}")


UNLIMITED: Final = Quota(topics=0, connections=0, in_flight=0, watch_sessions=0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KeyEntry:
    """One API key or bearer token, as configured. The secret itself is not kept."""

    name: str
    digest: bytes
    """SHA-256 of the secret."""
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...] = ()
    """What the names it may touch begin with; none is every name."""
    expires_wall_ns: int | None = None
    quota: Quota = Quota()

    def __repr__(self) -> str:
        return f"KeyEntry({self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerSettings:
    """What `fairway serve` is told: by its options, else by `FAIRWAY_*`, else by the defaults."""

    host: str = "127.0.0.1"
    """The address to listen on. Beyond loopback it takes keys, or `allow_insecure`."""
    port: int = 4000
    """0 takes any free port."""
    data: str | Path = Path("fairway-data")
    """The data directory, or a `postgresql://…`; it has one owner at a time."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may call this server; none turns CORS off."""
    keys_file: Path | None = None
    """A TOML file of keys, reloaded when it changes."""
    api_keys: tuple[KeyEntry, ...] = ()
    """Keys besides those of the file, fixed until the next start."""
    tls_cert: Path | None = None
    """The certificate chain (PEM). With `tls_key` it turns HTTP into HTTPS."""
    tls_key: Path | None = None
    standby: bool = False
    """Wait for the data if another process has it, and take over when that ends."""
    allow_insecure: bool = False
    """Without keys, listen anywhere and answer to any Host: whoever can reach it may write."""
    of_parts: Mapping[str, Any] = field(default_factory=dict)
    """What is set for parts, by the name of the setting: see `PART_SETTINGS`."""

    def __post_init__(self) -> None:
        _host(self.host)
        _port(str(self.port))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidConfig(
                "--tls-cert and --tls-key (FAIRWAY_TLS_CERT, FAIRWAY_TLS_KEY)"
                " are given together or not at all"
            )

    def __repr__(self) -> str:
        facts = {name: getattr(self, name) for name in self.__slots__}
        facts["data"] = masked(self.data)
        return f"ServerSettings({', '.join(f'{name}={value!r}' for name, value in facts.items())})"

    @property
    def keyed(self) -> bool:
        """Whether a key is needed. Decided at the start: no reload of the file opens a server."""
        return self.keys_file is not None or bool(self.api_keys)

    def key_source(self) -> KeySource:
        return KeySource(self.keys_file, fixed=self.api_keys)

    def tls_context(self) -> ssl.SSLContext | None:
        """The context of HTTPS, read from the files now; None if this is plain HTTP."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        for path in (self.tls_cert, self.tls_key):
            _read(path, limit=KEYS_FILE_BYTES_MAX)  # ssl does not say which of the two is missing
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Asked for a passphrase, ssl would wait at the terminal; an empty one fails instead.
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "not a certificate and its key"
            raise InvalidConfig(
                f"{self.tls_cert} and {self.tls_key} cannot be used for TLS: {reason};"
                " they are PEM, belong together, and the key has no passphrase"
            ) from None
        return context


class PartSetting(NamedTuple):
    """A setting of one part: an option of `fairway serve`, and a variable of the environment."""

    name: str
    """Of a part that has one setting, its own."""
    parse: Callable[[str], Any]
    """Makes the value of a text. Raises `ValueError` for one that is malformed."""
    metavar: str
    """What stands for the value in `--help`."""
    help: str

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "FAIRWAY_" + self.name.upper()


PART_SETTINGS: Final = [
    PartSetting("graphs", Path, "DIR", "Run the graphs that its files declare, live."),
]
"""The settings of all parts; `ServerSettings.of_parts` has their values."""


def read_settings(environ: Mapping[str, str] | None = None, **given: Any) -> ServerSettings:
    """Settings from `given`, then the environment, then the defaults.

    A value of None counts as not given. A variable that is empty counts as not set; one that is
    malformed is refused by name, unless `given` overrides it.
    """
    environ = os.environ if environ is None else environ
    chosen = {name: value for name, value in given.items() if value is not None}
    of_parts = {one.name: (one.variable, one.parse) for one in PART_SETTINGS}
    for name, (variable, parse) in (_VARIABLES | of_parts).items():
        text = environ.get(variable, "").strip()
        if name in chosen or not text:
            continue
        try:
            chosen[name] = parse(text)
        except ValueError as error:
            raise InvalidConfig(f"{variable}: {error}") from None
    for_parts = {name: chosen.pop(name) for name in of_parts if name in chosen}
    return ServerSettings(**chosen, of_parts=for_parts)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientSettings:
    """Where a client finds its server, and the key it shows there."""

    url: str = "http://127.0.0.1:4000"
    key: str | None = None

    def __post_init__(self) -> None:
        try:
            fits = _URL.fullmatch(self.url) is not None and urlsplit(self.url).port != 0
            (urlsplit(self.url).hostname or "").encode("idna")  # as it is done to look it up
        except ValueError:  # a port out of range, brackets that do not close, no name of a host
            fits = False
        if not fits:
            raise InvalidConfig(
                "the server's URL is http:// or https://, a host and perhaps a port and a path,"
                " such as http://127.0.0.1:4000"
            )
        if self.key is not None and not _VISIBLE.fullmatch(self.key):
            raise InvalidConfig("a key is 1 to 1024 visible ASCII characters, without spaces")

    def __repr__(self) -> str:
        return f"ClientSettings(url={self.url!r})"


def read_client_settings(
    url: str | None = None, key: str | None = None, *, environ: Mapping[str, str] | None = None
) -> ClientSettings:
    """What was given, else `FAIRWAY_URL` and `FAIRWAY_API_KEY`, else the defaults."""
    environ = os.environ if environ is None else environ
    url = url or environ.get("FAIRWAY_URL", "").strip() or ClientSettings().url
    key = key or environ.get("FAIRWAY_API_KEY", "").strip() or None
    return ClientSettings(url=url.rstrip("/"), key=key)


def server_of(given: str | None, *, environ: Mapping[str, str] | None = None) -> str | None:
    """The server whose topics a worker uses: what was given, else `FAIRWAY_SERVER`."""
    environ = os.environ if environ is None else environ
    return given or environ.get("FAIRWAY_SERVER", "").strip() or None


def seed_of(given: int | None, *, environ: Mapping[str, str] | None = None) -> int | None:
    """The seed that tests play with again: what was given, else `FAIRWAY_SEED`."""
    environ = os.environ if environ is None else environ
    text = environ.get("FAIRWAY_SEED", "").strip()
    if given is not None or not text:
        return given
    try:
        return int(text)
    except ValueError:
        raise InvalidConfig(f"FAIRWAY_SEED: a seed is a whole number, not {text!r}") from None


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `30s`, `15m`, `1h`, `7d` or `2w`.

    A number without a unit is refused, and so is 0: half of those who write `60` mean seconds.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is not None and not found[2]:
        raise InvalidConfig(
            f"a duration has a unit: write {found[1]}s for seconds, or one of"
            f" {found[1]}ms, {found[1]}m, {found[1]}h, {found[1]}d, {found[1]}w"
        )
    return _amount(text, _DURATIONS, "a duration is a number and a unit, such as 500ms, 30s or 7d")


def parse_bytes(text: str) -> int:
    """Bytes of `512`, `64kB`, `10MB` or `1GiB`: powers of 1000, with an i of 1024."""
    return _amount(text, _SIZES, "a size is a number and a unit, such as 512, 10MB or 1GiB")


def parse_api_keys(text: str) -> tuple[KeyEntry, ...]:
    """Keys written as `key[:scopes[:prefixes]]`, with commas between them.

    Scopes and prefixes are joined by `+`. Without scopes the key is good for all of them, without
    prefixes for every name. The names are `env-1`, `env-2` and so on.
    """
    written = [entry for part in text.split(",") if (entry := part.strip())]
    entries = []
    for number, entry in enumerate(written, 1):
        secret, _, rest = entry.partition(":")
        scopes, _, prefixes = rest.partition(":")
        try:
            entries.append(
                KeyEntry(
                    name=f"env-{number}",
                    digest=digest_of(secret),
                    scopes=_scopes(scopes.split("+") if scopes else SCOPES),
                    prefixes=_prefixes(prefixes.split("+")) if prefixes else (),
                )
            )
        except ValueError as error:
            raise InvalidConfig(f"entry {number}: {error}") from None
    return _checked(entries, "keys")


def parse_keys(text: str, place: str) -> tuple[KeyEntry, ...]:
    """The `[[key]]` tables of a keys file. `InvalidConfig` names `place` and the line or key."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # syntax, or too deep or too long to be meant
        raise InvalidConfig(f"{place}: {error}") from None
    tables = document.pop("key", [])
    if document or not isinstance(tables, list):
        unknown = ", ".join(repr(name) for name in document) or "[key]"
        raise InvalidConfig(f"{place}: {unknown} is unknown: keys are tables headed [[key]]")
    entries = []
    for number, table in enumerate(tables, 1):
        try:
            entries.append(_entry(table))
        except ValueError as error:
            raise InvalidConfig(f"{place}: key {number}{_called(table)}: {error}") from None
    return _checked(entries, place)


def digest_of(secret: str) -> bytes:
    """SHA-256 of a secret that a header can carry; `InvalidConfig` if it is another string."""
    if not _VISIBLE.fullmatch(secret):
        raise InvalidConfig("a secret is 1 to 1024 visible ASCII characters, without spaces")
    return hashlib.sha256(secret.encode()).digest()


class KeySource:
    """Where keys come from: a file that may change, and entries that do not.

    The file is read whole each time it is asked after. Its date would not do: two writes within a
    tick of the kernel's clock have the same, and network file systems remember an old one.
    """

    def __init__(self, path: Path | None, *, fixed: tuple[KeyEntry, ...] = ()) -> None:
        self.path = path
        self._fixed = fixed
        self._text: str | None = None  # of the last good file

    def load(self) -> tuple[KeyEntry, ...]:
        """Every key. `InvalidConfig` if the file cannot be read, is malformed or has no key."""
        if self.path is None:
            return self._fixed
        text = _read(self.path, limit=KEYS_FILE_BYTES_MAX)
        return self._parse(text, self.path)

    def load_if_changed(self) -> tuple[KeyEntry, ...] | None:
        """Every key if the file is not as it was at the last success, else None. May be blocking.

        Raises as `load` does, at each call until the file is mended.
        """
        if self.path is None:
            return None
        text = _read(self.path, limit=KEYS_FILE_BYTES_MAX)
        return None if text == self._text else self._parse(text, self.path)

    def _parse(self, text: str, path: Path) -> tuple[KeyEntry, ...]:
        entries = _checked([*parse_keys(text, str(path)), *self._fixed], str(path))
        self._text = text
        return entries


# --- one entry of a keys file

_Amount: TypeAlias = Annotated[int, Meta(ge=0, le=QUOTA_MAX)]


class _QuotaTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topics: _Amount = Quota().topics
    stored_bytes: _Amount = Quota().stored_bytes
    requests_per_second: _Amount = Quota().requests_per_s
    records_per_second: _Amount = Quota().records_per_s
    bytes_per_second: _Amount = Quota().bytes_per_s
    burst_seconds: Annotated[float, Meta(ge=0.001, le=86_400)] = Quota().burst_ns / SECOND_NS
    connections: _Amount = Quota().connections
    in_flight: _Amount = Quota().in_flight
    watch_sessions: _Amount = Quota().watch_sessions

    def quota(self) -> Quota:
        return Quota(
            topics=self.topics,
            stored_bytes=self.stored_bytes,
            requests_per_s=self.requests_per_second,
            records_per_s=self.records_per_second,
            bytes_per_s=self.bytes_per_second,
            burst_ns=round(self.burst_seconds * SECOND_NS),
            connections=self.connections,
            in_flight=self.in_flight,
            watch_sessions=self.watch_sessions,
        )


class _KeyTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    secret: str | None = None
    digest: str | None = None
    scopes: list[str]
    prefixes: list[str] | None = None
    expires: Any = None
    quota: _QuotaTable = _QuotaTable()


def _entry(written: object) -> KeyEntry:
    table = msgspec.convert(written, _KeyTable)
    if not _NAME.fullmatch(table.name):
        raise InvalidConfig(
            "name is 1 to 64 characters of A-Z a-z 0-9 . _ : @ -, the first a letter or a digit"
        )
    return KeyEntry(
        name=table.name,
        digest=_digest(table),
        scopes=_scopes(table.scopes),
        prefixes=() if table.prefixes is None else _prefixes(table.prefixes),
        expires_wall_ns=_expiry(table.expires),
        quota=table.quota.quota(),
    )


def _digest(table: _KeyTable) -> bytes:
    if table.secret is not None and table.digest is None:
        return digest_of(table.secret)
    if table.digest is None or table.secret is not None:
        raise InvalidConfig("a key has either a secret or a digest")
    if not _HEX_DIGEST.fullmatch(table.digest):
        raise InvalidConfig("digest is the SHA-256 of the secret in 64 hex digits")
    return bytes.fromhex(table.digest)


def _scopes(written: Sequence[str]) -> frozenset[Scope]:
    for at, scope in enumerate(written):
        if scope not in SCOPES:  # not repeated: it may be the rest of a secret with a colon in it
            raise InvalidConfig(f"scopes[{at}] is none of {', '.join(SCOPES)}")
    if not written:
        raise InvalidConfig(f"scopes is empty; name some of {', '.join(SCOPES)}")
    return frozenset(scope for scope in SCOPES if scope in written)


def _prefixes(written: Sequence[str]) -> tuple[str, ...]:
    """Prefixes as `startswith` wants them; a final star is how people say the same."""
    if not written:
        raise InvalidConfig("prefixes is empty; leave it out to allow every name")
    if "*" in written:
        return ()
    prefixes = [prefix.removesuffix("*") for prefix in written]
    for at, prefix in enumerate(prefixes):
        if not _PREFIX.fullmatch(prefix):
            raise InvalidConfig(f"prefixes[{at}] is not how a name can begin, such as 'orders.'")
    return tuple(prefixes)


def _expiry(written: object) -> int | None:
    match written:
        case None:
            return None
        case datetime(tzinfo=zone) as moment if zone is not None:
            pass
        case date() as day if not isinstance(day, datetime):
            moment = datetime.combine(day, time(), UTC)
        case _:
            raise InvalidConfig(
                "expires is a date (the start of it, in UTC) or a time with its zone, unquoted,"
                " such as 2030-01-01 or 2030-01-01T12:00:00Z"
            )
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000


def _called(table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return f" ({name!r})" if isinstance(name, str) and _NAME.fullmatch(name) else ""


def _checked(entries: Iterable[KeyEntry], place: str) -> tuple[KeyEntry, ...]:
    """The entries, if each request can be told to come from one of them."""
    entries = tuple(entries)
    if not entries:
        raise InvalidConfig(f"{place}: there is no key")
    if len(entries) > KEYS_MAX:
        raise InvalidConfig(f"{place}: {len(entries):,} keys, at most {KEYS_MAX:,}")
    names: set[str] = set()
    digests: dict[bytes, str] = {}
    for entry in entries:
        if entry.name in names:
            raise InvalidConfig(f"{place}: two keys are called {entry.name!r}")
        if entry.digest in digests:
            raise InvalidConfig(
                f"{place}: keys {digests[entry.digest]!r} and {entry.name!r} have the same secret"
            )
        names.add(entry.name)
        digests[entry.digest] = entry.name
    return entries


def _read(path: Path, *, limit: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise InvalidConfig(f"{path}: more than {limit:,} bytes")
        return content.decode()
    except OSError as error:
        raise InvalidConfig(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: not UTF-8 at byte {error.start}") from None


# --- one variable of the environment


def _host(text: str) -> str:
    address = re.fullmatch(r"[0-9A-Fa-f.:]*(%[A-Za-z0-9._-]+)?", text) and text.count(":") != 1
    if not text or not (address or re.fullmatch(r"[A-Za-z0-9._-]+", text)):
        raise InvalidConfig(
            "the host is an address or a name, without port or brackets, such as 127.0.0.1 or ::1"
        )
    return text


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65_535:
        raise InvalidConfig("the port is a number in 0..65535")
    return int(text)


def _amount(text: str, units: Mapping[str, int], complaint: str) -> int:
    found = _AMOUNT.fullmatch(text.strip())
    unit = units.get(found[2].lower()) if found is not None else None
    if found is None or unit is None:
        raise InvalidConfig(complaint)
    return round(Decimal(found[1]) * unit)


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise InvalidConfig("say 1 or 0")


def _origins(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


_VARIABLES: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "host": ("FAIRWAY_HOST", _host),
    "port": ("FAIRWAY_PORT", _port),
    "data": ("FAIRWAY_DATA", str),  # a Path would make one slash of the two of an address
    "cors_origins": ("FAIRWAY_CORS_ORIGINS", _origins),
    "keys_file": ("FAIRWAY_KEYS_FILE", Path),
    "api_keys": ("FAIRWAY_API_KEYS", parse_api_keys),
    "tls_cert": ("FAIRWAY_TLS_CERT", Path),
    "tls_key": ("FAIRWAY_TLS_KEY", Path),
    "standby": ("FAIRWAY_STANDBY", _switch),
    "allow_insecure": ("FAIRWAY_ALLOW_INSECURE", _switch),
}
