"""Watch sessions: what a multi-topic stream follows, kept so that a GET can open it by its id.

The definition is stored with the log (it survives a restart of the server); how far its reader is
stands in the event ids that the client sends back, and nowhere else: what was sent is not what
arrived. Both name incarnations of topics, not topics: one that was made anew is noticed, however
late. A session that nobody reads is forgotten after five minutes.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import FairwayError, NotFound, Throttled
from fairway.storage.writer import Durability
from fairway.topics.batch import Projection
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.watching import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.storage.catalog import Catalog, Named
    from fairway.topics.watching import Encoder
    from fairway.wire.topics import WatchRequest

logger = logging.getLogger("fairway.server")

KIND: Final = "watch"
SESSION_TTL_MS: Final = 300_000
SESSIONS_MAX: Final = 10_000
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

    def view(self, encoder: Encoder, *, dedupe_node: bool) -> View:
        return View(
            encoder,
            Selection(frozenset(self.nodes) if dedupe_node else NO_NODES, self.match),
            Projection(self.tags, self.meta, self.data),
            self.limit,
            self.max_bytes,
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Definition).decode


class Session:
    """A definition, for as long as somebody reads it now and then."""

    def __init__(self, wid: str, definition: Definition, expires_ms: int) -> None:
        self.wid = wid
        self.definition = definition
        self.expires_ms = expires_ms
        self.open = 0
        """Streams that read it now."""


class Sessions:
    """All sessions. Expired ones go when new ones come and when upkeep looks."""

    def __init__(self, catalog: Catalog, random_bytes: Callable[[int], bytes]) -> None:
        self._catalog = catalog
        self._random_bytes = random_bytes
        self._sessions: dict[str, Session] = {}
        self._forgotten: list[str] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def restore(self, stored: dict[str, Named], now_ms: int) -> None:
        """What the last run of the server left."""
        for wid, named in stored.items():
            definition = _decode(named.value)
            self._sessions[wid] = Session(wid, definition, now_ms + SESSION_TTL_MS)

    async def create(self, definition: Definition, now_ms: int) -> Session:
        await self.purge(now_ms)
        if len(self._sessions) >= SESSIONS_MAX:
            raise Throttled(
                f"{SESSIONS_MAX:,} watch sessions exist",
                retry_after_ns=10_000_000_000,
                limit="watch_sessions",
                maximum=SESSIONS_MAX,
            )
        token = base64.urlsafe_b64encode(self._random_bytes(18)).decode()
        session = Session(f"wid_{token}", definition, now_ms + SESSION_TTL_MS)
        await self.save(session)
        self._sessions[session.wid] = session
        return session

    async def save(self, session: Session) -> None:
        await self._catalog.put(
            KIND, session.wid, _encode(session.definition), durability=Durability.DISK
        )

    async def try_save(self, session: Session) -> None:
        """Write down what was added. If that fails, it is found again by its prefix."""
        try:
            await self.save(session)
        except FairwayError as error:
            logger.warning("watch session not saved: %s", error)

    def get(self, wid: str, now_ms: int) -> Session:
        session = self._sessions.get(wid)
        if session is None or (not session.open and session.expires_ms <= now_ms):
            raise NotFound("watch", wid)
        return session

    def touch(self, session: Session, now_ms: int) -> None:
        session.expires_ms = now_ms + SESSION_TTL_MS

    async def purge(self, now_ms: int) -> None:
        """Forget what expired. What cannot be removed from the store now is removed next time."""
        for session in list(self._sessions.values()):
            if not session.open and session.expires_ms <= now_ms:
                del self._sessions[session.wid]
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
    )
