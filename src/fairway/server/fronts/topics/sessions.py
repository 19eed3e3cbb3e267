"""Watch sessions: what a multi-topic stream follows, kept so that a GET can open it by its id.

The definition is stored with the log (it survives a restart of the server); how far its reader is
stands in the event ids that the client sends back, and nowhere else: what was sent is not what
arrived. Both name incarnations of topics, not topics: one that was made anew is noticed, however
late. A session that nobody reads is forgotten after five minutes.

They are bounded, all together and for each key; the last ones are for keys that have few, so that
nobody can take the place of all others.
"""

from __future__ import annotations

import base64
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import FairwayError, NotFound, Throttled
from fairway.storage.writer import Durability
from fairway.topics.batch import Projection
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.watching import SharedView

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.kernel.catalog import Catalog, Named
    from fairway.topics.watching import Encoder
    from fairway.wire.topics import WatchRequest

logger = logging.getLogger("fairway.server")

KIND: Final = "watch"
SESSION_TTL_MS: Final = 300_000
SESSIONS_MAX: Final = 10_000
RESERVED: Final = 2_000
"""How many of them are for keys that have fewer than `FEW`."""
FEW: Final = 100
PURGE_MAX: Final = 1000
"""Sessions removed from the store by one write."""


class Followed(msgspec.Struct, array_like=True, frozen=True):
    """One topic of a session: its incarnation when it was first followed, and where it begins."""

    topic: str
    epoch: int
    from_seq: int


class Definition(msgspec.Struct, array_like=True):
    """What a session follows and how. Topics that bear the prefix are added as they come."""

    identity: str
    topics: list[Followed]
    prefix: str | None
    nodes: list[str]
    match: TagMatch | None
    limit: int
    max_bytes: int
    heartbeat_ms: int
    tags: bool
    meta: bool
    data: bool
    touch: bool = True

    def view(self, encoder: Encoder, *, dedupe_node: bool) -> SharedView:
        return SharedView(
            encoder,
            Selection(frozenset(self.nodes) if dedupe_node else NO_NODES, self.match),
            Projection(self.tags, self.meta, self.data),
            self.limit,
            self.max_bytes,
            self.touch,
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Definition).decode


class WatchSession:
    """A definition, for as long as somebody reads it now and then."""

    def __init__(self, wid: str, definition: Definition, expires_ms: int) -> None:
        self.wid = wid
        self.definition = definition
        self.expires_ms = expires_ms
        self.open = 0
        """Streams that read it now."""


class _Held:
    """The sessions of one key: how many, and those that nobody reads, the first to expire first."""

    __slots__ = ("count", "idle")

    def __init__(self) -> None:
        self.count = 0
        self.idle: OrderedDict[str, WatchSession] = OrderedDict()

    def next_ms(self) -> int | None:
        """When the next one expires; None if all of them are read."""
        return next((session.expires_ms for session in self.idle.values()), None)


class WatchSessions:
    """All sessions. Expired ones go when new ones come and when upkeep looks."""

    def __init__(self, catalog: Catalog, random_bytes: Callable[[int], bytes]) -> None:
        self._catalog = catalog
        self._random_bytes = random_bytes
        self._sessions: dict[str, WatchSession] = {}
        self._all = _Held()
        self._by_key: dict[str, _Held] = {}
        self._forgotten: list[str] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def restore(self, stored: dict[str, Named], now_ms: int) -> None:
        """What the last run of the server left."""
        for wid, named in stored.items():
            definition = _decode(named.value)
            session = WatchSession(wid, definition, now_ms + SESSION_TTL_MS)
            self._count(definition.identity)
            self._keep(session)

    async def create(
        self, definition: Definition, now_ms: int, *, most: int = 0, keyed: bool = False
    ) -> WatchSession:
        """Make a session. Raises `Throttled` if its key has `most` already, or has more than a few
        while there is no room but the reserve; 0 is no bound. Without keys nothing is reserved."""
        await self.purge(now_ms)
        key = definition.identity
        self._check(self._by_key.get(key), most, now_ms, keyed)
        token = base64.urlsafe_b64encode(self._random_bytes(18)).decode()
        session = WatchSession(f"wid_{token}", definition, now_ms + SESSION_TTL_MS)
        self._count(key)  # before it is written: those that come meanwhile find it counted
        try:
            await self.save(session)
        except BaseException:
            self._discount(key)
            raise
        self._keep(session)
        return session

    def _check(self, held: _Held | None, most: int, now_ms: int, keyed: bool) -> None:
        count = held.count if held is not None else 0
        room = SESSIONS_MAX - (RESERVED if keyed and count >= FEW else 0)
        if held is not None and most and count >= most:
            raise _refusal(f"this key has {count:,} watch sessions", most, held.next_ms(), now_ms)
        if self._all.count >= room:
            raise _refusal(
                f"{self._all.count:,} watch sessions exist", room, self._all.next_ms(), now_ms
            )

    def _count(self, key: str) -> None:
        self._all.count += 1
        self._by_key.setdefault(key, _Held()).count += 1

    def _discount(self, key: str) -> None:
        self._all.count -= 1
        held = self._by_key[key]
        held.count -= 1
        if not held.count:
            del self._by_key[key]

    def _keep(self, session: WatchSession) -> None:
        self._sessions[session.wid] = session
        self._rest(session)

    def _rest(self, session: WatchSession) -> None:
        """Nobody reads it from now on: the last one to expire."""
        for held in (self._all, self._by_key[session.definition.identity]):
            held.idle[session.wid] = session
            held.idle.move_to_end(session.wid)

    async def save(self, session: WatchSession) -> None:
        await self._catalog.put(
            KIND, session.wid, _encode(session.definition), durability=Durability.DISK
        )

    async def try_save(self, session: WatchSession) -> None:
        """Write down what was added. If that fails, it is found again by its prefix."""
        try:
            await self.save(session)
        except FairwayError as error:
            logger.warning("watch session not saved: %s", error)

    def get(self, wid: str, now_ms: int) -> WatchSession:
        session = self._sessions.get(wid)
        if session is None or (not session.open and session.expires_ms <= now_ms):
            raise NotFound("watch", wid)
        return session

    def opened(self, session: WatchSession) -> None:
        """A stream reads it; `closed` must follow."""
        session.open += 1
        for held in (self._all, self._by_key[session.definition.identity]):
            held.idle.pop(session.wid, None)

    def closed(self, session: WatchSession, now_ms: int) -> None:
        session.open -= 1
        session.expires_ms = now_ms + SESSION_TTL_MS
        if not session.open:
            self._rest(session)

    async def purge(self, now_ms: int) -> None:
        """Forget what expired. What cannot be removed from the store now is removed next time."""
        idle = self._all.idle
        while idle:
            session = next(iter(idle.values()))
            if session.expires_ms > now_ms:
                break
            key = session.definition.identity
            del idle[session.wid], self._by_key[key].idle[session.wid]
            del self._sessions[session.wid]
            self._discount(key)
            self._forgotten.append(session.wid)
        gone = self._forgotten[:PURGE_MAX]
        if not gone:
            return
        try:
            await self._catalog.remove(*((KIND, wid) for wid in gone), durability=Durability.DISK)
        except FairwayError as error:
            logger.warning("expired watch sessions not removed, will try again: %s", error)
        else:
            del self._forgotten[: len(gone)]


def _refusal(why: str, maximum: int, next_ms: int | None, now_ms: int) -> Throttled:
    """Says when the next one expires: nothing else makes room."""
    wait_ms = SESSION_TTL_MS if next_ms is None else max(next_ms - now_ms, 1)
    return Throttled(
        why, retry_after_ns=wait_ms * 1_000_000, limit="watch_sessions", maximum=maximum
    )


def define(
    request: WatchRequest,
    topics: list[Followed],
    *,
    prefix: str | None,
    identity: str,
    limits: tuple[int, int],
) -> Definition:
    """A definition from a request whose topics were looked up; limits are clamped, not refused."""
    limit_max, bytes_max = limits
    node = request.node
    return Definition(
        identity=identity,
        topics=topics,
        prefix=prefix,
        nodes=[] if node is None else [node] if isinstance(node, str) else list(node),
        match=TagMatch.of(request.match) if request.match is not None else None,
        limit=min(request.limit or 256, limit_max),
        max_bytes=min(request.max_batch_bytes or 1024 * 1024, bytes_max),
        heartbeat_ms=min(max(request.heartbeat_ms, 1000), 60_000),
        tags=request.include_tags,
        meta=request.include_meta,
        data=request.include_data,
        touch=request.touch,
    )
