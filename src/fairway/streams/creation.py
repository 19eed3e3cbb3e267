"""What a request to make a stream comes to: another one's place, the one it asks for, or new.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.errors import Conflict
from fairway.streams.content import OCTETS, same_type
from fairway.streams.lifetime import Lifetime
from fairway.streams.stored import VERSION, StreamMeta

if TYPE_CHECKING:
    from fairway.streams.forks import Inheritance
    from fairway.streams.requests import StreamCreate


def check_same(existing: StreamMeta, request: StreamCreate) -> None:
    """Raise `Conflict` unless the stream that is there is the one that is asked for."""
    path = existing.path
    if existing.deleted:
        raise Conflict(f"stream {path!r} was deleted, its forks live on", code="stream_forked")
    if not asks_for(request, existing):
        raise Conflict(f"another stream is at {path!r} already", code="stream_exists")


def asks_for(request: StreamCreate, meta: StreamMeta) -> bool:
    """Whether a request asks for what is there."""
    fork = meta.fork
    inherits = fork is not None and request.content_type is None
    wanted = Lifetime(meta.ttl_s, meta.expires_at)
    if fork is not None and fork.inherits_lifetime:
        wanted = Lifetime()
    return (
        (inherits or same_type(request.content_type, meta.content_type))
        and request.lifetime.ttl_s == wanted.ttl_s
        and request.lifetime.expires_ms == wanted.expires_ms
        and request.closed == meta.closed
        and request.source == (fork.source if fork is not None else None)
        and request.sub_offset == (fork.sub_offset if fork is not None else 0)
        and (request.fork_offset is None or fork is None or str(request.fork_offset) == fork.offset)
    )


def content_type_of(request: StreamCreate, inherited: Inheritance | None) -> str:
    """The type of a new stream: as asked for, else its source's, else bytes."""
    given = inherited.source.meta.content_type if inherited is not None else OCTETS
    return request.content_type or given


def meta_of(
    path: str, request: StreamCreate, inherited: Inheritance | None, now_ms: int
) -> StreamMeta:
    """What is stored of a stream that is made now."""
    lifetime = inherited.lifetime if inherited is not None else request.lifetime
    return StreamMeta(
        VERSION,
        path,
        content_type_of(request, inherited),
        now_ms,
        lifetime.ttl_s,
        lifetime.expires_at,
        inherited.fork if inherited is not None else None,
        request.closed,
    )
